// @ts-check
// The weights of one head: decoded from bytes, looked up, reduced for drawing, joined from tokens to words.

import { pause } from "qkv/elements.js";

const BAND = 1 << 21; // cells that are computed before the browser may draw again

/** How a weight is encoded as a number. */
export const CODES = {
  linear16: { name: "linear16", steps: 65535, value: (number) => number / 65535 },
  root8: { name: "root8", steps: 255, value: (number) => (number / 255) ** 2 },
};

export class Matrix {
  /** `rows` and `columns` count tokens. With fewer numbers than tokens, each number is the maximum of several. */
  constructor(rows, columns, level, code, most = 1) {
    this.rows = rows;
    this.columns = columns;
    this.code = code;
    this.most = most;
    this.levels = [level];
    this.exact = level.rows === rows && level.columns === columns;
    this.values = Float32Array.from({ length: code.steps + 1 }, (_, number) => most * code.value(number));
  }

  value(row, column) {
    const { rows, columns, numbers } = this.levels[0];
    const at = Math.floor((row * rows) / this.rows) * columns + Math.floor((column * columns) / this.columns);
    return this.values[numbers[at]];
  }

  /** The weights of one query. */
  row(row) {
    return Float32Array.from({ length: this.columns }, (_, column) => this.value(row, column));
  }

  /** The keys with the largest weights of one query: pairs of a column and a weight, the largest first. */
  strongest(row, count, least = 0) {
    const largest = [];
    for (let column = 0; column < this.columns; column++) {
      const weight = this.value(row, column);
      if (weight <= least || (largest.length === count && weight <= largest[count - 1][1])) continue;
      let rank = largest.length;
      while (rank > 0 && largest[rank - 1][1] < weight) rank--;
      largest.splice(rank, 0, [column, weight]);
      if (largest.length > count) largest.pop();
    }
    return largest;
  }

  /** Halves the size repeatedly, each cell the maximum of four: a single strong cell stays visible. */
  async halve() {
    while (this.levels.at(-1).rows > 256 || this.levels.at(-1).columns > 256) {
      this.levels.push(await half(this.levels.at(-1)));
    }
    return this;
  }

  /** The finest level whose cells are a pixel or more; `pixels` is the size of a token's cell. */
  level(pixels) {
    return this.levels.find((level) => (pixels * this.columns) / level.columns >= 0.999) ?? this.levels.at(-1);
  }
}

async function half({ rows, columns, numbers }) {
  const height = Math.ceil(rows / 2);
  const width = Math.ceil(columns / 2);
  const halved = new numbers.constructor(height * width);
  for (let row = 0, since = 0; row < height; row++) {
    const upper = 2 * row * columns;
    const lower = 2 * row + 1 < rows ? upper + columns : upper;
    for (let column = 0; column < width; column++) {
      const left = 2 * column;
      const right = left + 1 < columns ? left + 1 : left;
      const above = Math.max(numbers[upper + left], numbers[upper + right]);
      const below = Math.max(numbers[lower + left], numbers[lower + right]);
      halved[row * width + column] = above > below ? above : below;
    }
    since += 4 * width;
    if (since > BAND) {
      since = 0;
      await pause();
    }
  }
  return { rows: height, columns: width, numbers: halved };
}

/** Decompresses zlib's format, as Python writes it. */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** `shape` is that of the numbers, [rows, columns]; `size` counts the tokens, which may be more. */
export function decode(bytes, code, shape, most = 1, size = shape) {
  const numbers = code === "linear16" ? new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2) : bytes;
  return new Matrix(...size, { rows: shape[0], columns: shape[1], numbers }, CODES[code], most);
}

/** Attention to a word is summed over its tokens, attention from it is averaged: rows still sum to 1. */
export async function joined(matrix, rowWords, columnWords) {
  const numbers = new Uint16Array(rowWords.length * columnWords.length);
  const code = CODES.linear16;
  const wordOf = new Int32Array(matrix.columns).fill(-1);
  columnWords.forEach(([, positions], word) => positions.forEach((position) => (wordOf[position] = word)));
  const { numbers: tokenNumbers } = matrix.levels[0];
  const sums = new Float64Array(columnWords.length);
  for (let word = 0, since = 0; word < rowWords.length; word++) {
    const positions = rowWords[word][1];
    sums.fill(0);
    for (const row of positions) {
      for (let column = 0; column < matrix.columns; column++) {
        if (wordOf[column] >= 0) sums[wordOf[column]] += matrix.values[tokenNumbers[row * matrix.columns + column]];
      }
    }
    for (let other = 0; other < columnWords.length; other++) {
      const weight = sums[other] / positions.length / matrix.most;
      numbers[word * columnWords.length + other] = Math.round(Math.min(1, weight) * code.steps);
    }
    since += positions.length * matrix.columns;
    if (since > BAND) {
      since = 0;
      await pause();
    }
  }
  const level = { rows: rowWords.length, columns: columnWords.length, numbers };
  return new Matrix(rowWords.length, columnWords.length, level, code, matrix.most).halve();
}
