// @ts-check
// Changing heads, and steering: what it does to the text on the page, and both texts side by side.

import { element } from "qkv/elements.js";
import { Latest, fetchJson } from "./api.js";
import { Effect } from "./effect.js";
import { notice, problem } from "./notices.js";
import { generation, headNames, headsOff } from "./settings.js";
import { SteeringFields, steeringOf, steers } from "./steering_fields.js";
import { Tokens } from "./tokens.js";

const HINT =
  "Switch a head off (x, or Shift+click on it) to generate the text again without it, from the same seed.";
const SOON = "The next text is generated without the heads that are switched off.";
const REST = 250; // milliseconds without a change before the request
const LENGTH = 24; // tokens of the texts that are continued greedily
const PARTLY = "Generate and the views below switch these heads off. Another strength is only measured here.";

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
    this.effect = new Effect(app, (texts) => this.showTexts(texts));
    this.steering = new SteeringFields(app);
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
      this.buildStrength(),
      this.steering.element,
      this.effect.element,
      this.message,
      this.texts,
      this.summary,
    );
    this.texts.hidden = true;
    this.switchButton.textContent = "Switch a head off";
  }

  buildStrength() {
    const range = { type: "range", id: "head-strength", min: 0, max: 2, step: 0.05 };
    this.strength = element("input", { ...range, "aria-describedby": "head-strength-hint" });
    this.strength.addEventListener("input", () => this.app.set({ strength: Number(this.strength.value) }));
    this.strengthNumber = element("output", { for: "head-strength" });
    this.partly = element("p", { class: "note", hidden: true }, PARTLY);
    this.strengthField = element(
      "div",
      { class: "head-strength" },
      element("label", { for: "head-strength" }, "Strength of these heads"),
      element("span", { class: "ranged" }, this.strength, this.strengthNumber),
      element("span", { class: "hint", id: "head-strength-hint" }, "0 is off, 1 unchanged, 2 twice"),
      this.partly,
    );
    return this.strengthField;
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
    this.strengthField.hidden = off.length === 0;
    this.strength.value = settings.strength;
    this.strengthNumber.textContent = settings.strength.toFixed(2);
    this.partly.hidden = settings.strength === 0;
    this.steering.show(settings);
    if (generates) this.measure(settings, off);
    this.compare(settings, off);
  }

  /** The change, as the fields of a request: null without one. */
  changeOf(settings, off) {
    const steering = steeringOf(settings, this.app.model.qkv.layers ?? 1);
    const heads = off.length && settings.strength !== 1 ? { heads: off, strength: settings.strength } : {};
    const change = { ...heads, ...(steers(steering) ? { steering } : {}) };
    if (!Object.keys(change).length) return null;
    // heads that are off have texts of their own, with the sampling parameters
    this.greedy = Boolean(change.steering) || settings.strength !== 0;
    return { ...change, length: this.greedy ? LENGTH : 0 };
  }

  measure(settings, off) {
    const panel = this.app.panelOf(settings.tab);
    if (panel.running) return;
    const change = this.changeOf(settings, off);
    if (change === null) this.greedy = false;
    this.effect.show(panel.subject ?? null, change);
  }

  /** Shows the greedy continuations with and without the change. */
  showTexts(texts) {
    if (!this.greedy) return;
    this.latest.stop();
    clearTimeout(this.timer);
    this.texts.hidden = texts === null;
    this.summary.textContent = "";
    if (texts === null) return;
    this.sides[0].heading.textContent = "Continued without the change";
    this.draw(texts.before, texts.after, "Continued with the change");
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
    this.effect.recover();
    if (this.message.querySelector(".lost")) this.key = null;
  }

  /** Generates both texts when the heads, the prompt or the sampling parameters have changed. */
  compare(settings, off) {
    const panel = this.app.panelOf(settings.tab);
    const prompt = settings.tab === "write" ? (panel.current?.promptTokens.map(({ id }) => id) ?? settings.prompt) : "";
    const key = JSON.stringify([off, prompt, this.app.model.id, generation(settings), this.greedy]);
    if (panel.running || this.key === key) return;
    this.key = key;
    clearTimeout(this.timer);
    if (this.greedy) {
      this.latest.stop();
      this.message.replaceChildren();
      return;
    }
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
      this.sides[0].heading.textContent = "With all heads";
      this.draw(...answers.map(({ choices: [{ tokens }] }) => tokens), `Without ${headNames(off)}`);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error, () => this.request(body, off)));
      this.app.failed(error);
    }
  }

  draw(all, without, title) {
    const [first, second] = marked(all, without);
    this.message.replaceChildren();
    this.texts.hidden = false;
    this.texts.removeAttribute("aria-busy");
    this.sides[1].heading.textContent = title;
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
