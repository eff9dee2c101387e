// @ts-check
// The numbers of one head as the page gets them, and what becomes of them under edits; no part of the page is touched.
//
// Edits: { divisor, lifted, swapped: [[a, b], ...], moved: {token: position}, weights: {query: [numbers]} }.

import { fromBase64 } from "qkv/store.js";
import { alike, mixture, softmax, sum, terms, turned } from "qkv/walk_math.js";

const FARTHEST = 4096; // positions from the start to which a link moves a key
const DIVISORS = [0.01, 10_000]; // as the server allows

export const UNEDITED = { divisor: null, lifted: false, swapped: [], moved: {}, weights: {} };

export function edited({ divisor, lifted, swapped, moved, weights }) {
  const changes = [swapped.length, Object.keys(moved).length, Object.keys(weights).length];
  return divisor !== null || lifted || changes.some((count) => count > 0);
}

/** Edits as the end of an address has them: d1 (divisor), m (mask lifted), s1-5 (keys swapped), v3_40 (key moved). */
export function editsText({ divisor, lifted, swapped, moved }) {
  const parts = [
    ...(divisor === null ? [] : [`d${Number(divisor.toPrecision(4))}`]),
    ...(lifted ? ["m"] : []),
    ...swapped.map(([a, b]) => `s${a}-${b}`),
    ...Object.entries(moved).map(([at, position]) => `v${at}_${position}`),
  ];
  return parts.join(" ");
}

/** The edits of such a text, as far as the head has these tokens; a key is moved FARTHEST at most. */
export function editsFrom(text, count) {
  const edits = { ...UNEDITED, swapped: [], moved: {}, weights: {} };
  const numbers = (part, form) => form.exec(part)?.slice(1).map(Number) ?? null;
  for (const part of text.split(" ")) {
    const [divisor] = numbers(part, /^d(\d+(?:\.\d+)?)$/) ?? [];
    const swap = numbers(part, /^s(\d+)-(\d+)$/);
    const [at, position] = numbers(part, /^v(\d+)_(-?\d+)$/) ?? [];
    if (divisor >= DIVISORS[0] && divisor <= DIVISORS[1]) edits.divisor = divisor;
    if (part === "m") edits.lifted = true;
    if (swap?.every((token) => token < count) && swap[0] !== swap[1]) edits.swapped.push(swap);
    if (at < count) edits.moved[at] = Math.max(-FARTHEST, Math.min(FARTHEST, position));
  }
  return edited(edits) ? edits : UNEDITED;
}

/** A matrix as its rows, views of one array. */
export function rowsOf({ shape, type, data }) {
  const bytes = fromBase64(data);
  const numbers = type === "u1" ? bytes : new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  if (shape.length === 1) return numbers;
  const [count, width] = shape;
  return Array.from({ length: count }, (_, row) => numbers.subarray(row * width, (row + 1) * width));
}

const isMatrix = (part) => part !== null && typeof part === "object" && "shape" in part;

/** A block with its arrays decoded: each matrix is a list of rows. */
export function decodeWalk(block) {
  const walk = {};
  for (const [name, part] of Object.entries(block)) walk[name] = isMatrix(part) ? rowsOf(part) : part;
  for (const name of ["rotary", "by_distance"]) {
    if (!walk[name]) continue;
    walk[name] = { ...walk[name] };
    for (const [key, part] of Object.entries(walk[name])) if (isMatrix(part)) walk[name][key] = rowsOf(part);
  }
  return walk;
}

/** The index whose key stands at each position after the swaps. */
function swappedOrder(count, swapped) {
  const order = Array.from({ length: count }, (_, index) => index);
  for (const [a, b] of swapped) [order[a], order[b]] = [order[b], order[a]];
  return order;
}

/** The key of token `at` under edits: that of another token if swapped, turned to another position if moved. */
function keyOf(walk, order, moved, at) {
  const from = order[at];
  if (walk.rotary && at in moved) return turned(walk.rotary.key[from], walk.rotary.frequencies, moved[at]);
  return walk.key[from];
}

