// Heads switched off, and what the model then says: both texts side by side, from the same seed.

import { element } from "qkv/elements.js";
import { Latest, ask } from "./api.js";
import { notice, problem } from "./notices.js";
import { generation, headNames, headsOff } from "./settings.js";
import { Tokens } from "./tokens.js";

const HINT =
  "Switch a head off (x, or Shift and a click on it), and the text is written again without it, from the same seed.";
const SOON = "What is said next is said without the heads that are off.";
const REST = 250; // milliseconds without another head before the texts are asked for

export class Knockout {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.chosen = element("ul", { class: "chips off-heads", "aria-label": "Heads that are switched off" });
    const title = "Or press x in the views below, or click with Shift on a head among all heads";
    this.turn = element("button", { type: "button", title, onclick: () => this.toggle(this.place) });
    this.clear = element("button", { type: "button", onclick: () => app.set({ off: "" }) }, "Switch all on");
    this.sides = ["With all heads", "Without them"].map((title) => ({
      heading: element("h3", {}, title),
      tokens: new Tokens(title),
    }));
    this.message = element("div");
    this.summary = element("p", { class: "note" });
    this.texts = element(
      "div",
      { class: "sides" },
      ...this.sides.map(({ heading, tokens }) => element("div", { class: "sheet" }, heading, tokens.element)),
    );
    this.element = element(
      "div",
      { class: "knockout" },
      element("div", { class: "actions" }, this.turn, this.clear, this.chosen),
      this.message,
      this.texts,
      this.summary,
    );
    this.texts.hidden = true;
    this.turn.textContent = "Switch a head off";
  }

  /** `state` says which head insight shows: that one is switched. */
  show(state) {
    const { model, asked: settings } = this.app;
    const off = headsOff(settings);
    const speaks = model.qkv.can.includes("complete");
    this.element.hidden = !speaks;
    this.place = speaks && state?.kind === "self" ? `${state.layer}.${state.head}` : null;
    const is = off.includes(this.place);
    this.turn.disabled = this.place === null;
    const which = this.place === null ? "a head" : headNames([this.place]);
    this.turn.textContent = `Switch ${which} ${is ? "on" : "off"}`;
    this.clear.hidden = off.length === 0;
    if (this.listed !== settings.off) {
      this.listed = settings.off;
      this.chosen.replaceChildren(...off.map((each) => this.chip(each)));
    }
    this.compare(settings, off);
  }

  chip(place) {
    const name = headNames([place]);
    const away = element(
      "button",
      { type: "button", "aria-label": `Switch ${name} on`, onclick: () => this.toggle(place) },
      "×",
    );
    return element("li", {}, name, away);
  }

  toggle(place) {
    const off = headsOff(this.app.settings);
    const others = off.filter((each) => each !== place);
    this.app.set({ off: (others.length < off.length ? others : [...off, place]).join(" ") });
  }

  /** The server is back: what it did not answer is asked again. */
  recover() {
    if (this.message.querySelector(".lost")) this.key = null;
  }

  /** Whenever the heads, the prompt or the sampling are others. */
  compare(settings, off) {
    const panel = this.app.panelOf(settings.tab);
    const prompt = settings.tab === "write" ? (panel.current?.given.map(({ id }) => id) ?? settings.prompt) : "";
    const key = JSON.stringify([off, prompt, this.app.model.id, generation(settings)]);
    if (panel.running || this.key === key) return;
    this.key = key;
    clearTimeout(this.timer);
    if (!off.length || !prompt.length) {
      this.latest.stop();
      this.texts.hidden = true;
      this.message.replaceChildren();
      this.summary.textContent = settings.tab !== "write" ? SOON : off.length ? "" : HINT;
      return;
    }
    this.timer = setTimeout(() => this.ask({ model: this.app.model.id, prompt, ...generation(settings) }, off), REST);
  }

  async ask(body, off) {
    const { heads_off: _, ...whole } = { ...body, logprobs: 0, tokens: true };
    const signal = this.latest.begin();
    if (this.texts.hidden) this.message.replaceChildren(notice("waiting", "Writing it twice: with and without …"));
    this.texts.setAttribute("aria-busy", "true");
    try {
      const answers = await Promise.all(
        [whole, { ...whole, heads_off: off }].map((each) => ask("/v1/completions", each, signal)),
      );
      this.draw(...answers.map(({ choices: [{ tokens }] }) => tokens), off);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error, () => this.ask(body, off)));
      this.app.failed(error);
    }
  }

  draw(all, without, off) {
    const [first, second] = marked(all, without);
    this.message.replaceChildren();
    this.texts.hidden = false;
    this.texts.removeAttribute("aria-busy");
    this.sides[1].heading.textContent = `Without ${headNames(off)}`;
    this.sides[0].tokens.show(first);
    this.sides[1].tokens.show(second);
    const differ = second.filter(({ differs }) => differs).length;
    const said = `${differ} of ${second.length} tokens differ.`;
    this.summary.textContent = differ || first.length !== second.length ? said : "Nothing changed.";
    this.app.announce(this.summary.textContent);
  }
}

/** Both texts with the tokens marked that the longest text common to them does not have. */
export function marked(one, other) {
  const width = other.length + 1;
  const longest = new Uint16Array((one.length + 1) * width);
  for (let row = one.length - 1; row >= 0; row--) {
    for (let column = other.length - 1; column >= 0; column--) {
      const here = row * width + column;
      longest[here] =
        one[row].id === other[column].id
          ? longest[here + width + 1] + 1
          : Math.max(longest[here + width], longest[here + 1]);
    }
  }
  const [left, right] = [one, other].map((tokens) => tokens.map((token) => ({ ...token, differs: true })));
  for (let row = 0, column = 0; row < one.length && column < other.length; ) {
    const here = row * width + column;
    if (one[row].id === other[column].id) left[row++].differs = right[column++].differs = false;
    else if (longest[here + width] >= longest[here + 1]) row++;
    else column++;
  }
  return [left, right];
}
