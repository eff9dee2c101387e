// What comes next: the text, and for the chosen word the tokens the model finds likeliest, with their probabilities.

import { element, percent } from "qkv/elements.js";
import { bars } from "qkv/head.js";
import { Strip } from "qkv/strip.js";
import { quoted, word } from "qkv/words.js";

export class Next {
  constructor(page) {
    this.page = page;
    this.title = page.store.data.follows ? "Next word" : "Each word";
    this.strip = new Strip("The text; choose a word", (token) => page.set({ token }));
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
      const piece = event.target.closest("[data-place]");
      if (piece) this.page.say(this.sentence(Number(piece.dataset.place)));
    });
  }

  async show(state) {
    const { store, colours } = this.page;
    const { follows, text } = store.data;
    const guesses = await store.part("next");
    if (this.page.store !== store) return; // the text is another by now
    this.guesses = guesses;
    this.side = store.data.sides[text];
    this.strip.show(this.side);
    this.strip.shade(
      this.guesses.map(([first]) => first[2]),
      colours,
    );
    const more = colours.theme === "dark" ? "brighter" : "darker";
    this.about.textContent =
      `The ${more} a word, the surer the model is of what ${follows ? "follows it" : "stands there"}.`;
    const place = Math.min(state.token ?? this.side.tokens.length - 1, this.side.tokens.length - 1);
    this.strip.mark(place);
    const said = word(this.side.tokens[place], { class: "word" });
    this.heading.replaceChildren(...(follows ? ["After ", said] : ["In the place of ", said]));
    const real = this.side.ids[follows ? place + 1 : place];
    this.list.replaceChildren(
      bars(this.guesses[place].map(([text, id, probability]) => [text, probability, id === real])),
      ...(real === undefined ? [] : [element("p", { class: "note" }, ...this.real(place, real))]),
    );
    this.page.say(this.sentence(place));
  }

  real(place, id) {
    if (this.guesses[place].some((guess) => guess[1] === id)) return ["The outlined one is what the text says."];
    const there = this.side.tokens[this.page.store.data.follows ? place + 1 : place];
    return ["The text says ", word(there, { class: "word" }), ", which is not among them."];
  }

  sentence(place) {
    const [text, , probability] = this.guesses[place][0];
    const where = this.page.store.data.follows ? "After" : "In the place of";
    return `${where} ${quoted(this.side.tokens[place])}: ${quoted(text)}, ${percent(probability)}`;
  }
}
