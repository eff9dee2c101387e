// A text in the making: the tokens of its prompt, those that were said, why it ended, and the text before it.

const KEPT = "qkv.draft";
const DEPTH = 50; // texts that undo goes back

const ENDS = {
  stop: "It came to a stop text.",
  end: "It ended by itself.",
  length: "That is the length you asked for.",
  deadline: "The time was up.",
  stopped: "You stopped it.",
  failed: "It broke off.",
  linked: "They came with the link.",
};

/** The ids of a link as two lists of texts: those of the prompt, and those that were said. */
export function readSpelled(spelled) {
  return spelled.split("_").map((part) => part.split(".").filter((each) => each !== ""));
}

export class Draft {
  /** `context`: the model's, null where it has no end; `off`: the heads without which it was written; `made`: what was
   * asked, as long as asking that again gives this text; `old`: how many of `said` stood there before. */
  constructor({ prompt, model, context = null, given = [], said = [], reason = null, before = null, ...how }) {
    Object.assign(this, { prompt, model, context, given, said, reason, before });
    Object.assign(this, { off: "", made: null, old: said.length }, how);
    this.written = "";
  }

  with(changes) {
    const { prompt, model, context, given, said } = this;
    return new Draft({ prompt, model, context, given, said: [...said], before: this, ...changes });
  }

  get all() {
    return [...this.given.map((token) => ({ ...token, given: true })), ...this.said];
  }

  get ids() {
    return [...this.given, ...this.said].map(({ id }) => id);
  }

  /** Whether the last token has no place any more: nobody can read it, so nothing comes after it. */
  get full() {
    return this.context !== null && this.ids.length > this.context;
  }

  /** As much as the model can read. */
  get readable() {
    return this.full ? this.ids.slice(0, this.context) : this.ids;
  }

  get text() {
    return this.given.map(({ text }) => text).join("") + this.saidText;
  }

  get saidText() {
    return this.said.map(({ text, over = 0 }) => text.slice(0, text.length - over)).join("");
  }

  get sentence() {
    const { reason, said, old } = this;
    if (reason === null || (said.length === 0 && reason === "failed")) return ""; // the problem says it
    const [count, kept] = reason === "linked" ? [said.length, 0] : [said.length - old, old];
    const tokens = count === 1 ? "token" : "tokens";
    const counted = kept ? `${count} new ${tokens} after ${kept} that stood there.` : `${count} ${tokens}.`;
    return [counted, ENDS[reason], this.full ? this.fullness : ""].filter(Boolean).join(" ");
  }

  get fullness() {
    return `The model's context of ${this.context.toLocaleString("en")} tokens is full.`;
  }

  /** For a link: which ids of the prompt, which said, and which of these chosen by hand. */
  get spelled() {
    const ids = (tokens) => tokens.map(({ id, chosen }) => (chosen ? `${id}*` : id)).join(".");
    return `${ids(this.given)}_${ids(this.said)}`;
  }

  /** Of a link, with the tokens as the server reads them. */
  static linked(spelled, tokens, draft) {
    const [given, said] = readSpelled(spelled);
    const chosen = (places, at) => (places[at].endsWith("*") ? { chosen: true } : {});
    const of = tokens.map((token, place) =>
      place < given.length
        ? { id: token.id, text: token.text, token: token.token, ...chosen(given, place) }
        : { ...token, ...chosen(said, place - given.length) },
    );
    return new Draft({ ...draft, given: of.slice(0, given.length), said: of.slice(given.length), reason: "linked" });
  }

  /** News from the server. Says from which place on there is something new. */
  hear(prompt, choice) {
    const before = this.given.length + this.said.length;
    if (prompt && before === 0) this.given = prompt;
    this.said.push(...(choice?.tokens ?? []));
    this.written += choice?.text ?? "";
    if (choice?.finish_reason) this.reason = choice.reason ?? choice.finish_reason;
    if (this.reason === "stop") this.over(this.written.length - this.news.map(({ text }) => text).join("").length);
    return before;
  }

  /** The tokens of a stop text were said, but are none of the text: so many characters too many, as a minus. */
  over(left) {
    for (let place = this.said.length - 1; left < 0 && place >= this.old; place--) {
      const { text } = this.said[place];
      this.said[place] = { ...this.said[place], over: Math.min(text.length, -left) };
      left += text.length;
    }
  }

  /** What was said since this draft began. */
  get news() {
    return this.said.slice(this.old);
  }

  /** The same up to a place, where another token stands: the end of another prompt, where it is one of the prompt. */
  upTo(place, token) {
    const { given, said } = this;
    if (place >= given.length) return this.with({ said: [...said.slice(0, place - given.length), token] });
    const { alternatives: _, ...bare } = token;
    const kept = [...given.slice(0, place), bare];
    return this.with({ prompt: kept.map(({ text }) => text).join(""), given: kept, said: [] });
  }

  /** In the tab's own memory: a reload loses nothing. */
  keep() {
    const texts = [];
    for (let each = this; each && texts.length < DEPTH; each = each.before) {
      const { before, ...rest } = each;
      texts.push(rest);
    }
    for (let count = texts.length; count > 0; count = Math.floor(count / 2)) {
      try {
        sessionStorage.setItem(KEPT, JSON.stringify(texts.slice(0, count)));
        return;
      } catch {
        // too much of it: keep fewer
      }
    }
  }

  static kept() {
    try {
      const texts = JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
      return texts.reduceRight((before, each) => new Draft({ ...each, before }), null);
    } catch {
      return null;
    }
  }
}
