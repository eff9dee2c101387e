// The keys and what the views mean.

import { element } from "qkv/elements.js";

const KEYS = [
  ["← →", "another head; where there are no heads, another word"],
  ["↑ ↓", "another layer"],
  ["n p", "the next word, the one before; Esc lets go of it"],
  ["w", "pieces or whole words"],
  ["a", "another kind of attention"],
  ["k", "keep this head among the lines"],
  ["Shift and arrows", "walk from cell to cell of the heat map; Enter pins the row"],
  ["+ − 0", "larger, smaller, all of the heat map (or wheel, drag, two fingers)"],
  ["Enter", "in all heads: open the head"],
  ["t", "dark or light"],
  ["?", "this help"],
];

export class Help {
  constructor(views) {
    const line = (keys, meaning) => [
      element(
        "dt",
        {},
        ...keys.split(" ").map((key) => (/^[a-z]{3,}$/.test(key) ? `${key} ` : element("kbd", {}, key))),
      ),
      element("dd", {}, meaning),
    ];
    this.element = element(
      "dialog",
      { class: "help", "aria-labelledby": "help-title" },
      // the focus is at the top: the button would scroll to the end
      element("h2", { id: "help-title", tabindex: -1, autofocus: true }, "Keys"),
      element(
        "dl",
        {},
        ...views.flatMap((title, number) => line(String(number + 1), title)),
        ...KEYS.flatMap(([keys, meaning]) => line(keys, meaning)),
      ),
      element(
        "p",
        {},
        "A row is a word that looks, a column a word that is looked at: the weights of a row sum to 100%. ",
        "Joined to words, what the pieces of a word get is summed, and what they give is averaged. ",
        "The address of the page holds what you see: copy it to show the same again.",
      ),
      element("button", { type: "button", onclick: () => this.element.close() }, "Close"),
    );
  }

  get open() {
    return this.element.open;
  }

  show() {
    this.element.showModal();
  }
}
