// @ts-check
// Classify: the prediction of a fine-tuned model for a text, two texts, choices, or each word of a sentence.

import { barList } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { tokenText } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { Explanation } from "./explanation.js";
import { notice, problem } from "./notices.js";
import { parsed } from "./settings.js";

// For each task the names of its texts; with `more`, texts can be added.
const TASKS = {
  classify: { texts: ["Text"], about: "Predicts the class of a text." },
  pair: { texts: ["First text", "Second text"], about: "Predicts the relation between two texts." },
  similarity: { texts: ["First text", "Second text"], about: "Predicts how similar two texts are, in either order." },
  regress: { texts: ["Text"], optional: "Second text (optional)", about: "Predicts a number." },
  tag: { texts: ["Sentence, with spaces between its words"], about: "Predicts a tag for each word." },
  choice: { texts: ["Context", "Choice 1", "Choice 2"], more: true, about: "Predicts which choice fits the context." },
};
const MOST = 8; // texts
const EXPLAINED = 64; // words whose tags the server explains

export class Classify {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.fields = element("div", { class: "texts" });
    this.about = element("p", { class: "note" });
    this.start = element("button", { type: "button", class: "primary", onclick: () => this.classify() }, "Classify");
    this.add = element("button", { type: "button", onclick: () => this.grow(1) }, "Add a choice");
    this.drop = element("button", { type: "button", onclick: () => this.grow(-1) }, "Remove a choice");
    this.message = element("div");
    this.answer = element("div");
    this.result = element("section", { class: "sheet", "aria-label": "Answer", hidden: true }, this.answer);
    this.explanation = new Explanation();
    this.element = element(
      "div",
      { class: "single" },
      this.about,
      this.fields,
      element("div", { class: "actions" }, this.start, this.add, this.drop),
      this.message,
      this.result,
      this.explanation.element,
    );
  }

  get task() {
    const task = this.app.model?.qkv.task;
    return TASKS[task] ? task : "classify";
  }

  get texts() {
    const stored = parsed(this.app.settings.said, []);
    return Array.isArray(stored) ? stored.map(String).slice(0, MOST) : [];
  }

  names() {
    const { texts, more, optional } = TASKS[this.task];
    if (optional) return [...texts, optional];
    if (!more) return texts;
    const count = Math.min(MOST, Math.max(texts.length, this.texts.length));
    return Array.from({ length: count }, (_, index) => (index ? `Choice ${index}` : "Context"));
  }

  show() {
    const names = this.names();
    const { more, about } = TASKS[this.task];
    this.about.textContent = about;
    this.add.hidden = !more || names.length >= MOST;
    this.drop.hidden = !more || names.length <= 3;
    const { texts } = this;
    if (this.named !== JSON.stringify(names)) this.build(names);
    [...this.fields.querySelectorAll("textarea")].forEach((input, index) => {
      if (input.value !== (texts[index] ?? "")) input.value = texts[index] ?? "";
    });
    this.start.disabled = !this.app.ready || !this.inputTexts.some((text) => text.trim() !== "");
    for (const { classList } of [this.result, this.explanation.element]) {
      classList.toggle("stale", Boolean(this.of) && this.of !== this.key);
    }
    if (this.result.hidden && !this.message.firstChild) {
      this.message.replaceChildren(notice("empty", "Enter a text; the prediction is shown here."));
    }
  }

  build(names) {
    this.named = JSON.stringify(names);
    this.fields.replaceChildren(
      ...names.map((name, index) => {
        const rows = index && names.length > 2 ? 1 : 2;
        const input = element("textarea", { id: `text-${index}`, rows, dir: "auto" });
        input.addEventListener("input", () => this.change(index, input.value));
        input.addEventListener("keydown", (event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.classify();
        });
        return element("div", { class: "labelled" }, element("label", { for: input.id }, name), input);
      }),
    );
  }

  change(index, text) {
    const texts = this.names().map((_, number) => this.texts[number] ?? "");
    texts[index] = text;
    this.app.set({ said: JSON.stringify(texts) });
  }

  grow(by) {
    const names = this.names();
    const texts = names.map((_, number) => this.texts[number] ?? "");
    this.app.set({ said: JSON.stringify(by > 0 ? [...texts, ""] : texts.slice(0, -1)) });
    this.fields.querySelector(".labelled:last-child textarea").focus();
  }

  /** The texts of the request; the second one of a regression is optional. */
  get inputTexts() {
    const texts = this.names().map((_, index) => this.texts[index] ?? "");
    return TASKS[this.task].optional && !texts[1] ? texts.slice(0, 1) : texts;
  }

  get key() {
    return JSON.stringify([this.app.model?.id, this.inputTexts]);
  }

  get subject() {
    const texts = this.inputTexts.filter((text) => text.trim() !== "");
    if (!texts.length) return null;
    return texts.length === 1 ? { text: texts[0] } : { text: texts.slice(0, 2) };
  }

  get linked() {
    return { run: Boolean(this.of) && this.of === this.key };
  }

  restore() {
    this.classify();
  }

  async classify() {
    const { app, inputTexts, key } = this;
    if (!app.ready) return;
    if (this.result.hidden) this.message.replaceChildren(notice("waiting", "Running the model …"));
    const text = [inputTexts.length === 1 ? inputTexts[0] : inputTexts];
    try {
      const explain = this.task !== "tag" || inputTexts[0].trim().split(/\s+/).length <= EXPLAINED;
      const body = { model: app.model.id, text, explain };
      const { task, answers } = await fetchJson("/v1/classify", body, this.latest.begin());
      this.of = key;
      this.message.replaceChildren();
      this.result.hidden = false;
      this.answer.replaceChildren(...this.answerNodes(task, answers[0], inputTexts));
      this.explanation.show(answers[0].explanation, answers[0].tags);
      app.announce(this.answer.firstChild.textContent);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.result.hidden = true;
      this.explanation.show(null);
      this.message.replaceChildren(problem(error, () => this.classify()));
      app.failed(error);
    }
    this.show();
  }

  answerNodes(task, { label, probability, scores, number, choice, tags }, texts) {
    if (number !== null && number !== undefined) {
      return [element("h2", {}, "Predicted value: ", element("strong", { class: "big" }, number.toFixed(3)))];
    }
    if (tags) {
      const items = tags.map(([text, tag, probability]) =>
        element(
          "li",
          {},
          tokenText(text, { class: "tagged" }),
          element("span", { class: "tag" }, tag),
          element("span", { class: "number" }, percent(probability)),
        ),
      );
      return [element("h2", {}, `Predicted tags of ${tags.length} words`), element("ol", { class: "tags" }, ...items)];
    }
    if (choice !== null && choice !== undefined) {
      return [
        element(
          "h2",
          {},
          "Predicted choice: ",
          tokenText(texts[choice + 1], { class: "word" }),
          `, ${percent(probability)}`,
        ),
        barList(scores.map((value, index) => ({ text: texts[index + 1], value, actual: index === choice }))),
      ];
    }
    const rows = Object.entries(scores).sort((one, other) => other[1] - one[1]);
    return [
      element("h2", {}, "Predicted class: ", tokenText(label, { class: "word" }), `, ${percent(probability)}`),
      barList(rows.map(([text, value]) => ({ text, value, actual: text === label }))),
    ];
  }
}
