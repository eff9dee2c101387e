// @ts-check
// The help dialog: the keys, and how to read the views.

import { element } from "qkv/elements.js";

const KEYS = [
  ["← →", "previous or next head; in views without heads, token"],
  ["↑ ↓", "previous or next layer"],
  ["Walk: arrows", "← → previous or next step, ↑ ↓ token; with Shift: number and row"],
  ["n p", "next or previous token; Esc clears the choice"],
  ["w", "tokens or whole words"],
  ["a", "next kind of attention"],
  ["k", "add this head to the lines, or remove it"],
  ["Shift and arrows", "move from cell to cell of the heat map; Enter pins the row"],
  ["+ − 0", "zoom in, zoom out, show all of the heat map (or Ctrl and wheel, drag, two fingers)"],
  ["Enter", "in all heads: open the head"],
  ["t", "dark or light theme"],
  ["f", "presenter mode: large type, ← → the story or the steps of the view, Esc leaves"],
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
        "Rows of a heat map are queries, columns are keys: the attention weights of a row sum to 100%. ",
        "For whole words, attention to a word is summed over its tokens; attention from a word is averaged. ",
        "“What is this?” above a view explains it and shows its formula. ",
        "The mark ␣ is a space that belongs to a token, and ·3 is the token at position 3, counted from 0. ",
        "The address of the page holds its state: copy it to share the view.",
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
