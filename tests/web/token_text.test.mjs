import assert from "node:assert/strict";
import { test } from "node:test";
import { Names, direction, directionOf, printable, quoted, spoken, visible } from "qkv/token_text.js";

const SHOWN = {
  "": "∅",
  cat: "cat",
  " cat": "␣cat",
  "  cat": "␣␣cat",
  "cat ": "cat␣",
  "a b": "a b",
  "a  b": "a␣␣b",
  " ": "␣",
  "   ": "␣␣␣",
  "\n": "↵",
  "\t": "⇥",
  "\0": "␀",
  "\u007f": "␡",
  "\u00a0": "⟨U+00A0⟩",
  "\u3000x": "⟨U+3000⟩x",
  "\u200b": "⟨U+200B⟩",
  "\u202eevil": "⟨U+202E⟩evil",
  "\ufe0f": "⟨U+FE0F⟩",
  "x\ufe0f": "x⟨U+FE0F⟩",
  "☺\ufe0f": "☺\ufe0f",
  "1\ufe0f": "1\ufe0f",
  "\ufe0e": "⟨U+FE0E⟩",
  "\u{1f469}\u200d\u{1f680}": "\u{1f469}\u200d\u{1f680}",
  "\u200d": "⟨U+200D⟩",
  "می\u200cخواهم": "می\u200cخواهم",
  "\u0301": "◌\u0301",
  "\u{e0041}": "⟨U+E0041⟩",
};

test("hidden characters get a name, and those that belong to a letter or an emoji stay", () => {
  for (const [text, shown] of Object.entries(SHOWN)) assert.equal(visible(text), shown, JSON.stringify(text));
});

test("tokens that differ look different", () => {
  const texts = Object.keys(SHOWN);
  assert.equal(new Set(texts.map(visible)).size, texts.length);
});

test("a text keeps its spaces and lines, a quotation is exact, a sentence leaves one space out", () => {
  assert.equal(printable(" a\n b\u200b"), " a\n b⟨U+200B⟩");
  assert.equal(quoted(" cat"), "“␣cat”");
  assert.equal(spoken(" cat"), "“cat”");
  assert.equal(spoken("  cat"), "“␣␣cat”");
  assert.equal(spoken(" "), "“␣”");
  assert.equal(quoted("x".repeat(500)).length, 123);
});

test("the direction is that of the first letter", () => {
  assert.equal(directionOf("…123"), null);
  assert.equal(directionOf("« שלום"), "rtl");
  assert.equal(direction(["12", "مرحبا", "hello"]), "rtl");
  assert.equal(direction(["?", "1"]), "ltr");
});

test("names of tokens and of words", () => {
  const side = { tokens: ["un", "able", " to"], words: [["unable", [0, 1]], ["to", [2]]] };
  const words = new Names(side, true);
  assert.deepEqual(words.texts, ["unable", "to"]);
  assert.deepEqual([words.indexOf(1), words.indexOf(9), words.firstToken(1)], [0, 1, 2]);
  assert.deepEqual(new Names(side, false).texts, side.tokens);
});
