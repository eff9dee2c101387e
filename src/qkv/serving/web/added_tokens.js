// @ts-check
// The tokens that are added to the text of Look: by a draw, by hand, or by a link; the last one can be removed.

import { percent } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { problem } from "./notices.js";
import { readTexts, readTokens } from "./read_tokens.js";
import { generation } from "./settings.js";
import { named, probabilityOf } from "./tokens.js";
/** @import { App } from "./app.js" */

export class AddedTokens {
  /** @type {App} */
  app;
  /** @type {any} */
  message;
  /** @type {() => void} */
  changed;

  /** Calls `changed()` before the text changes; `message` is the element for problems. */
  constructor(app, message, changed) {
    Object.assign(this, { app, message, changed });
    this.latest = new Latest();
    this.base = null; // the tokens of the text alone: {key, ids}, and `texts` of added ones by the ids up to each
    this.busy = false;
  }

  /** What a response about the text belongs to. */
  get key() {
    return JSON.stringify([this.app.model?.id, this.app.settings.look_text]);
  }

  /** The ids of the added tokens; those of a link belong to its model. */
  get ids() {
    const { added, model } = this.app.settings;
    if (model && model !== this.app.model?.id) return [];
    return added.split(".").filter((id) => /^\d+$/.test(id)).map(Number);
  }

  /** The text, or with added tokens its ids; null until the server has read them. */
  get sequence() {
    const { ids } = this;
    if (!ids.length) return this.app.settings.look_text;
    return this.base?.key === this.key ? [...this.base.ids, ...ids] : null;
  }

  get pending() {
    return this.sequence === null;
  }

  /** The text with the added tokens. */
  get text() {
    const known = this.base?.key === this.key ? this.base.texts : new Map();
    const added = this.ids.map((_, index) => known.get(this.ids.slice(0, index + 1).join(".")) ?? "");
    return this.app.settings.look_text + added.join("");
  }

  /** Whether the model's context has no room for a further token. */
  get full() {
    const { context } = this.app.model.qkv;
    const count = Array.isArray(this.sequence) ? this.sequence.length : 0;
    return context !== null && count >= context;
  }

  /** The settings for another model, whose tokens are others: the added ones become text. */
  get asText() {
    return this.ids.length && !this.pending ? { look_text: this.text, added: "" } : { added: "" };
  }

  /** The state of the attention page without a chosen token: the last one is shown. */
  get lookAtEnd() {
    const parts = new URLSearchParams(this.app.settings.look);
    parts.delete("token");
    return String(parts);
  }

  /** Adds one token: the likeliest at temperature 0, else one that the server draws. */
  draw() {
    const { app, key } = this;
    if (!app.ready) return;
    const count = this.ids.length;
    const settings = { ...app.requestSettings, max_tokens: 1, seed: app.settings.seed + count, stop: "" };
    const body = { model: app.model.id, prompt: this.sequence, ...generation(settings), logprobs: 0, tokens: true };
    this.add(async (signal) => {
      const { choices, prompt_tokens } = await fetchJson("/v1/completions", body, signal);
      if (this.key !== key) return null; // another text was written meanwhile
      if (!count) this.base = { key, ids: prompt_tokens.map(({ id }) => id), texts: new Map() };
      return choices[0].tokens[0] ?? null;
    });
  }

  /** Adds a token that was chosen among the likeliest. */
  take(token) {
    this.add(async (signal) => {
      await this.readBase(signal);
      return token;
    });
  }

  /** Adds the token that `find` promises; null adds none. */
  async add(find) {
    const { app } = this;
    if (this.busy || this.pending || this.full) return;
    this.busy = true;
    this.message.replaceChildren();
    try {
      const token = await find(this.latest.begin());
      if (token) {
        await this.readAdded([...this.ids, token.id], this.latest.begin());
        this.changed();
        app.set({ added: [...this.ids, token.id].join("."), look: this.lookAtEnd });
        app.announce(`Added ${quoted(named(token))}, ${percent(probabilityOf(token))}`);
      } else app.announce("The model ends the text here.");
    } catch (error) {
      if (error.name !== "AbortError") {
        this.message.replaceChildren(problem(error));
        app.failed(error);
      }
    }
    this.busy = false;
  }

  /** Removes the last token. */
  undo() {
    const { ids } = this;
    if (!ids.length) return;
    this.changed();
    this.app.set({ added: ids.slice(0, -1).join("."), look: this.lookAtEnd });
    this.app.announce("The last token is removed.");
  }

  /** Reads the ids of the text, once. */
  async readBase(signal) {
    const { key } = this;
    if (this.base?.key === key) return;
    const tokens = await readTokens(this.app.model.id, this.app.settings.look_text, { signal });
    this.base = { key, ids: tokens.map(({ id }) => id), texts: new Map() };
  }

  /** Reads the texts of added tokens. */
  async readAdded(added, signal) {
    const { ids, texts } = this.base;
    const all = await readTexts(this.app.model.id, [...ids, ...added], signal);
    added.forEach((_, index) => texts.set(added.slice(0, index + 1).join("."), all[ids.length + index]));
  }

  /** Reads the added tokens of a link. */
  async readLinked() {
    const { key, app } = this;
    if (this.reading === key) return;
    this.reading = key;
    try {
      const signal = this.latest.begin();
      await this.readBase(signal);
      await this.readAdded(this.ids, signal);
    } catch (error) {
      this.base = null;
      if (error.name !== "AbortError") this.message.replaceChildren(problem(error, () => this.readLinked()));
    }
    this.reading = null;
    if (this.key === key && this.base) app.show();
  }
}
