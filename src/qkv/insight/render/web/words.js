// Words and their pieces as people see them.

import { element } from "qkv/elements.js";

const CONTROL =
  /[\p{Cc}\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]/gu;
// These join letters and emoji; anywhere else they are not seen.
const JOINED = "\\p{L}\\p{M}\\p{Extended_Pictographic}";
const JOINER = new RegExp(
  `(?<![${JOINED}\\ufe0f\\u{1f3fb}-\\u{1f3ff}])[\\u200c\\u200d]|[\\u200c\\u200d](?![${JOINED}])`,
  "gu",
);
const RIGHT_TO_LEFT = /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const LONGEST = 120; // characters of a label; all of the word is in its title

function named(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** A text in which nothing hides: spaces alone, controls and characters of no width are named. */
export function visible(text) {
  if (text === "") return "∅";
  if (/^[ \u00a0\u2000-\u200a\u3000]+$/u.test(text)) return "␣".repeat(Math.min(text.length, 8));
  return text.replace(CONTROL, named).replace(JOINER, named);
}

/** A text as it runs, with its spaces and line breaks; other controls and what has no width is named. */
export function running(text) {
  return text.replace(CONTROL, (sign) => (sign === "\n" || sign === "\t" ? sign : named(sign))).replace(JOINER, named);
}

/** A word in its own direction, whatever stands beside it. */
export function word(text, attributes = {}) {
  return element("bdi", attributes, visible(text));
}

/** A word where there is little room: long ones end in an ellipsis, and the title has all of it. */
export function label(text, made = element("bdi")) {
  const seen = visible(text);
  made.textContent = seen.length > LONGEST ? seen.slice(0, LONGEST) : seen;
  made.title = seen;
  made.className = "word";
  return made;
}

export function quoted(text) {
  const seen = visible(text);
  return `“${seen.length > LONGEST ? `${seen.slice(0, LONGEST)}…` : seen}”`;
}

export function direction(texts) {
  const first = texts.find((text) => /\p{L}/u.test(text)) ?? "";
  return RIGHT_TO_LEFT.test(first) ? "rtl" : "ltr";
}

/** Where the residual stream is: after the embedding, then after each block, counted from 0. An RNN has none. */
export function stage(number, count) {
  if (count === 1) return "output";
  return number === 0 ? "embedding" : `layer ${number - 1}`;
}

/** A word of several pieces as one text. */
export function whole(side, [text, places]) {
  return text || places.map((place) => side.tokens[place]).join("");
}

/** One side of a matrix in the words or the pieces that are shown. */
export class Names {
  constructor(side, joined) {
    this.side = side;
    this.joined = joined;
    this.texts = joined ? side.words.map((each) => whole(side, each)) : side.tokens;
    this.count = this.texts.length;
  }

  /** Where the word of a piece is. */
  of(piece) {
    const place = Math.min(piece, this.side.tokens.length - 1); // the other text may be longer
    return this.joined ? this.side.words.findIndex(([, places]) => places.includes(place)) : place;
  }

  /** The first piece of a word. */
  piece(index) {
    return this.joined ? this.side.words[index][1][0] : index;
  }
}
