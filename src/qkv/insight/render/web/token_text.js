// Tokens and words as text: hidden characters are made visible.

import { element } from "qkv/elements.js";

const CONTROL =
  /[\p{Cc}\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]/gu;
// These join letters and emoji; anywhere else they are invisible.
const JOINED = "\\p{L}\\p{M}\\p{Extended_Pictographic}";
const JOINER = new RegExp(
  `(?<![${JOINED}\\ufe0f\\u{1f3fb}-\\u{1f3ff}])[\\u200c\\u200d]|[\\u200c\\u200d](?![${JOINED}])`,
  "gu",
);
const RIGHT_TO_LEFT = /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const LONGEST = 120; // characters of a label; its title has the whole text

function nameOf(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** A text without hidden characters: lone spaces, controls and zero-width characters get a name. */
export function visible(text) {
  if (text === "") return "∅";
  if (/^[ \u00a0\u2000-\u200a\u3000]+$/u.test(text)) return "␣".repeat(Math.min(text.length, 8));
  return text.replace(CONTROL, nameOf).replace(JOINER, nameOf);
}

/** A text with its spaces and line breaks; other controls and zero-width characters get a name. */
export function printable(text) {
  const shown = (char) => (char === "\n" || char === "\t" ? char : nameOf(char));
  return text.replace(CONTROL, shown).replace(JOINER, nameOf);
}

/** A token or word in its own direction, whatever is beside it. */
export function tokenText(text, attributes = {}) {
  return element("bdi", attributes, visible(text));
}

/** A label for little room: a long one ends in an ellipsis, and its title has the whole text. */
export function label(text, node = element("bdi")) {
  const shown = visible(text);
  node.textContent = shown.length > LONGEST ? shown.slice(0, LONGEST) : shown;
  node.title = shown;
  node.className = "word";
  return node;
}

export function quoted(text) {
  const shown = visible(text);
  return `“${shown.length > LONGEST ? `${shown.slice(0, LONGEST)}…` : shown}”`;
}

export function direction(texts) {
  const first = texts.find((text) => /\p{L}/u.test(text)) ?? "";
  return RIGHT_TO_LEFT.test(first) ? "rtl" : "ltr";
}

/** A name along the residual stream: embedding, then each block from 0. An RNN has its output alone. */
export function layerName(number, count) {
  if (count === 1) return "output";
  return number === 0 ? "embedding" : `layer ${number - 1}`;
}

/** A word of several tokens as one text. */
export function wordText(side, [text, positions]) {
  return text || positions.map((position) => side.tokens[position]).join("");
}

/** One side of a matrix: the tokens, or the words they are joined to. */
export class Names {
  constructor(side, joined) {
    this.side = side;
    this.joined = joined;
    this.texts = joined ? side.words.map((word) => wordText(side, word)) : side.tokens;
    this.count = this.texts.length;
  }

  /** The index of a token, or of the word that it belongs to. */
  indexOf(token) {
    const position = Math.min(token, this.side.tokens.length - 1); // the other text may be longer
    return this.joined ? this.side.words.findIndex(([, positions]) => positions.includes(position)) : position;
  }

  /** The first token of the word with this index. */
  firstToken(index) {
    return this.joined ? this.side.words[index][1][0] : index;
  }
}
