// @ts-check
// The names of heads: what each does in this text, as its name, as a sentence and in few letters.

import { quoted } from "qkv/token_text.js";

// In the order in which they are listed.
const SHORT = {
  induction: "ind",
  subject: "subj",
  same: "same",
  previous: "prev",
  next: "next",
  "one token": "one",
  sink: "sink",
  self: "self",
  first: "first",
  special: "spec",
};

/** The pattern of a head as {name, share, token, short}, or null if it has no name. */
export function patternOf(attention, side, layer, head) {
  const pattern = attention.patterns?.[layer]?.[head];
  if (!pattern) return null;
  const [name, share, position] = pattern;
  const token = position === null ? null : side.tokens[position].trim() || side.tokens[position];
  return { name, share, token, short: SHORT[name] ?? name };
}

/** The name with the token that it is about: subject (cat). */
export function fullName({ name, token }) {
  return token === null ? name : `${name} (${token})`;
}

/** What the head does, as a sentence; empty for a head without a name. */
export function sentenceOf(attention, pattern) {
  if (!pattern) return "";
  const measured = pattern.token === null && attention.measured?.includes(pattern.name); // else of this text
  const share = `${Math.round(100 * pattern.share)}%${measured ? " in the measured texts" : ""}`;
  const about = pattern.token === null ? "" : quoted(pattern.token);
  return attention.sentences[pattern.name].replace("{share}", share).replace("“{token}”", () => about);
}

/** The names that occur, with the number of heads of each; heads without a name are not counted. */
export function countNames(attention) {
  const counts = new Map(Object.keys(SHORT).map((name) => [name, 0]));
  for (const pattern of attention.patterns?.flat() ?? []) {
    if (pattern) counts.set(pattern[0], (counts.get(pattern[0]) ?? 0) + 1);
  }
  return [...counts].filter(([, count]) => count > 0);
}

/** All heads as [layer, head] in the chosen order. */
export function ordered(attention, sort) {
  const { depth, heads, patterns, telling } = attention;
  const numbers = sort === "layer" || !telling ? [...Array(depth * heads).keys()] : [...telling];
  /** @type {[number, number][]} */
  const sites = numbers.map((number) => [Math.floor(number / heads), number % heads]);
  if (sort !== "name" || !patterns) return sites;
  const names = Object.keys(SHORT);
  const rank = ([layer, head]) => {
    const pattern = patterns[layer][head];
    return pattern ? names.indexOf(pattern[0]) : names.length;
  };
  const share = ([layer, head]) => patterns[layer][head]?.[1] ?? 0;
  return sites.sort((one, other) => rank(one) - rank(other) || share(other) - share(one));
}
