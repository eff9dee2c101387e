// @ts-check
// Tokens and words as text: hidden characters are made visible, and tokens that differ look different.

import { element } from "qkv/elements.js";

// Characters that print nothing, but for those that join letters and emoji or choose their form: see INVISIBLE.
const CONTROL =
  /[\p{Cc}\u2028\u2029\ufff9-\ufffb]|(?![\u200c\u200d\ufe0e\ufe0f])\p{Default_Ignorable_Code_Point}/gu;
// Zero-width joiners and variation selectors are part of what stands before them; anywhere else they are invisible.
const JOINED = "\\p{L}\\p{M}\\p{Extended_Pictographic}";
const INVISIBLE = new RegExp(
  [
    `(?<![${JOINED}\\ufe0f\\u{1f3fb}-\\u{1f3ff}])[\\u200c\\u200d]`,
    `[\\u200c\\u200d](?![${JOINED}])`,
    "(?<![\\p{Extended_Pictographic}0-9#*])[\\ufe0e\\ufe0f]",
  ].join("|"),
  "gu",
);
const SPACES = /[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]/gu; // look like a space, and are none
const RIGHT_TO_LEFT = /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const LONGEST = 120; // characters of a label; its title has the whole text
const MARKS = 8; // spaces that are marked one by one

function nameOf(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

function marks(spaces) {
  return "␣".repeat(Math.min(spaces.length, MARKS));
}

/**
 * A text without hidden characters: spaces at its ends, several in a row, controls and zero-width characters get
 * a name.
 * @param {string} text
 */
export function visible(text) {
  if (text === "") return "∅";
  const named = text.replace(SPACES, nameOf).replace(CONTROL, nameOf).replace(INVISIBLE, nameOf);
  const spaced = named.replace(/^ +| +$| {2,}/gu, marks);
  return /^\p{M}/u.test(spaced) ? `◌${spaced}` : spaced; // an accent needs a letter
}

/** A text with its spaces and line breaks; other controls and zero-width characters get a name. */
export function printable(text) {
  const shown = (char) => (char === "\n" || char === "\t" ? char : nameOf(char));
  return text.replace(CONTROL, shown).replace(INVISIBLE, nameOf);
}

/** A visible text as nodes: the marks of leading spaces are pale. */
function nodes(shown) {
  const spaces = /^␣+(?=[^␣])/u.exec(shown);
  if (!spaces) return [shown];
  return [element("span", { class: "space" }, spaces[0]), shown.slice(spaces[0].length)];
}

/** A token or word in its own direction, whatever is beside it. */
export function tokenText(text, attributes = {}) {
  return element("bdi", attributes, ...nodes(visible(text)));
}

/** A label for little room: a long one ends in an ellipsis, and its title has the whole text. */
export function label(text, node = element("bdi")) {
  const shown = visible(text);
  node.replaceChildren(...nodes(shown.length > LONGEST ? shown.slice(0, LONGEST) : shown));
  node.title = shown;
  node.className = "word";
  return node;
}

/** A token in quotation marks, exactly: “␣cat” is another token than “cat”. */
export function quoted(text) {
  const shown = visible(text);
  return `“${shown.length > LONGEST ? `${shown.slice(0, LONGEST)}…` : shown}”`;
}

/** A token in quotation marks inside a sentence that names its position: without the mark of its leading space. */
export function spoken(text) {
  return quoted(text.replace(/^ (?=[^ ])/u, ""));
}

/** The direction of a text by its first letter; null if it has none. */
export function directionOf(text) {
  if (!/\p{L}/u.test(text)) return null;
  return RIGHT_TO_LEFT.test(text) ? "rtl" : "ltr";
}

/** The direction of the first text that has a letter. */
export function direction(texts) {
  for (const text of texts) {
    const found = directionOf(text);
    if (found) return found;
  }
  return "ltr";
}

/** A name along the residual stream: embedding, then each block from 0. An RNN has its output alone. */
export function layerName(number, count = 0) {
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
