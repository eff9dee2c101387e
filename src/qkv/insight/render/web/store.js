// @ts-check
// The data of the views. A source provides it; the store decodes and caches.
//
// A source has `data` (tokens, words, shapes), `bytes(name)`, which promises the bytes of a block, and `part(name)`,
// which promises a part of the data that is only read when it is shown. The source of a stand-alone page is `embedded`;
// that of a served page fetches both.

import { decode, inflate, joined } from "qkv/matrix.js";

/** @typedef {{ids: number[], tokens: string[], words: [string, number[]][]}} Side tokens, and the words they form */
/**
 * @typedef {object} Attention one kind of attention, as the page describes it
 * @property {string} kind
 * @property {number} rows the side of the queries, a number among the sides
 * @property {number} columns the side of the keys
 * @property {[number, number]} shape
 * @property {number[]} layers those whose weights are there
 * @property {number} depth
 * @property {number} heads
 * @property {boolean} causal
 * @property {"linear16" | "root8"} code
 * @property {number} most the largest weight
 * @property {[number, number]} overview
 * @property {number[][] | null} entropy
 * @property {number[][] | null} distance
 * @property {string[] | null} names
 * @property {any} [patterns]
 * @property {any} [telling]
 * @property {any} [sinks]
 */

const CACHE_SIZE = 96 << 20; // bytes of decoded heads

let stores = 0;

export class Store {
  constructor(source) {
    this.number = stores++; // tells the drawings of two stores apart
    this.source = source;
    this.data = source.data;
    this.heads = new Map(); // from the least to the most recently used
    this.overviews = new Map();
    this.parts = new Map();
  }

  attention(kind) {
    return this.data.attention.find((attention) => attention.kind === kind);
  }

  /** Loads the overviews, which `coarse` needs, before anything is shown. */
  async open() {
    for (const { kind } of this.data.attention) {
      this.overviews.set(kind, await inflate(await this.source.bytes(`${kind}.overview`)));
    }
  }

  /** A head from the overview, without waiting; for a long text each cell is the maximum of several. */
  coarse(kind, layer, head) {
    const { overview, heads, shape, most } = this.attention(kind);
    const size = overview[0] * overview[1];
    const begin = (layer * heads + head) * size;
    const bytes = this.overviews.get(kind).subarray(begin, begin + size);
    return decode(bytes, "root8", overview, most, shape);
  }

  /** Promises all weights of one head, or null if only the overview has the layer. */
  matrix(kind, layer, head, words = false) {
    const { layers, code, shape, most } = this.attention(kind);
    if (!layers.includes(layer)) return Promise.resolve(null);
    return this.cached(kind, `${kind}.${layer}.${head}`, code, shape, most, words);
  }

  /** Promises the attribution, which is a matrix, too. */
  attribution(words = false) {
    const { code, shape, most } = this.data.attribution;
    return this.cached(null, "attribution", code, shape, most, words);
  }

  cached(kind, block, code, shape, most, words) {
    const name = words ? `${block} in words` : block;
    const known = this.heads.get(name);
    if (known) {
      this.heads.delete(name);
      this.heads.set(name, known);
      return known.matrix;
    }
    const size = shape[0] * shape[1] * (code === "linear16" || words ? 2 : 1);
    const matrix = words ? this.inWords(kind, block, code, shape, most) : this.read(block, code, shape, most);
    this.heads.set(name, { matrix, size });
    matrix.catch(() => this.heads.delete(name));
    let total = 0;
    for (const [other, { size: bytes }] of [...this.heads].reverse()) {
      total += bytes;
      if (total > CACHE_SIZE && other !== name) this.heads.delete(other);
    }
    return matrix;
  }

  async read(block, code, shape, most) {
    return decode(await inflate(await this.source.bytes(block)), code, shape, most).halve();
  }

  async inWords(kind, block, code, shape, most) {
    const tokens = await this.cached(kind, block, code, shape, most, false);
    const { rows, columns } = kind === null ? this.data.attribution : this.attention(kind);
    return joined(tokens, this.data.sides[rows].words, this.data.sides[columns].words);
  }

  /** "next" or "lens": the predictions; "norms" if the data has none yet. */
  part(name) {
    if (!this.parts.has(name)) {
      const part = this.source.part(name);
      this.parts.set(name, part);
      part.catch(() => this.parts.delete(name)); // to be requested again
    }
    return this.parts.get(name);
  }
}

/** The store of a second model whose data is part of the first model's, or null. */
export function otherStore(source) {
  const data = source.data.against;
  return data ? new Store({ ...source, data, bytes: (name) => source.bytes(`against.${name}`) }) : null;
}

/** The source of a stand-alone page: blocks of the page itself, read while the rest may still be loading. */
export function embedded(page = document) {
  async function block(name) {
    for (;;) {
      const node = page.getElementById(`qkv.${name}`);
      if (node && (node.nextElementSibling || page.readyState !== "loading")) return node.textContent;
      if (page.readyState !== "loading") throw new Error(`${name}: the page has no such block; the file is incomplete`);
      await new Promise((resume) => setTimeout(resume, 15));
    }
  }
  return {
    data: JSON.parse(page.getElementById("qkv.data").textContent),
    bytes: async (name) => fromBase64(await block(name)),
    part: async (name) => JSON.parse(await block(name)),
  };
}

export function fromBase64(text) {
  const native = /** @type {any} */ (Uint8Array);
  if (native.fromBase64) return native.fromBase64(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
