// @ts-check
// Zero, one and few shots side by side: the same question after no, one and all examples.

import { element, percent } from "qkv/elements.js";
import { printable, quoted } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { notice, problem } from "./notices.js";
import { headsOff } from "./settings.js";
import { named, probabilityOf, spaced } from "./tokens.js";
/** @import { App } from "./app.js" */

const LISTED = 5; // likeliest first tokens of the answer
const LENGTH = 12; // tokens of an answer, which ends with its line

export class FewShot {
  /** @type {App} */
  app;
  /** @type {any} */
  prompts;

  /** `prompts()` gives triples of a number of examples, its title and the prompt. */
  constructor(app, prompts) {
    Object.assign(this, { app, prompts });
    this.latest = new Latest();
    const act = { type: "button", onclick: () => this.compare() };
    this.start = element("button", act, "Compare zero, one and few shots");
    this.columns = element("div", { class: "shots" });
    this.message = element("div");
    this.element = element(
      "section",
      { class: "few-shot", "aria-label": "Zero, one and few shots side by side" },
      this.start,
      this.message,
      this.columns,
    );
  }

  /** Shows whether the answers still belong to the prompts. */
  show() {
    this.start.disabled = !this.app.ready;
    if (this.columns.firstChild) this.columns.classList.toggle("stale", this.of !== this.key);
  }

  get key() {
    const prompts = this.prompts().map(([, , prompt]) => prompt);
    return JSON.stringify([this.app.model?.id, this.app.requestSettings.off, prompts]);
  }

  async compare() {
    const { key, app } = this;
    const asked = this.prompts();
    const signal = this.latest.begin();
    if (!this.columns.firstChild) this.message.replaceChildren(notice("waiting", "Running the model three times …"));
    this.columns.setAttribute("aria-busy", "true");
    try {
      const answers = await Promise.all(asked.map(([, , prompt]) => this.answer(prompt, signal)));
      this.of = key;
      this.columns.replaceChildren(...asked.map((shots, number) => this.column(shots, answers[number])));
      this.message.replaceChildren();
      const told = asked.map(([, title], number) => `${title}: ${quoted(answers[number].text.trim())}`);
      app.announce(told.join("; "));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error, () => this.compare()));
      app.failed(error);
    }
    this.columns.removeAttribute("aria-busy");
    this.show();
  }

  /** The likeliest answer to a prompt, and the likeliest first tokens. */
  async answer(prompt, signal) {
    const off = headsOff(this.app.requestSettings);
    const request = { model: this.app.model.id, prompt, temperature: 0, max_tokens: LENGTH, stop: ["\n"] };
    const more = { logprobs: LISTED, tokens: true, ...(off.length ? { heads_off: off } : {}) };
    const { choices } = await fetchJson("/v1/completions", { ...request, ...more }, signal);
    const [{ text, tokens }] = choices;
    return { text, first: tokens[0]?.alternatives ?? [] };
  }

  column([, title, prompt], { text, first }) {
    const items = first.slice(0, LISTED).map((token) => {
      const probability = probabilityOf(token);
      const bar = element("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--part", probability);
      const says = `${quoted(named(token))}: ${percent(probability)}`;
      const number = element("span", { class: "number" }, percent(probability));
      return element("li", { "aria-label": says }, spaced(token), number, bar);
    });
    const shown = printable(text.trim()) || "∅";
    return element(
      "div",
      { class: "shot" },
      element("h3", {}, title),
      element("pre", { class: "preview", tabindex: 0, "aria-label": `Prompt, ${title}` }, printable(prompt)),
      element("p", { class: "shot-answer" }, element("span", { class: "name" }, "Answer "), shown),
      element("p", { class: "name" }, "Its first token"),
      element("ol", { class: "bars" }, ...items),
    );
  }
}
