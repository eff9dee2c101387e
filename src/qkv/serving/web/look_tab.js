// @ts-check
// Look: a text, the attention of its tokens and the next token on one screen, without generating a text first.

import { element } from "qkv/elements.js";
import { quoted, tokenText } from "qkv/token_text.js";
import { AddedTokens } from "./added_tokens.js";
import { fetchJson } from "./api.js";
import { AttendedStrip } from "./attended_strip.js";
import { Distribution } from "./distribution.js";
import { problem } from "./notices.js";
import { Sampling } from "./sampling.js";
import { EXAMPLES } from "./settings.js";

const GUESSES = 50; // predictions at each position of a model that does not continue a text
const SHORTCUTS = { ".": "next", ",": "undo" };

export class LookTab {
  constructor(app) {
    this.app = app;
    this.opens = "head"; // the view that is open at first
    this.typing = false;
    this.source = this.box("look-source", "Source", (value) => ({ look_source: value }));
    this.target = this.box("look-target", "Target", (value) => ({ look_target: value }));
    this.target.input.placeholder = "Empty: the model's own translation";
    this.text = this.box("look-text", "Text", (value) => ({ look_text: value, added: "" }));
    this.examples = element("div", { class: "look-examples", role: "group", "aria-label": "Examples" });
    this.message = element("div");
    this.added = new AddedTokens(app, this.message, () => (this.typing = false));
    this.targets = []; // of a translator, before a token was added
    const button = (name, key, attributes) =>
      element("button", { type: "button", title: `Key ${key}`, "aria-keyshortcuts": key, ...attributes }, name);
    this.onward = button("Next", ".", { class: "primary", onclick: () => this.next() });
    this.back = button("Undo", ",", { onclick: () => this.undo() });
    this.tools = element("div", { class: "actions" }, this.onward, this.back);
    this.distribution = new Distribution(app, { tools: [this.tools] });
    this.sampling = new Sampling(app, { brief: true });
    this.strip = new AttendedStrip();
    this.stage = element("div", { class: "stage" }, this.strip.element); // also has the view inside the model
    const boxes = [this.text, this.source, this.target].map((box) => box.element);
    this.element = element(
      "div",
      { class: "look-tab", "data-one-screen": true },
      element("div", { class: "work" }, ...boxes, this.examples, this.message),
      this.stage,
      element("aside", { class: "aside" }, this.distribution.element, this.sampling.element),
    );
    document.addEventListener("keydown", (event) => this.shortcut(event));
  }

  box(id, name, changes) {
    const input = element("textarea", { id, rows: 1, dir: "auto" });
    input.addEventListener("input", () => {
      this.typing = true;
      this.app.set(changes(input.value));
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.next();
    });
    return { input, element: element("div", { class: "labelled" }, element("label", { for: id }, name), input) };
  }

  can(what) {
    return Boolean(this.app.model?.qkv.can.includes(what));
  }

  /** Whether the text is not known yet: its added tokens are being read. */
  get pending() {
    return this.can("complete") && this.added.pending;
  }

  /** The text for the view inside the model. */
  get subject() {
    const { look_text, look_source, look_target } = this.app.settings;
    if (this.can("translate")) {
      if (look_source.trim() === "") return null;
      return { source: look_source, ...(look_target.trim() ? { target: look_target } : {}), top: GUESSES };
    }
    if (this.can("complete")) return this.added.sequence?.length ? { text: this.added.sequence } : null;
    return look_text.trim() === "" ? null : { text: look_text, ...(this.can("fill") ? { top: GUESSES } : {}) };
  }

  /** Whether the view inside the model is requested at once; while someone types, it waits for a pause. */
  get hurried() {
    return !this.typing;
  }

  /** The settings for another model. */
  get forAnotherModel() {
    return this.added.asText;
  }

