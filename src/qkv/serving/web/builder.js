// @ts-check
// Zero-, one- and few-shot prompts: a task description, some examples, and the prompt.

import { choice, element } from "qkv/elements.js";
import { FewShot } from "./few_shot.js";
import { parsed } from "./settings.js";

const PRESETS = {
  Translation: {
    task: "Translate English to French:",
    arrow: " => ",
    examples: [
      ["sea otter", "loutre de mer"],
      ["peppermint", "menthe poivrée"],
      ["plush giraffe", "girafe peluche"],
    ],
    prompt: "cheese",
  },
  Sentiment: {
    task: "Say whether a review is positive or negative.",
    arrow: "\nSentiment: ",
    examples: [
      ["A warm and funny film that I will see again.", "positive"],
      ["Two hours of my life that nobody gives back.", "negative"],
      ["The actors shine in every scene.", "positive"],
    ],
    prompt: "Boring, loud and far too long.",
  },
  Antonyms: {
    task: "Write the opposite of each word.",
    arrow: " -> ",
    examples: [
      ["hot", "cold"],
      ["tall", "short"],
      ["early", "late"],
    ],
    prompt: "happy",
  },
};
const SHOTS = [
  [0, "Zero-shot"],
  [1, "One-shot"],
  [3, "Few-shot"],
];

/** The prompt as text: an arrow between each question and its answer, and the last answer left open. */
export function compose({ task, arrow, examples, prompt, shots }) {
  const lines = examples.slice(0, shots).map(([question, answer]) => `${question}${arrow}${answer}`);
  const apart = arrow.includes("\n") ? "\n\n" : "\n";
  return [task, ...lines, `${prompt}${arrow.trimEnd()}`].filter((part) => part !== "").join(apart);
}

export class Builder {
  /** @type {any} */
  arrow;

  constructor(app, use) {
    this.app = app;
    this.shots = choice("Number of examples", SHOTS, (shots) => this.set({ shots }));
    const field = (name, key, rows = 1) => {
      const input = element("textarea", { id: `build-${key}`, rows, dir: "auto" });
      input.addEventListener("input", () => this.set({ [key]: input.value }));
      this[key] = input;
      return element("div", { class: "labelled" }, element("label", { for: `build-${key}` }, name), input);
    };
    this.examples = element("div", { class: "examples" });
    this.preview = element("pre", { class: "preview", tabindex: 0, "aria-label": "Preview of the prompt" });
    this.sideBySide = new FewShot(app, () =>
      SHOTS.map(([shots, title]) => [shots, title, compose({ ...this.parts, shots })]),
    );
    this.element = element(
      "details",
      { class: "builder" },
      element("summary", {}, "Build a prompt: zero-, one- or few-shot"),
      element(
        "div",
        { class: "columns" },
        element(
          "div",
          {},
          element(
            "p",
            { class: "ready" },
            element("span", { class: "name" }, "Start from "),
            ...Object.keys(PRESETS).map((name) =>
              element("button", { type: "button", onclick: () => this.set(PRESETS[name]) }, name),
            ),
          ),
          this.shots.element,
          field("Task description", "task"),
          this.examples,
          field("Prompt", "prompt"),
          field("Between question and answer", "arrow", 1),
        ),
        element(
          "div",
          {},
          element("p", { class: "name" }, "Preview"),
          this.preview,
          element(
            "button",
            { type: "button", class: "primary", onclick: () => use(compose(this.parts)) },
            "Use this prompt",
          ),
          element("p", { class: "note" }, "This also makes a line break a stop sequence."),
        ),
      ),
      this.sideBySide.element,
    );
  }

  get parts() {
    const usual = { ...PRESETS.Translation, shots: 3 };
    const parts = { ...usual, ...parsed(this.app.settings.build, {}) };
    return Array.isArray(parts.examples) ? parts : { ...parts, examples: usual.examples };
  }

  set(changes) {
    const { arrow, ...rest } = { ...this.parts, ...changes };
    this.app.set({ build: JSON.stringify({ ...rest, arrow: arrow.replaceAll("\\n", "\n") }) });
  }

  example(number, side, value) {
    const examples = this.parts.examples.map((example) => [...example]);
    examples[number][side] = value;
    this.set({ examples });
  }

  show() {
    const { parts } = this;
    this.shots.show(parts.shots);
    for (const key of ["task", "prompt"]) if (this[key].value !== parts[key]) this[key].value = parts[key];
    const arrow = parts.arrow.replaceAll("\n", "\\n");
    if (this.arrow.value !== arrow) this.arrow.value = arrow;
    if (this.examples.children.length !== parts.shots) this.rows(parts.shots);
    [...this.examples.children].forEach((row, number) => {
      [...row.querySelectorAll("input")].forEach((input, side) => {
        const value = parts.examples[number]?.[side] ?? "";
        if (input.value !== value) input.value = value;
      });
    });
    this.preview.textContent = compose(parts);
    this.sideBySide.show();
  }

  rows(count) {
    this.examples.replaceChildren(
      ...Array.from({ length: count }, (_, number) => {
        const input = (side, name) =>
          element("input", {
            type: "text",
            dir: "auto",
            "aria-label": `Example ${number + 1}: ${name}`,
            oninput: (event) => this.example(number, side, event.target.value),
          });
        return element(
          "div",
          { class: "example", role: "group", "aria-label": `Example ${number + 1}` },
          element("span", { class: "name" }, `Example ${number + 1}`),
          input(0, "question"),
          input(1, "answer"),
        );
      }),
    );
  }
}
