// @ts-check
// Leaving out the first token and special tokens: their columns are empty, and each row is rescaled to 100%.

import { pause } from "qkv/elements.js";
import { CODES, Matrix } from "qkv/matrix.js";
import { quoted } from "qkv/token_text.js";

const NOTHING = 0.001; // a row with less weight on the other keys stays empty
const BAND = 1 << 21; // cells that are computed before the browser may draw again

/** The columns that are left out: tokens, or the words that these belong to. */
export function leftColumns(attention, columns, state) {
  return new Set(state.without ? attention.sinks.map((position) => columns.indexOf(position)) : []);
}

/** The matrix without these columns. */
export async function withoutColumns(matrix, left) {
  const { rows, columns } = matrix;
  const numbers = new Uint16Array(rows * columns);
  const code = CODES.linear16;
  for (let row = 0; row < rows; row++) {
    const weights = matrix.row(row);
    let rest = 0;
    for (let column = 0; column < columns; column++) if (!left.has(column)) rest += weights[column];
    if (rest > NOTHING) {
      for (let column = 0; column < columns; column++) {
        if (left.has(column)) continue;
        numbers[row * columns + column] = Math.round(Math.min(1, weights[column] / rest) * code.steps);
      }
    }
    if ((row * columns) % BAND > ((row + 1) * columns) % BAND) await pause();
  }
  return new Matrix(rows, columns, { rows, columns, numbers }, code).halve();
}

/** The tokens that are left out, each once: “[CLS]” and “[SEP]”. */
export function sinkNames(attention, side) {
  const names = [...new Set(attention.sinks.map((position) => side.tokens[position]))].map(quoted);
  if (names.length > 3) return "The first token and special tokens";
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : (names[0] ?? "");
}

/** What was left out, with its share of the weight of the shown heads. */
export function toldLeftOut(attention, side, state, all = false) {
  if (!state.without || !attention.sunk) return "";
  const mean = (shares) => shares.reduce((sum, share) => sum + share, 0) / shares.length;
  let share = attention.sunk[state.layer][state.head];
  let of = "this head";
  if (all || state.mean === "all") {
    [share, of] = [mean(attention.sunk.flat()), "all heads"];
  } else if (state.mean === "layer") {
    [share, of] = [mean(attention.sunk[state.layer]), "this layer"];
  }
  const verb = new Set(attention.sinks.map((position) => side.tokens[position])).size > 1 ? "take" : "takes";
  return `Left out: ${sinkNames(attention, side)} ${verb} ${Math.round(100 * share)}% of the weight of ${of}.`;
}