/** What positions add to the score of query `token` and key `at`, before a changed divisor. */
function biasAt(walk, token, at, moved) {
  if (!walk.bias) return 0;
  if (!(at in moved)) return walk.bias[token][at];
  const distance = token - moved[at];
  if (walk.slope) return -walk.slope * Math.abs(distance);
  if (!walk.by_distance) return walk.bias[token][at];
  const { first, bias } = walk.by_distance;
  return bias[token][knownDistance(walk, token, distance) - first];
}

/** The nearest distance, query position minus key position, whose bias the page has. */
export function knownDistance(walk, token, distance) {
  if (!walk.by_distance) return distance;
  const { first, bias } = walk.by_distance;
  return Math.max(first, Math.min(first + bias[token].length - 1, distance));
}

/** The distance of query `token` and key `at` under edits; a key that was swapped keeps its rotary position. */
export function distanceOf(walk, token, at, { moved, swapped }) {
  const own = walk.rotary ? swappedOrder(walk.key.length, swapped)[at] : at;
  return token - (moved[at] ?? own);
}

/** The score of query `token` and key `at` under edits, step by step and without the mask. */
function scoreParts(walk, token, at, order, { divisor: chosen, moved }) {
  const divisor = chosen ?? walk.divisor;
  const key = keyOf(walk, order, moved, at);
  const parts = terms(walk.query[token], key, walk.additive);
  const total = sum(parts);
  const factor = walk.score === "relative" ? walk.divisor / divisor : 1; // the divisor is also that of the bias
  return { key, terms: parts, sum: total, scaled: total / divisor, bias: factor * biasAt(walk, token, at, moved) };
}

/** The score that the table would show if the key stood at this distance. */
export function scoreAtDistance(walk, token, at, distance, edits = UNEDITED) {
  const moved = { ...edits.moved, [at]: token - distance };
  const order = swappedOrder(walk.key.length, edits.swapped);
  const { scaled, bias } = scoreParts(walk, token, at, order, { ...edits, moved });
  return scaled + bias;
}

/** Whether the position of a token can be changed in the equation itself. */
export function movable(walk) {
  return Boolean(walk.rotary || walk.slope || walk.by_distance);
}

/**
 * One query and all its keys, step by step.
 *
 * Each row has `key`, `terms` of the sum, `sum`, `scaled`, `bias`, `score` (-Infinity if hidden), `visible` and
 * `weight`; `output` is what the head hands on.
 */
export function headRow(walk, token, edits = UNEDITED) {
  const query = walk.query[token];
  const divisor = edits.divisor ?? walk.divisor;
  const order = swappedOrder(walk.key.length, edits.swapped);
  const known = walk.score !== "other";
  const rows = walk.key.map((_, at) => {
    const parts = scoreParts(walk, token, at, order, edits);
    const visible = edits.lifted || walk.visible[token][at] === 1;
    const score = !visible ? -Infinity : known ? parts.scaled + parts.bias : walk.scores[token][at];
    return { at, ...parts, visible, score, value: walk.value[at] };
  });
  const computed = known ? softmax(rows.map(({ score }) => score)) : walk.weights[token];
  const weights = Float64Array.from(edits.weights[token] ?? computed);
  const values = rows.map(({ value }) => value);
  const output = mixture(weights, values, walk.output[token].length);
  const weighted = rows.map((row) => ({ ...row, weight: weights[row.at] }));
  return { token, query, divisor, rows: weighted, weights, output, alike: alike(weights) };
}

/** The rows to list of many: those with the most weight, in order of the text; the others are folded. */
export function listed(weights, most, count) {
  const all = Array.from(weights, (_, index) => index);
  if (weights.length <= most) return all;
  const strongest = [...all].sort((a, b) => weights[b] - weights[a] || a - b).slice(0, count);
  return strongest.sort((a, b) => a - b);
}
