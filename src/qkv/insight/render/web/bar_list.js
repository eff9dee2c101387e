// @ts-check
// Rows of a label, a number and a bar: the one way in which the pages list weights and probabilities.

import { element, percent } from "qkv/elements.js";
import { quoted, tokenText } from "qkv/token_text.js";

/**
 * @typedef {object} BarRow
 * @property {string} text the label, shown as a token
 * @property {number} value the length of the bar, from 0 to 1
 * @property {number} [before] a second bar above: before a change, or before the sampling parameters
 * @property {string} [beforeShown] the number of the second bar, if it is to be read
 * @property {number | null} [position] the position of the token in the text
 * @property {boolean} [actual] whether it is the token of the text, which is outlined
 * @property {boolean} [out] whether it is filtered out, and pale
 * @property {string} [shown] a text instead of the percentage
 * @property {string} [name] what a screen reader says instead of the row
 * @property {string | number} [id] the id of the token, as data of its button
 * @property {() => void} [onpick] makes the row a button
 */

/**
 * @typedef {object} BarOptions
 * @property {string} [label] the name of the list for screen readers
 * @property {string} [kind] further classes of the list
 * @property {number | null} [others] the share of everything that is not listed, if there is any
 * @property {number | null} [othersBefore] the same of the second bars
 */

/** The share that is left by these values; null where nothing is left that could be read. */
export function left(values) {
  const rest = 1 - values.reduce((sum, value) => sum + value, 0);
  return rest >= 0.0005 ? rest : null;
}

/**
 * A list of bars; a list that was cut ends with the share of the others.
 * @param {BarRow[]} rows
 * @param {BarOptions} [options]
 */
export function barList(rows, options = {}) {
  const list = element("ol", { class: ["bars", options.kind].filter(Boolean).join(" "), "aria-label": options.label });
  fillBars(list, rows, options);
  return list;
}

/**
 * The same in a list that exists.
 * @param {HTMLElement} list
 * @param {BarRow[]} rows
 * @param {BarOptions} [options]
 */
export function fillBars(list, rows, options = {}) {
  const items = rows.map((row) => barRow(row));
  if (options.others || options.othersBefore) {
    const read = rows.some(({ beforeShown }) => beforeShown !== undefined);
    const before = read ? percent(options.othersBefore ?? 0) : undefined;
    items.push(othersRow(options.others ?? 0, options.othersBefore, before));
  }
  list.replaceChildren(...items);
}

/** The keys with the largest weights of a query, pairs of a column and a weight, of which `most` are listed. */
export function keyBars(names, strongest, most) {
  const rows = strongest.map(([column, value]) => ({
    text: names.texts[column],
    value,
    position: names.firstToken(column),
  }));
  return barList(rows, { others: strongest.length < most ? null : left(strongest.map(([, weight]) => weight)) });
}

/** Predictions, triples of a text, an id and a probability; `actual` is the id of the token of the text. */
export function guessBars(guesses, actual) {
  const rows = guesses.map(([text, id, value]) => ({ text, value, actual: id === actual }));
  return barList(rows, { others: left(rows.map(({ value }) => value)) });
}

/** @param {BarRow} row */
function barRow(row) {
  const number = row.shown ?? percent(row.value);
  const label = tokenText(row.text, { class: "word", title: row.text });
  const named = row.position === undefined || row.position === null ? label : withPosition(label, row.position);
  const parts = [named, element("span", { class: "number" }, number), bars(row.value, row.before)];
  if (row.beforeShown !== undefined) parts.splice(1, 0, element("span", { class: "raw" }, row.beforeShown));
  const current = row.actual ? "true" : null;
  if (!row.onpick) {
    const kinds = [row.actual ? "real" : "", row.out ? "out" : ""].filter(Boolean).join(" ");
    return element("li", { class: kinds || null, "aria-current": current, "aria-label": row.name }, ...parts);
  }
  const attributes = {
    type: "button",
    class: row.out ? "option out" : "option",
    "data-id": row.id,
    "aria-current": current,
    "aria-label": row.name ?? `${quoted(row.text)}, ${number}`,
    onclick: row.onpick,
  };
  return element("li", {}, element("button", attributes, ...parts));
}

/** Two tokens of a text may be equal: their positions tell them apart. */
function withPosition(label, position) {
  const place = element("span", { class: "place", title: `position ${position}` }, `·${position}`);
  return element("span", { class: "placed" }, label, place);
}

function othersRow(value, before, beforeShown) {
  const out = value === 0;
  return element(
    "li",
    { class: out ? "others out" : "others" },
    element("span", { class: "rest" }, "others"),
    ...(beforeShown === undefined ? [] : [element("span", { class: "raw" }, beforeShown)]),
    element("span", { class: "number" }, out ? "filtered out" : percent(value)),
    bars(value, before),
  );
}

function bars(value, before) {
  if (before === undefined) return bar("bar", value);
  return element("span", { class: "pairs" }, bar("bar unfiltered", before), bar("bar sampled", value));
}

function bar(kind, part) {
  const node = element("span", { class: kind, "aria-hidden": "true" });
  node.style.setProperty("--part", String(Math.min(1, Math.max(0, part))));
  return node;
}
