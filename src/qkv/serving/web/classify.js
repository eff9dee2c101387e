// Classify: what a fine-tuned model says of a text, of two, of choices, or of each word, as its task asks.

import { element, percent } from "qkv/elements.js";
import { bars } from "qkv/head.js";
import { word } from "qkv/words.js";
import { Latest, ask } from "./api.js";
import { notice, problem } from "./notices.js";
import { parsed } from "./settings.js";

// For each task the names of its texts; `more` lets a person add some.
const ASKED = {
  classify: { texts: ["Text"], says: "The model says which class the text belongs to." },
  pair: { texts: ["First text", "Second text"], says: "The model says how the two belong together." },
  similarity: { texts: ["First text", "Second text"], says: "The model says how alike the two are, in either order." },
  regress: { texts: ["Text"], optional: "Second text, if the model reads two", says: "The model says a number." },
  tag: { texts: ["Sentence, with spaces between its words"], says: "The model gives each word a tag." },
  choice: { texts: ["Context", "Choice 1", "Choice 2"], more: true, says: "The model says which choice fits." },
};
const MOST = 8; // texts

export class Classify {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.fields = element("div", { class: "texts" });
    this.about = element("p", { class: "note" });
    this.start = element("button", { type: "button", class: "primary", onclick: () => this.classify() }, "Classify");
    this.add = element("button", { type: "button", onclick: () => this.grow(1) }, "Another choice");
    this.drop = element("button", { type: "button", onclick: () => this.grow(-1) }, "One choice fewer");
    this.message = element("div");
    this.answer = element("div");
    this.result = element("section", { class: "sheet", "aria-label": "Answer", hidden: true }, this.answer);
    this.element = element(
      "div",
      { class: "single" },
      this.about,
      this.fields,
      element("div", { class: "actions" }, this.start, this.add, this.drop),
      this.message,
      this.result,
    );
  }

  get task() {
    const task = this.app.model?.qkv.task;
    return ASKED[task] ? task : "classify";
  }

  get texts() {
    const found = parsed(this.app.settings.said, []);
    return Array.isArray(found) ? found.map(String).slice(0, MOST) : [];
  }

  names() {
    const { texts, more, optional } = ASKED[this.task];
    if (optional) return [...texts, optional];
    if (!more) return texts;
    const count = Math.min(MOST, Math.max(texts.length, this.texts.length));
    return Array.from({ length: count }, (_, place) => (place ? `Choice ${place}` : "Context"));
  }

  show() {
    const names = this.names();
    const { more, says } = ASKED[this.task];
    this.about.textContent = says;
    this.add.hidden = !more || names.length >= MOST;
    this.drop.hidden = !more || names.length <= 3;
    const { texts } = this;
    if (this.named !== JSON.stringify(names)) this.build(names);
    [...this.fields.querySelectorAll("textarea")].forEach((input, place) => {
      if (input.value !== (texts[place] ?? "")) input.value = texts[place] ?? "";
    });
    this.start.disabled = !this.app.ready || !this.asked.some((text) => text.trim() !== "");
    this.result.classList.toggle("stale", Boolean(this.of) && this.of !== this.key);
    if (this.result.hidden && !this.message.firstChild) {
      this.message.replaceChildren(notice("empty", "Write a text, and the model's answer stands here."));
    }
  }

  build(names) {
    this.named = JSON.stringify(names);
    this.fields.replaceChildren(
      ...names.map((name, place) => {
        const rows = place && names.length > 2 ? 1 : 2;
        const input = element("textarea", { id: `text-${place}`, rows, dir: "auto" });
        input.addEventListener("input", () => this.change(place, input.value));
        input.addEventListener("keydown", (event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.classify();
        });
        return element("div", { class: "labelled" }, element("label", { for: input.id }, name), input);
      }),
    );
  }

  change(place, text) {
    const texts = this.names().map((_, number) => this.texts[number] ?? "");
    texts[place] = text;
    this.app.set({ said: JSON.stringify(texts) });
  }

  grow(by) {
    const names = this.names();
    const texts = names.map((_, number) => this.texts[number] ?? "");
    this.app.set({ said: JSON.stringify(by > 0 ? [...texts, ""] : texts.slice(0, -1)) });
    this.fields.querySelector(".labelled:last-child textarea").focus();
  }

  /** The texts that the task reads; the second one of a number may be missing. */
  get asked() {
    const texts = this.names().map((_, place) => this.texts[place] ?? "");
    return ASKED[this.task].optional && !texts[1] ? texts.slice(0, 1) : texts;
  }

  get key() {
    return JSON.stringify([this.app.model?.id, this.asked]);
  }

  get subject() {
    const texts = this.asked.filter((text) => text.trim() !== "");
    if (!texts.length) return null;
    return texts.length === 1 ? { text: texts[0] } : { text: texts.slice(0, 2) };
  }

  get linked() {
    return { run: Boolean(this.of) && this.of === this.key };
  }

  arrive() {
    this.classify();
  }

  async classify() {
    const { app, asked, key } = this;
    if (!app.ready) return;
    if (this.result.hidden) this.message.replaceChildren(notice("waiting", "The model reads …"));
    const text = [asked.length === 1 ? asked[0] : asked];
    try {
      const { task, answers } = await ask("/v1/classify", { model: app.model.id, text }, this.latest.begin());
      this.of = key;
      this.message.replaceChildren();
      this.result.hidden = false;
      this.answer.replaceChildren(...this.told(task, answers[0], asked));
      app.announce(this.answer.firstChild.textContent);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.result.hidden = true;
      this.message.replaceChildren(problem(error, () => this.classify()));
      app.failed(error);
    }
    this.show();
  }

  told(task, { label, probability, scores, number, choice, tags }, texts) {
    if (number !== null && number !== undefined) {
      return [element("h2", {}, "The number is ", element("strong", { class: "big" }, number.toFixed(3)))];
    }
    if (tags) {
      const made = tags.map(([text, tag, likely]) =>
        element(
          "li",
          {},
          word(text, { class: "tagged" }),
          element("span", { class: "tag" }, tag),
          element("span", { class: "number" }, percent(likely)),
        ),
      );
      return [element("h2", {}, `${tags.length} words, each with its tag`), element("ol", { class: "tags" }, ...made)];
    }
    if (choice !== null && choice !== undefined) {
      return [
        element("h2", {}, "It chooses ", word(texts[choice + 1], { class: "word" }), ` with ${percent(probability)}`),
        bars(scores.map((score, place) => [texts[place + 1], score, place === choice])),
      ];
    }
    const rows = Object.entries(scores).sort((one, other) => other[1] - one[1]);
    return [
      element("h2", {}, "It says ", word(label, { class: "word" }), ` with ${percent(probability)}`),
      bars(rows.map(([name, score]) => [name, score, name === label])),
    ];
  }
}
