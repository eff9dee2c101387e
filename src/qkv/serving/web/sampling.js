// @ts-check
// Sampling parameters: a slider, a number and a short hint for each.

import { element } from "qkv/elements.js";

// name, title, from, to, step, what it does
const MAIN = [
  ["temperature", "Temperature", 0, 2, 0.05, "0 always takes the likeliest token; higher is more random"],
  ["top_k", "Top-k", 0, 100, 1, "samples from the k likeliest tokens; 0 keeps all"],
  ["top_p", "Top-p", 0.01, 1, 0.01, "samples from the likeliest tokens with this total probability; 1 keeps all"],
  ["max_tokens", "Max tokens", 1, 256, 1, "the maximum number of new tokens"],
];
const MORE = [
  ["min_p", "Min-p", 0, 1, 0.01, "drops tokens below this fraction of the highest probability"],
  ["repetition_penalty", "Repetition", 1, 2, 0.05, "makes earlier tokens less likely; 1 has no effect"],
  ["presence_penalty", "Presence", -2, 2, 0.1, "subtracted from the logits of earlier tokens"],
  ["frequency_penalty", "Frequency", -2, 2, 0.1, "the same, times the number of occurrences"],
];
const BRIEF = ["temperature", "top_k", "top_p", "min_p"]; // those that shape the distribution
const ROOMY = matchMedia("(min-width: 881px)"); // beside the text; on a narrow screen it would be above the attention
const WHOLE = ["top_k", "max_tokens", "seed"];

export class Sampling {
  /** `brief`: only the parameters that shape the distribution, and the seed, without hints. */
  constructor(app, { brief = false } = {}) {
    this.app = app;
    this.brief = brief;
    this.fields = new Map();
    const row = (field) => this.row(...field);
    this.seed = element("input", { type: "number", id: "seed", min: 0, step: 1, inputmode: "numeric" });
    this.seed.addEventListener("change", () => this.change("seed", this.seed.value));
    this.stop = element("textarea", { id: "stop", rows: 2, spellcheck: "false" });
    this.stop.addEventListener("input", () => app.set({ stop: this.stop.value }));
    this.more = element(
      "details",
      {},
      element("summary", {}, "More"),
      ...(brief ? [] : MORE.map(row)),
      element(
        "div",
        { class: "field" },
        element("label", { for: "stop" }, "Stop sequences"),
        this.stop,
        element("span", { class: "hint" }, "one per line; \\n is a line break"),
      ),
    );
    const listed = brief ? [...MAIN, ...MORE].filter(([name]) => BRIEF.includes(String(name))) : MAIN;
    this.element = element(
      "details",
      { class: brief ? "sampling brief" : "sampling", open: !brief || ROOMY.matches },
      element("summary", {}, "Sampling parameters"),
      ...listed.map(row),
      element(
        "div",
        { class: "field" },
        element("label", { for: "seed" }, "Seed"),
        element("span", { class: "seed" }, this.seed, this.dice()),
        element("span", { class: "hint" }, "the same seed gives the same text"),
      ),
      ...(brief ? [] : [this.more]),
      element("button", { type: "button", class: "plain", onclick: () => this.reset() }, "Reset"),
    );
  }

  dice() {
    return element("button", { type: "button", onclick: () => this.app.set({ seed: newSeed() }) }, "New seed");
  }

  row(name, title, least, most, step, hint) {
    const id = name.replaceAll("_", "-");
    const description = { "aria-describedby": `${id}-hint` };
    const range = { type: "range", min: least, max: most, step, "aria-label": title };
    const slider = element("input", { ...range, ...description });
    const box = { type: "number", id, min: least, step: "any", inputmode: "decimal" };
    const number = element("input", { ...box, ...description });
    slider.addEventListener("input", () => this.change(name, slider.value));
    number.addEventListener("change", () => this.change(name, number.value));
    this.fields.set(name, [slider, number, least]);
    return element(
      "div",
      { class: "field" },
      element("label", { for: id }, title),
      slider,
      number,
      element("span", { class: "hint", id: `${id}-hint` }, hint),
    );
  }

  change(name, text) {
    const value = Number(text);
    const least = this.fields.get(name)?.[2] ?? 0;
    const bounded = Math.max(least, WHOLE.includes(name) ? Math.round(value) : value);
    if (text.trim() === "" || !Number.isFinite(value)) this.show(this.app.settings);
    else this.app.set({ [name]: bounded });
  }

  reset() {
    const { temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, stop } =
      this.app.defaults;
    this.app.set({ temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, stop });
  }

  /** Makes a line break a stop sequence, and shows it. */
  stopAtLine() {
    const others = this.app.settings.stop.split("\n").filter((line) => line !== "" && line !== "\\n");
    this.app.set({ stop: [...others, "\\n"].join("\n") });
    this.element.open = this.more.open = true;
  }

  show(settings) {
    // the view inside the model needs the space
    if (this.insideOpen !== settings.think && !this.brief) this.element.open = !settings.think;
    this.insideOpen = settings.think;
    for (const [name, [slider, number]] of this.fields) {
      slider.value = settings[name];
      number.value = settings[name];
    }
    this.seed.value = settings.seed;
    if (this.stop.value !== settings.stop) this.stop.value = settings.stop;
  }
}

export function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] % 1_000_000;
}
