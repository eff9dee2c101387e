// @ts-check
// The matrix that is shown: of one head, or the mean of several; with or without the tokens that can be left out.

import { leftColumns, withoutColumns } from "qkv/left_out.js";
import { CODES, Matrix } from "qkv/matrix.js";

const KEPT = 12; // computed matrices of a store

const computed = new WeakMap(); // from stores to promises by name

function once(store, name, compute) {
  if (!computed.has(store)) computed.set(store, new Map());
  const known = computed.get(store);
  if (!known.has(name)) known.set(name, compute());
  const promise = known.get(name);
  known.delete(name);
  known.set(name, promise);
  if (known.size > KEPT) known.delete(known.keys().next().value);
  promise.catch(() => known.delete(name));
  return promise;
}

/** Promises the matrix of the state, or that of another head; null if the page has only its overview. */
export function shownMatrix(page, state, site = null, store = page.store) {
  const attention = store.attention(state.kind);
  const { columns } = page.names(state.kind);
  const mean = site === null ? state.mean : null;
  const [layer, head] = site ?? [state.layer, state.head];
  const name = JSON.stringify([state.kind, mean === "all" ? "all" : layer, mean ?? head, columns.joined]);
  const whole = () => once(store, name, () => plain(store, attention, mean, layer, head, columns.joined));
  if (!state.without) return mean === null ? store.matrix(state.kind, layer, head, columns.joined) : whole();
  return once(store, `${name} without`, async () => {
    const matrix = await whole();
    return matrix && withoutColumns(matrix, leftColumns(attention, columns, state));
  });
}

async function plain(store, attention, mean, layer, head, words) {
  const { kind, heads, layers, code, shape, most } = attention;
  if (mean === "all") return store.cached(kind, `${kind}.mean`, code, shape, most, words);
  if (mean === null) return store.matrix(kind, layer, head, words);
  if (!layers.includes(layer)) return null;
  const sites = Array.from({ length: heads }, (_, number) => store.matrix(kind, layer, number, words));
  return meanOf(await Promise.all(sites));
}

/** The mean of matrices of one shape. */
export function meanOf(matrices) {
  const { rows, columns, most } = matrices[0];
  const sums = new Float64Array(rows * columns);
  for (const matrix of matrices) {
    const { numbers } = matrix.levels[0];
    for (let at = 0; at < sums.length; at++) sums[at] += matrix.values[numbers[at]];
  }
  const code = CODES.linear16;
  const scale = code.steps / (most * matrices.length);
  const numbers = Uint16Array.from(sums, (sum) => Math.round(sum * scale));
  return new Matrix(rows, columns, { rows, columns, numbers }, code, most).halve();
}

/** The name of what is shown if it is a mean. */
export function meanName(attention, state) {
  if (state.mean === "all") return `mean of all ${attention.depth * attention.heads} heads`;
  return `layer ${state.layer}, mean of ${attention.heads} heads`;
}