  show(settings) {
    const translates = this.can("translate");
    const completes = this.can("complete");
    this.text.element.hidden = translates;
    this.source.element.hidden = this.target.element.hidden = !translates;
    const values = [
      [this.source, settings.look_source],
      [this.target, settings.look_target],
      [this.text, completes ? this.added.text : settings.look_text],
    ];
    for (const [{ input }, value] of values) if (input.value !== value) input.value = value;
    this.showExamples(translates ? "source" : "text");
    this.showTools(completes, translates);
    this.sampling.show(settings);
    if (this.app.ready && completes) this.showNext();
    this.strip.element.hidden = this.subject === null && !this.pending;
    this.app.inside.tellPanel();
  }

  /** What can be done depends on the model. */
  showTools(completes, translates) {
    const attentionOnly = this.app.ready && !completes && !translates && !this.can("fill");
    this.element.classList.toggle("attention-only", attentionOnly);
    this.tools.hidden = !completes && !translates;
    this.onward.hidden = !completes;
    this.back.disabled = completes ? this.added.ids.length === 0 : this.targets.length === 0;
    this.sampling.element.hidden = this.tools.hidden;
    const take = completes ? (token) => this.added.take(token) : (token) => this.takeTarget(token);
    this.distribution.onpick = this.tools.hidden ? null : take;
    this.distribution.rawOnly = this.tools.hidden;
  }

  showExamples(kind) {
    if (this.shownExamples === kind) return;
    this.shownExamples = kind;
    const field = kind === "source" ? "look_source" : "look_text";
    const use = (text) => {
      this.typing = false;
      this.targets = [];
      this.app.set({ [field]: text, look_target: "", added: "" });
    };
    this.examples.replaceChildren(
      ...EXAMPLES[kind].map((text) =>
        element("button", { type: "button", class: "plain", title: text, onclick: () => use(text) }, text),
      ),
    );
  }

  showNext() {
    const { sequence, full } = this.added;
    this.onward.disabled = full;
    this.onward.title = full ? "The model's context is full." : "Key .";
    this.distribution.title.textContent = "Next token";
    if (sequence === null) this.added.readLinked();
    else this.distribution.show(sequence, this.text.input.value);
  }

  /** The view inside the model shows a response: of a model that does not continue a text also the predictions. */
  insideShown(response, page) {
    this.strip.show(page);
    if (this.can("complete") || !response.next) return;
    const { data, next } = response;
    const side = data.sides[data.text];
    const last = side.tokens.length - 1;
    const position = Math.min(page.state.token ?? data.predicted ?? last, last);
    const cross = data.attention.find(({ kind }) => kind === "cross");
    const end = cross ? data.sides[cross.rows].ids.at(-1) : null;
    this.predicted = { before: side.ids.slice(1, position + 1), end };
    const where = data.follows ? "After " : "At the position of ";
    this.distribution.title.textContent = data.follows ? "Next token" : "Predicted token";
    this.distribution.showGuesses(next[position], where, tokenText(side.tokens[position], { class: "word" }));
  }

  /** The view inside the model shows nothing. */
  insideCleared() {
    this.strip.clear();
  }

  next() {
    if (this.can("complete")) this.added.draw();
  }

  /** Makes the target of a translator its tokens up to the chosen position, and then this one. */
  async takeTarget({ id }) {
    const { app } = this;
    const { before, end } = this.predicted;
    if (id === end) return; // every target ends with it
    this.message.replaceChildren();
    try {
      const { text } = await fetchJson("/v1/tokenize", { model: app.model.id, ids: [...before, id] });
      this.typing = false;
      this.targets.push(app.settings.look_target);
      app.set({ look_target: text, look: this.added.lookAtEnd });
      app.announce(`Target: ${quoted(text)}`);
    } catch (error) {
      this.message.replaceChildren(problem(error, () => this.takeTarget({ id })));
      app.failed(error);
    }
  }

  undo() {
    if (this.can("complete")) this.added.undo();
    else if (this.targets.length) {
      this.typing = false;
      this.app.set({ look_target: this.targets.pop(), look: this.added.lookAtEnd });
    }
  }

  shortcut(event) {
    const typing = event.target.closest?.("select, input, textarea, dialog, [popover]");
    if (!this.element.isConnected || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = SHORTCUTS[event.key];
    if (!act) return;
    event.preventDefault();
    this[act]();
  }
}
