// Switching heads off: the texts generated with and without them side by side, from the same seed.

import { element } from "qkv/elements.js";
import { Latest, fetchJson } from "./api.js";
import { notice, problem } from "./notices.js";
import { generation, headNames, headsOff } from "./settings.js";
import { Tokens } from "./tokens.js";

const HINT =
  "Switch a head off (x, or Shift+click on it) to generate the text again without it, from the same seed.";
const SOON = "The next text is generated without the heads that are switched off.";
const REST = 250; // milliseconds without a change before the request

export class Knockout {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.chosen = element("ul", { class: "chips off-heads", "aria-label": "Heads switched off" });
    const title = "Or press x in the views below, or Shift+click on a head in All heads";
    this.switchButton = element("button", { type: "button", title, onclick: () => this.toggle(this.head) });
    this.clear = element("button", { type: "button", onclick: () => app.set({ off: "" }) }, "Switch all on");
    this.sides = ["With all heads", "Without heads"].map((title) => ({
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
      element("div", { class: "actions" }, this.switchButton, this.clear, this.chosen),
      this.message,
      this.texts,
      this.summary,
    );
    this.texts.hidden = true;
    this.switchButton.textContent = "Switch a head off";
  }

  /** `state` is that of the attention page: its head is the one to switch. */
  show(state) {
    const { model, requestSettings: settings } = this.app;
    const off = headsOff(settings);
    const generates = model.qkv.can.includes("complete");
    this.element.hidden = !generates;
    this.head = generates && state?.kind === "self" ? `${state.layer}.${state.head}` : null;
    const is = off.includes(this.head);
    this.switchButton.disabled = this.head === null;
    const which = this.head === null ? "a head" : headNames([this.head]);
    this.switchButton.textContent = `Switch ${which} ${is ? "on" : "off"}`;
    this.clear.hidden = off.length === 0;
    if (this.listed !== settings.off) {
      this.listed = settings.off;
      this.chosen.replaceChildren(...off.map((head) => this.chip(head)));
    }
    this.compare(settings, off);
  }

  chip(head) {
    const name = headNames([head]);
    const remove = element(
      "button",
      { type: "button", "aria-label": `Switch ${name} on`, onclick: () => this.toggle(head) },
      "×",
    );
    return element("li", {}, name, remove);
  }

  toggle(head) {
    const off = headsOff(this.app.settings);
    const others = off.filter((other) => other !== head);
    this.app.set({ off: (others.length < off.length ? others : [...off, head]).join(" ") });
  }

  /** The server is back: repeats a failed request. */
  recover() {
    if (this.message.querySelector(".lost")) this.key = null;
  }

  /** Generates both texts when the heads, the prompt or the sampling parameters have changed. */
  compare(settings, off) {
    const panel = this.app.panelOf(settings.tab);
    const prompt = settings.tab === "write" ? (panel.current?.promptTokens.map(({ id }) => id) ?? settings.prompt) : "";
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
    const request = { model: this.app.model.id, prompt, ...generation(settings) };
    this.timer = setTimeout(() => this.request(request, off), REST);
  }

  async request(body, off) {
    const { heads_off: _, ...whole } = { ...body, logprobs: 0, tokens: true };
    const signal = this.latest.begin();
    if (this.texts.hidden) this.message.replaceChildren(notice("waiting", "Generating both texts …"));
    this.texts.setAttribute("aria-busy", "true");
    try {
      const answers = await Promise.all(
        [whole, { ...whole, heads_off: off }].map((request) => fetchJson("/v1/completions", request, signal)),
      );
      this.draw(...answers.map(({ choices: [{ tokens }] }) => tokens), off);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error, () => this.request(body, off)));
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
    const changed = differ || first.length !== second.length;
    this.summary.textContent = changed ? `${differ} of ${second.length} tokens differ.` : "Both texts are equal.";
    this.app.announce(this.summary.textContent);
  }
}

/** Both texts, with the tokens marked that are not in their longest common subsequence. */
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
