// A text in the making: the tokens of its prompt, those that were said, why it ended, and the text before it.

const KEPT = "qkv.draft";
const DEPTH = 50; // texts that undo goes back

const ENDS = {
  stop: "It came to a stop text.",
  end: "It ended by itself.",
  length: "It has the length you asked for.",
  context: "The model's context is full.",
  deadline: "The time was up.",
  stopped: "You stopped it.",
  failed: "It broke off.",
};

export class Draft {
  constructor({ prompt, model, given = [], said = [], reason = null, before = null }) {
    Object.assign(this, { prompt, model, given, said, reason, before });
    this.old = said.length; // what stood there before
    this.written = "";
  }

  with(changes) {
    const { prompt, model, given, said } = this;
    return new Draft({ prompt, model, given, said: [...said], before: this, ...changes });
  }

  get all() {
    return [...this.given.map((token) => ({ ...token, given: true })), ...this.said];
  }

  get ids() {
    return [...this.given, ...this.said].map(({ id }) => id);
  }

  get text() {
    return this.given.map(({ text }) => text).join("") + this.saidText;
  }

  get saidText() {
    return this.said.map(({ text, over = 0 }) => text.slice(0, text.length - over)).join("");
  }

  get sentence() {
    const count = this.said.length;
    const ended = ENDS[this.reason];
    if (count === 0 && this.reason === "failed") return ""; // the problem says it
    return ended === undefined ? "" : `${count} ${count === 1 ? "token" : "tokens"}. ${ended}`;
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

  /** The same up to a place, where another token stands. */
  upTo(place, token) {
    const ofPrompt = Math.min(place, this.given.length);
    const given = this.given.slice(0, ofPrompt);
    return this.with({ given, said: [...this.said.slice(0, place - ofPrompt), token] });
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
