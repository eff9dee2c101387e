// @ts-check
// A generated text: the tokens of its prompt, the generated ones, why it ended, and the text before it (for undo).

const STORED = "qkv.draft";
const DEPTH = 50; // steps of undo

const ENDS = {
  stop: "Stop sequence reached.",
  end: "End of text reached.",
  length: "Maximum number of tokens reached.",
  deadline: "Time limit reached.",
  stopped: "Stopped.",
  failed: "Generation failed.",
  linked: "Restored from the link.",
};

/** The ids of a link as two lists of strings: those of the prompt, and the generated ones. */
export function parseIds(ids) {
  return ids.split("_").map((part) => part.split(".").filter((id) => id !== ""));
}

export class GeneratedText {
  /** @type {any[]} */
  generated;
  /** @type {any} */
  prompt;
  /** @type {string} */
  model;
  /** @type {number} */
  context;
  /** @type {number} */
  oldCount;
  /** @type {any[]} */
  before;

  /** `context`: of the model, null without a limit; `off`: heads that were switched off; `recipe`: the request that
   * gives this text again, or null; `oldCount`: how many generated tokens there were before the latest request. */
  constructor({ prompt, model, promptTokens = [], generated = [], ...more }) {
    Object.assign(this, { prompt, model, context: null, promptTokens, generated, reason: null, before: null });
    Object.assign(this, { off: "", recipe: null, oldCount: generated.length }, more);
    this.written = "";
  }

  with(changes) {
    const { prompt, model, context, promptTokens, generated } = this;
    const copy = { prompt, model, context, promptTokens, generated: [...generated] };
    return new GeneratedText({ ...copy, before: this, ...changes });
  }

  get all() {
    return [...this.promptTokens.map((token) => ({ ...token, fromPrompt: true })), ...this.generated];
  }

  get ids() {
    return [...this.promptTokens, ...this.generated].map(({ id }) => id);
  }

  /** Whether the last token is beyond the context: the model cannot read it, so nothing can follow. */
  get full() {
    return this.context !== null && this.ids.length > this.context;
  }

  /** The ids that the model can read. */
  get readable() {
    return this.full ? this.ids.slice(0, this.context) : this.ids;
  }

  get text() {
    return this.promptTokens.map(({ text }) => text).join("") + this.generatedText;
  }

  get generatedText() {
    return this.generated.map(({ text, cut = 0 }) => text.slice(0, text.length - cut)).join("");
  }

  get sentence() {
    const { reason, generated, oldCount } = this;
    if (reason === null || (generated.length === 0 && reason === "failed")) return ""; // a notice shows the problem
    const before = reason === "linked" ? 0 : oldCount;
    const count = generated.length - before;
    const tokens = count === 1 ? "token" : "tokens";
    const counted = before ? `${count} new ${tokens} after ${before} earlier ones.` : `${count} ${tokens}.`;
    return [counted, ENDS[reason], this.full ? this.fullMessage : ""].filter(Boolean).join(" ");
  }

  get fullMessage() {
    return `The model's context of ${this.context.toLocaleString("en")} tokens is full.`;
  }

  /** The ids for a link: those of the prompt and the generated ones; * marks those chosen by hand. */
  get linkIds() {
    const ids = (tokens) => tokens.map(({ id, chosen }) => (chosen ? `${id}*` : id)).join(".");
    return `${ids(this.promptTokens)}_${ids(this.generated)}`;
  }

  /** The text of a link, with the tokens as the server reads them. */
  static fromLink(linkIds, tokens, text) {
    const [promptIds, generatedIds] = parseIds(linkIds);
    const chosen = (id) => (id.endsWith("*") ? { chosen: true } : {});
    const count = promptIds.length;
    const promptTokens = tokens
      .slice(0, count)
      .map(({ id, text, token }, index) => ({ id, text, token, ...chosen(promptIds[index]) }));
    const generated = tokens.slice(count).map((token, index) => ({ ...token, ...chosen(generatedIds[index]) }));
    return new GeneratedText({ ...text, promptTokens, generated, reason: "linked" });
  }

  /** Appends the tokens of an event. Returns the index of the first new token. */
  append(prompt, choice) {
    const before = this.promptTokens.length + this.generated.length;
    if (prompt && before === 0) this.promptTokens = prompt;
    this.generated.push(...(choice?.tokens ?? []));
    this.written += choice?.text ?? "";
    if (choice?.finish_reason) this.reason = choice.reason ?? choice.finish_reason;
    if (this.reason === "stop") {
      const tokenText = this.newTokens.map(({ text }) => text).join("");
      this.cutStopSequence(tokenText.length - this.written.length);
    }
    return before;
  }

  /** Gives the tokens the texts that they have in this sequence. Returns whether any was another before. */
  setTexts(texts) {
    const before = [...this.promptTokens, ...this.generated];
    const count = this.promptTokens.length;
    const all = before.map((token, index) => ({ ...token, text: texts[index] }));
    this.promptTokens = all.slice(0, count);
    this.generated = all.slice(count);
    return before.some(({ text }, index) => text !== texts[index]);
  }

  /** Marks the last characters, those of a stop sequence, as cut: they are not part of the text. */
  cutStopSequence(left) {
    for (let index = this.generated.length - 1; left > 0 && index >= this.oldCount; index--) {
      const { text } = this.generated[index];
      this.generated[index] = { ...this.generated[index], cut: Math.min(text.length, left) };
      left -= text.length;
    }
  }

  /** The tokens of the latest request. */
  get newTokens() {
    return this.generated.slice(this.oldCount);
  }

  /** The text up to a position, with another token there; a token of the prompt becomes the end of a new prompt. */
  upTo(position, token) {
    const { promptTokens, generated } = this;
    const count = promptTokens.length;
    if (position >= count) return this.with({ generated: [...generated.slice(0, position - count), token] });
    const { alternatives: _, ...bare } = token;
    const shorter = [...promptTokens.slice(0, position), bare];
    return this.with({ prompt: shorter.map(({ text }) => text).join(""), promptTokens: shorter, generated: [] });
  }

  /** Stores the text and its undo steps in the browser tab, for a reload. */
  store() {
    const texts = [];
    /** @type {any} */
    let text = this;
    for (; text && texts.length < DEPTH; text = text.before) {
      const { before, ...rest } = text;
      texts.push(rest);
    }
    for (let count = texts.length; count > 0; count = Math.floor(count / 2)) {
      try {
        sessionStorage.setItem(STORED, JSON.stringify(texts.slice(0, count)));
        return;
      } catch {
        // too large: store fewer
      }
    }
  }

  static stored() {
    try {
      const texts = JSON.parse(sessionStorage.getItem(STORED)) ?? [];
      return texts.reduceRight((before, text) => new GeneratedText({ ...text, before }), null);
    } catch {
      return null;
    }
  }
}
