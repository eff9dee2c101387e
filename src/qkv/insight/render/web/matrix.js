// The weights of one head: read from bytes, looked up, made smaller for drawing, joined from pieces to words.

import { pause } from "qkv/elements.js";

const BAND = 1 << 21; // cells that are worked on before the browser may draw again

/** How a weight is written as a number. */
export const CODES = {
  linear16: { name: "linear16", steps: 65535, value: (number) => number / 65535 },
  root8: { name: "root8", steps: 255, value: (number) => (number / 255) ** 2 },
};

export class Matrix {
  /** `rows` and `columns` count words. With fewer numbers than words each stands for the highest of several. */
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

  /** What one word gives to every other. */
  row(row) {
    return Float32Array.from({ length: this.columns }, (_, column) => this.value(row, column));
  }

  /** What a word gives most to: pairs of a column and a weight, the highest first. */
  strongest(row, count, least = 0) {
    const found = [];
    for (let column = 0; column < this.columns; column++) {
      const weight = this.value(row, column);
      if (weight <= least || (found.length === count && weight <= found[count - 1][1])) continue;
      let place = found.length;
      while (place > 0 && found[place - 1][1] < weight) place--;
      found.splice(place, 0, [column, weight]);
      if (found.length > count) found.pop();
    }
    return found;
  }

  /** Halved and halved again, each cell the highest of four: a single strong cell is seen from afar. */
  async halve() {
    while (this.levels.at(-1).rows > 256 || this.levels.at(-1).columns > 256) {
      this.levels.push(await half(this.levels.at(-1)));
    }
    return this;
  }

  /** The finest level whose cells are a pixel or more; `pixels` is the size of a word's cell. */
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

/** Zlib's format, as Python wrote it. */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** `shape` is that of the numbers, [rows, columns]; `words` counts what they are about, where that is more. */
export function decode(bytes, code, shape, most = 1, words = shape) {
  const numbers = code === "linear16" ? new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2) : bytes;
  return new Matrix(...words, { rows: shape[0], columns: shape[1], numbers }, CODES[code], most);
}

/** To a word goes the sum of what its pieces get; from it the mean of what its pieces give: rows still sum to 1. */
export async function joined(matrix, rowWords, columnWords) {
  const numbers = new Uint16Array(rowWords.length * columnWords.length);
  const code = CODES.linear16;
  const wordOf = new Int32Array(matrix.columns).fill(-1);
  columnWords.forEach(([, places], word) => places.forEach((place) => (wordOf[place] = word)));
  const { numbers: pieces } = matrix.levels[0];
  const sums = new Float64Array(columnWords.length);
  for (let word = 0, since = 0; word < rowWords.length; word++) {
    const places = rowWords[word][1];
    sums.fill(0);
    for (const row of places) {
      for (let column = 0; column < matrix.columns; column++) {
        if (wordOf[column] >= 0) sums[wordOf[column]] += matrix.values[pieces[row * matrix.columns + column]];
      }
    }
    for (let other = 0; other < columnWords.length; other++) {
      const weight = sums[other] / places.length / matrix.most;
      numbers[word * columnWords.length + other] = Math.round(Math.min(1, weight) * code.steps);
    }
    since += places.length * matrix.columns;
    if (since > BAND) {
      since = 0;
      await pause();
    }
  }
  const level = { rows: rowWords.length, columns: columnWords.length, numbers };
  return new Matrix(rowWords.length, columnWords.length, level, code, matrix.most).halve();
}
