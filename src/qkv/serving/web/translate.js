// @ts-check
// Translate: the best translations of a text by beam search, and the cross-attention of the best one.

import { element } from "qkv/elements.js";
import { quoted, tokenText } from "qkv/token_text.js";
import { Alignment } from "./alignment.js";
import { Latest, fetchJson } from "./api.js";
import { notice, problem } from "./notices.js";

export class Translate {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.running = false;
    this.text = element("textarea", { id: "source", rows: 3, dir: "auto", placeholder: "cats chase mice" });
    this.text.addEventListener("input", () => app.set({ text: this.text.value }));
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.translate();
    });
    const number = (id, key, most) => {
      const input = element("input", { type: "number", id, min: 1, max: most, step: 1, inputmode: "numeric" });
      input.addEventListener("change", () => {
        app.set({ [key]: Math.min(most, Math.max(1, Math.round(Number(input.value)) || 1)) });
        input.value = app.settings[key];
      });
      return input;
    };
    this.beams = number("beams", "beams", 16);
    this.best = number("best", "best", 16);
    this.start = element("button", { type: "button", class: "primary", onclick: () => this.translate() }, "Translate");
    this.halt = element("button", { type: "button", class: "primary", onclick: () => this.latest.stop() }, "Stop");
    this.list = element("ol", { class: "translations" });
    this.alignment = new Alignment(app);
    this.message = element("div");
    this.result = element(
      "section",
      { class: "sheet", "aria-label": "Translations", hidden: true },
      element("h2", {}, "Translations"),
      this.list,
      this.alignment.element,
    );
    this.element = element(
      "div",
      { class: "single" },
      element("div", { class: "labelled" }, element("label", { for: "source" }, "Text"), this.text),
      element(
        "div",
        { class: "actions" },
        this.start,
        this.halt,
        element("label", { for: "beams" }, "Beams"),
        this.beams,
        element("label", { for: "best" }, "Results"),
        this.best,
        element("span", { class: "note" }, "Beam search keeps this many candidate translations."),
      ),
      this.message,
      this.result,
    );
  }

  show(settings) {
    if (this.text.value !== settings.text) this.text.value = settings.text;
    this.beams.value = settings.beams;
    this.best.value = settings.best;
    this.start.hidden = this.running;
    this.halt.hidden = !this.running;
    this.start.disabled = !this.app.ready || settings.text.trim() === "";
    if (this.of && this.of !== this.key(settings)) this.result.classList.add("stale");
    else this.result.classList.remove("stale");
    this.alignment.redraw();
    if (!this.of && !this.running && !this.message.firstChild) {
      const more = "Lines then show the attention from each word of the translation to the source.";
      this.message.replaceChildren(notice("empty", "Write a sentence to translate.", more));
    }
  }

  key({ text, beams, best }) {
    return JSON.stringify([text, beams, best, this.app.model?.id]);
  }

  get subject() {
    const { text } = this.app.settings;
    if (text.trim() === "") return null;
    const known = this.translation && this.of === this.key(this.app.settings);
    return known ? { source: text, target: this.translation } : { source: text };
  }

  get linked() {
    return { run: Boolean(this.of) && this.of === this.key(this.app.settings) };
  }

  restore() {
    this.translate();
  }

  async translate() {
    const { app } = this;
    const { settings } = app;
    if (!app.ready || this.running || settings.text.trim() === "") return;
    this.running = true;
    const key = this.key(settings);
    const focused = document.activeElement === this.start;
    this.show(settings);
    if (focused) this.halt.focus();
    this.message.replaceChildren(notice("waiting", "Translating …"));
    app.announce("Translating …");
    const body = {
      model: app.model.id,
      text: settings.text,
      beams: settings.beams,
      n_best: Math.min(settings.best, settings.beams),
      alignment: true,
    };
    try {
      const response = await fetchJson("/v1/translate", body, this.latest.begin());
      this.of = key;
      this.draw(response);
    } catch (error) {
      this.message.replaceChildren(
        error.name === "AbortError" ? notice("empty", "Stopped.") : problem(error, () => this.translate()),
      );
      if (error.name !== "AbortError") app.failed(error);
    }
    this.running = false;
    this.show(app.settings);
    const { activeElement } = document;
    if (activeElement === this.halt || (focused && activeElement === document.body)) this.start.focus();
    app.textChanged();
  }

  draw({ translations: [results], alignment }) {
    this.translation = results[0].text;
    this.message.replaceChildren();
    this.result.hidden = false;
    this.list.replaceChildren(
      ...results.map(({ text, score }) =>
        element(
          "li",
          {},
          tokenText(text, { class: "translation" }),
          ...(score === null || score === undefined
            ? []
            : [element("span", { class: "number", title: "Score" }, score.toFixed(2))]),
        ),
      ),
    );
    this.alignment.show(alignment?.[0] ?? null);
    this.app.announce(`Translated: ${quoted(results[0].text)}`);
  }
}
