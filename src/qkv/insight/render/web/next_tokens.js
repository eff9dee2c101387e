// @ts-check
// Predicted next tokens: the text, and for the chosen token the likeliest predictions with their probabilities.

import { guessBars } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { TokenStrip } from "qkv/token_strip.js";
import { quoted, tokenText } from "qkv/token_text.js";

export class NextTokens {
  constructor(page) {
    this.page = page;
    this.title = page.store.data.follows ? "Next token" : "Predictions";
    this.strip = new TokenStrip("The text; choose a token", (token) => page.set({ token }));
    this.heading = element("h2");
    this.list = element("div");
    this.about = element("p", { class: "note" });
    this.element = element(
      "section",
      { class: "view beside" },
      element("div", { class: "main" }, this.about, this.strip.element),
      element("aside", { class: "side" }, this.heading, this.list),
    );
    this.strip.element.classList.add("large");
    this.strip.element.addEventListener("pointerover", (event) => {
      const piece = event.target.closest("[data-position]");
      if (piece) this.page.setStatus(this.sentence(Number(piece.dataset.position)));
    });
  }

  async show(state) {
    const { store, colours } = this.page;
    const { follows, text } = store.data;
    const guesses = await store.part("next");
    if (this.page.store !== store) return; // the text has changed meanwhile
    this.guesses = guesses;
    this.side = store.data.sides[text];
    this.strip.show(this.side);
    this.strip.shade(
      this.guesses.map(([first]) => first[2]),
      colours,
    );
    const more = colours.theme === "dark" ? "brighter" : "darker";
    const predicted = follows ? "the next token" : "the token at that position";
    this.about.textContent = `The ${more} a token, the higher the probability of the best prediction of ${predicted}.`;
    const position = Math.min(state.token ?? this.side.tokens.length - 1, this.side.tokens.length - 1);
    this.strip.mark(position);
    const token = tokenText(this.side.tokens[position], { class: "word" });
    this.heading.replaceChildren(...(follows ? ["After ", token] : ["At the position of ", token]));
    const actual = this.side.ids[follows ? position + 1 : position];
    this.list.replaceChildren(
      guessBars(this.guesses[position], actual),
      ...(actual === undefined ? [] : [element("p", { class: "note" }, ...this.actualToken(position, actual))]),
    );
    this.page.setStatus(this.sentence(position));
  }

  actualToken(position, id) {
    if (this.guesses[position].some((guess) => guess[1] === id)) return ["Outlined: the token of the text."];
    const token = this.side.tokens[this.page.store.data.follows ? position + 1 : position];
    return ["The text has ", tokenText(token, { class: "word" }), ", which is not among them."];
  }

  sentence(position) {
    const [text, , probability] = this.guesses[position][0];
    const where = this.page.store.data.follows ? "After" : "At the position of";
    return `${where} ${quoted(this.side.tokens[position])}: ${quoted(text)}, ${percent(probability)}`;
  }
}
