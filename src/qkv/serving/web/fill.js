// @ts-check
// Fill: the predicted tokens for each [mask] of a text.

import { barList, left } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { printable, quoted } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { notice, problem } from "./notices.js";

const MASK = /\[mask\]|\[MASK\]|<mask>/g; // accepted spellings; the server knows the model's own

export class Fill {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.before = [];
    this.text = element("textarea", { id: "masked", rows: 3, dir: "auto" });
    this.text.addEventListener("input", () => app.set({ masked: this.text.value }));
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.fill();
    });
    const button = (name, act, kind = "") => element("button", { type: "button", class: kind, onclick: act }, name);
    this.start = button("Predict", () => this.fill(), "primary");
    this.insert = button("Insert [mask]", () => this.mask());
    this.back = button("Undo", () => this.undo());
    this.count = element("input", { type: "number", id: "guesses", min: 1, max: 50, step: 1, inputmode: "numeric" });
    this.count.addEventListener("change", () => {
      app.set({ guesses: Math.min(50, Math.max(1, Math.round(Number(this.count.value)) || 1)) });
      this.count.value = app.settings.guesses;
      if (this.of) this.fill();
    });
    this.read = element("p", { class: "read-text" });
    this.masks = element("div", { class: "masks" });
    this.message = element("div");
    this.result = element(
      "section",
      { class: "sheet", "aria-label": "Predictions", hidden: true },
      element("h2", {}, "Predicted tokens"),
      this.read,
      this.masks,
    );
    this.element = element(
      "div",
      { class: "single" },
      element("div", { class: "labelled" }, element("label", { for: "masked" }, "Text with masks"), this.text),
      element(
        "div",
        { class: "actions" },
        this.start,
        this.insert,
        this.back,
        element("label", { for: "guesses" }, "Predictions"),
        this.count,
      ),
      this.message,
      this.result,
    );
  }

  show(settings) {
    if (this.text.value !== settings.masked) this.text.value = settings.masked;
    this.count.value = settings.guesses;
    this.start.disabled = !this.app.ready;
    this.back.hidden = this.before.length === 0;
    this.result.classList.toggle("stale", Boolean(this.of) && this.of !== settings.masked);
    if (!this.of && !this.message.firstChild) {
      const title = "Write a text with [mask] where a token is missing.";
      this.message.replaceChildren(notice("empty", title, "Click on a prediction to insert it."));
    }
  }

  get subject() {
    const { masked } = this.app.settings;
    return masked.trim() === "" ? null : { text: masked };
  }

  get linked() {
    return { run: Boolean(this.of) && this.of === this.app.settings.masked };
  }

  restore() {
    this.fill();
  }

  /** Inserts [mask] at the cursor, or replaces the selection. */
  mask() {
    const { selectionStart: from, selectionEnd: to, value } = this.text;
    const masked = `${value.slice(0, from)}[mask]${value.slice(to)}`;
    this.change(masked);
    this.text.focus();
    this.text.setSelectionRange(from + 6, from + 6);
  }

  change(masked) {
    this.before.push(this.app.settings.masked);
    this.app.set({ masked });
  }

  undo() {
    this.app.set({ masked: this.before.pop() });
    this.fill();
    (this.back.hidden ? this.text : this.back).focus();
  }

  async fill() {
    const { app } = this;
    const { masked, guesses } = app.settings;
    if (!app.ready) return;
    if (this.result.hidden) this.message.replaceChildren(notice("waiting", "Running the model …"));
    try {
      const body = { model: app.model.id, text: masked, top: guesses };
      const answer = await fetchJson("/v1/fill", body, this.latest.begin());
      this.of = masked;
      this.draw(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.result.hidden = true;
      this.message.replaceChildren(problem(error, () => this.fill()));
      app.failed(error);
    }
    this.show(app.settings);
  }

  draw({ tokens, masks }) {
    this.message.replaceChildren();
    this.result.hidden = false;
    this.result.classList.remove("stale");
    let number = 0;
    this.read.replaceChildren(
      ...tokens.map(({ text, mask }) =>
        mask ? element("span", { class: "hole" }, `mask ${++number}`) : element("span", {}, printable(text)),
      ),
    );
    this.masks.replaceChildren(...masks.map((guesses, index) => this.guesses(guesses, index, masks.length)));
    const best = ([{ text, probability }], index) => `mask ${index + 1}: ${quoted(text)}, ${percent(probability)}`;
    this.app.announce(masks.map(best).join("; "));
  }

  guesses(guesses, index, count) {
    const rows = guesses.map(({ text, probability }) => ({
      text,
      value: probability,
      name: `Insert ${quoted(text)}, ${percent(probability)}`,
      onpick: () => this.replaceMask(index, text),
    }));
    const others = left(guesses.map(({ probability }) => probability));
    return element(
      "div",
      {},
      element("h3", {}, count > 1 ? `Mask ${index + 1}` : "Mask"),
      barList(rows, { kind: "options", others }),
    );
  }

  /** Replaces a mask by a prediction, and predicts the remaining masks again. */
  replaceMask(index, text) {
    let number = -1;
    const masked = this.of.replace(MASK, (mask) => (++number === index ? text.trim() : mask));
    this.change(masked);
    if (masked.search(MASK) >= 0) this.fill();
    else {
      this.result.hidden = true;
      this.of = null;
      this.message.replaceChildren(notice("empty", "Every mask is filled.", "Undo restores the last one."));
    }
    this.app.announce(`${quoted(text)} inserted.`);
    this.show(this.app.settings);
    this.text.focus();
  }
}
