// Look: a text, the attention of its tokens and the next token on one screen, without generating a text first.

import { element, percent } from "qkv/elements.js";
import { quoted, tokenText } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { AttendedStrip } from "./attended_strip.js";
import { Distribution } from "./distribution.js";
import { problem } from "./notices.js";
import { readTokens } from "./read_tokens.js";
import { Sampling } from "./sampling.js";
import { EXAMPLES, generation } from "./settings.js";
import { named, probabilityOf } from "./tokens.js";

const GUESSES = 50; // predictions at each position of a model that does not continue a text
const SHORTCUTS = { ".": "next", ",": "undo" };

function idsOf({ added }) {
  return added.split(".").filter((id) => /^\d+$/.test(id)).map(Number);
}

export class LookTab {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.opens = "head"; // the view that is open at first
    this.base = null; // the tokens of the text, and the added ones: {key, ids, texts: Map of id to text}
    this.source = this.box("look-source", "Source", (value) => ({ look_source: value }));
    this.target = this.box("look-target", "Target", (value) => ({ look_target: value }));
    this.target.input.placeholder = "Empty: the model's own translation";
    this.text = this.box("look-text", "Text", (value) => ({ look_text: value, added: "" }));
    this.examples = element("div", { class: "look-examples", role: "group", "aria-label": "Examples" });
    this.message = element("div");
    const button = (name, act, key, kind = "") =>
      element("button", { type: "button", class: kind, onclick: act, title: `Key ${key}`, "aria-keyshortcuts": key }, name);
    this.onward = button("Next", () => this.next(), ".", "primary");
    this.back = button("Undo", () => this.undo(), ",");
    this.tools = element("div", { class: "actions" }, this.onward, this.back);
    this.distribution = new Distribution(app, { tools: [this.tools] });
    this.sampling = new Sampling(app, { brief: true });
    this.strip = new AttendedStrip();
    this.stage = element("div", { class: "stage" }, this.strip.element); // also has the view inside the model
    this.element = element(
      "div",
      { class: "look-tab" },
      element(
        "div",
        { class: "work" },
        this.text.element,
        this.source.element,
        this.target.element,
        this.examples,
        this.message,
      ),
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

  /** What a response about the text belongs to. */
  get key() {
    return JSON.stringify([this.app.model?.id, this.app.settings.look_text]);
  }

  /** The text with the added tokens as ids, null until the server has read them, or the text itself. */
  get sequence() {
    const { settings } = this.app;
    const added = idsOf(settings);
    if (!added.length) return settings.look_text;
    return this.base?.key === this.key ? [...this.base.ids, ...added] : null;
  }

  /** Whether the text is not known yet: its added tokens are being read. */
  get pending() {
    return this.can("complete") && this.sequence === null;
  }

  /** The text for the view inside the model. */
  get subject() {
    const { look_text, look_source, look_target } = this.app.settings;
    if (this.can("translate")) {
      if (look_source.trim() === "") return null;
      return { source: look_source, ...(look_target.trim() ? { target: look_target } : {}), top: GUESSES };
    }
    if (this.can("complete")) return this.sequence?.length ? { text: this.sequence } : null;
    return look_text.trim() === "" ? null : { text: look_text, ...(this.can("fill") ? { top: GUESSES } : {}) };
  }

  /** The view inside the model waits for a pause while someone types. */
  get atOnce() {
    return !this.typing;
  }

  show(settings) {
    const translates = this.can("translate");
    const completes = this.can("complete");
    this.text.element.hidden = translates;
    this.source.element.hidden = this.target.element.hidden = !translates;
    this.fillBox(this.source.input, settings.look_source);
    this.fillBox(this.target.input, settings.look_target);
    const known = this.base?.key === this.key ? this.base.texts : new Map();
    const added = completes ? idsOf(settings).map((id) => known.get(id) ?? "") : [];
    this.fillBox(this.text.input, settings.look_text + added.join(""));
    this.showExamples(translates ? "source" : "text");
    this.element.classList.toggle("attention-only", this.app.ready && !this.predicts);
    this.tools.hidden = !completes;
    this.distribution.onpick = completes ? (token) => this.take(token) : null;
    this.sampling.element.hidden = !completes && !translates;
    this.sampling.show(settings);
    if (this.app.ready && completes) this.showNext(settings);
    this.app.inside.tellPanel();
    if (!this.app.inside.page) this.strip.show(null);
  }

  fillBox(input, value) {
    if (input.value !== value) input.value = value;
  }

  get predicts() {
    return ["complete", "translate", "fill"].some((task) => this.can(task));
  }

  showExamples(kind) {
    if (this.shownExamples === kind) return;
    this.shownExamples = kind;
    const field = kind === "source" ? "look_source" : "look_text";
    const use = (text) => {
      this.typing = false;
      this.app.set({ [field]: text, look_target: "", added: "" });
    };
    this.examples.replaceChildren(
      ...EXAMPLES[kind].map((text) =>
        element("button", { type: "button", class: "plain", title: text, onclick: () => use(text) }, text),
      ),
    );
  }

  /** The room for further tokens. */
  get full() {
    const { context } = this.app.model.qkv;
    const count = Array.isArray(this.sequence) ? this.sequence.length : 0;
    return context !== null && count >= context;
  }

  showNext(settings) {
    const { sequence } = this;
    this.back.disabled = idsOf(settings).length === 0;
    if (sequence === null) {
      this.readAdded();
      return;
    }
    this.onward.disabled = this.full;
    this.onward.title = this.full ? "The model's context is full." : "Key .";
    this.distribution.show(sequence, this.text.input.value);
  }

  /** The view inside the model shows a response: of a model that does not continue a text also the predictions. */
  insideShown(response, page) {
    this.strip.show(page);
    if (this.can("complete") || !response.next) return;
    const { data, next } = response;
    const side = data.sides[data.text];
    const position = Math.min(page.state.token ?? side.tokens.length - 1, side.tokens.length - 1);
    const where = data.follows ? "After " : "At the position of ";
    this.distribution.title.textContent = data.follows ? "Next token" : "Predicted token";
    this.distribution.showGuesses(next[position], where, tokenText(side.tokens[position], { class: "word" }));
  }

  // Adding tokens

  /** Adds one token: the likeliest at temperature 0, else one that the server draws. */
  async next() {
    const { app } = this;
    if (!app.ready || !this.can("complete") || this.adding || this.pending || this.full) return;
    const { key } = this;
    const count = idsOf(app.settings).length;
    const settings = { ...app.requestSettings, max_tokens: 1, seed: app.settings.seed + count, stop: "" };
    const body = { model: app.model.id, prompt: this.sequence, ...generation(settings), logprobs: 0, tokens: true };
    await this.adds(async (signal) => {
      const { choices, prompt_tokens } = await fetchJson("/v1/completions", body, signal);
      const [token] = choices[0].tokens;
      if (this.key !== key) return null;
      if (!count) this.base = { key, ids: prompt_tokens.map(({ id }) => id), texts: new Map() };
      return token ?? null;
    });
  }

  /** Adds a token that was chosen among the likeliest. */
  async take(token) {
    if (this.adding || this.pending || this.full) return;
    await this.adds(async (signal) => {
      await this.readBase(signal);
      return token;
    });
  }

  /** Adds the token that `find` promises; null adds none. */
  async adds(find) {
    const { app } = this;
    this.adding = true;
    this.message.replaceChildren();
    try {
      const token = await find(this.latest.begin());
      if (token) {
        this.typing = false;
        this.base.texts.set(token.id, token.text);
        app.set({ added: [...idsOf(app.settings), token.id].join("."), look: this.lookAtEnd() });
        app.announce(`Added ${quoted(named(token))}, ${percent(probabilityOf(token))}`);
      } else app.announce("The model ends the text here.");
    } catch (error) {
      if (error.name !== "AbortError") {
        this.message.replaceChildren(problem(error));
        app.failed(error);
      }
    }
    this.adding = false;
  }

  /** The state of the attention page without a chosen token: the last one is shown. */
  lookAtEnd() {
    const parts = new URLSearchParams(this.app.settings.look);
    parts.delete("token");
    return String(parts);
  }

  undo() {
    const ids = idsOf(this.app.settings);
    if (!ids.length) return;
    this.typing = false;
    this.app.set({ added: ids.slice(0, -1).join("."), look: this.lookAtEnd() });
    this.app.announce("The last token is removed.");
  }

  /** Reads the ids of the text, once. */
  async readBase(signal) {
    const { key } = this;
    if (this.base?.key === key) return;
    const { look_text } = this.app.settings;
    const tokens = await readTokens(this.app.model.id, look_text, { signal });
    this.base = { key, ids: tokens.map(({ id }) => id), texts: new Map() };
  }

  /** Reads the added tokens of a link. */
  async readAdded() {
    const { key, app } = this;
    if (this.reading === key) return;
    this.reading = key;
    try {
      const signal = this.latest.begin();
      await this.readBase(signal);
      const { ids, texts } = this.base;
      const tokens = await readTokens(app.model.id, [...ids, ...idsOf(app.settings)], { signal });
      for (const { id, text } of tokens.slice(ids.length)) texts.set(id, text);
    } catch (error) {
      if (error.name !== "AbortError") this.message.replaceChildren(problem(error, () => this.readAdded()));
    }
    this.reading = null;
    if (this.key === key && this.base?.key === key) app.show();
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
