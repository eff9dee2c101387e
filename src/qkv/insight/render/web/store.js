// Where the views get their data. A source knows where the data lies; the store decodes and remembers.
//
// A source has `data` (the names, the words, what there is), `bytes(name)`, which promises the bytes of a block, and
// `part(name)`, which promises a part of the data that is only read when it is shown. That of the standalone page is
// `embedded`; a page that is served fetches both.

import { decode, inflate, joined } from "qkv/matrix.js";

const REMEMBERED = 96 << 20; // bytes of decoded heads

let made = 0;

export class Store {
  constructor(source) {
    this.number = made++; // what was drawn from one store is not what another one has
    this.source = source;
    this.data = source.data;
    this.heads = new Map(); // from the one used longest ago to the latest
    this.overviews = new Map();
    this.parts = new Map();
  }

  attention(kind) {
    return this.data.attention.find((each) => each.kind === kind);
  }

  /** Must have come before anything is shown: all that `coarse` needs. */
  async open() {
    for (const each of this.data.attention) {
      this.overviews.set(each.kind, await inflate(await this.source.bytes(`${each.kind}.overview`)));
    }
  }

  /** A head as the overview has it: at once, but each cell is the highest of several where the text is long. */
  coarse(kind, layer, head) {
    const { overview, heads, shape, most } = this.attention(kind);
    const size = overview[0] * overview[1];
    const begin = (layer * heads + head) * size;
    const bytes = this.overviews.get(kind).subarray(begin, begin + size);
    return decode(bytes, "root8", overview, most, shape);
  }

  /** Promises the weights of one head, whole, or null where only the overview has the layer. */
  matrix(kind, layer, head, words = false) {
    const { layers, code, shape, most } = this.attention(kind);
    if (!layers.includes(layer)) return Promise.resolve(null);
    return this.remembered(kind, `${kind}.${layer}.${head}`, code, shape, most, words);
  }

  /** The same for the attribution, which is a matrix, too. */
  attribution(words = false) {
    const { code, shape, most } = this.data.attribution;
    return this.remembered(null, "attribution", code, shape, most, words);
  }

  remembered(kind, block, code, shape, most, words) {
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
    let kept = 0;
    for (const [other, { size: each }] of [...this.heads].reverse()) {
      kept += each;
      if (kept > REMEMBERED && other !== name) this.heads.delete(other);
    }
    return matrix;
  }

  async read(block, code, shape, most) {
    return decode(await inflate(await this.source.bytes(block)), code, shape, most).halve();
  }

  async inWords(kind, block, code, shape, most) {
    const pieces = await this.remembered(kind, block, code, shape, most, false);
    const { rows, columns } = kind === null ? this.data.attribution : this.attention(kind);
    return joined(pieces, this.data.sides[rows].words, this.data.sides[columns].words);
  }

  /** "next" or "lens": the guesses; "norms" where the data has none yet. */
  part(name) {
    if (!this.parts.has(name)) this.parts.set(name, this.source.part(name));
    return this.parts.get(name);
  }
}

/** The source of a standalone page: blocks of the page itself, read while the rest of it may still be loading. */
export function embedded(page = document) {
  async function block(name) {
    for (;;) {
      const found = page.getElementById(`qkv.${name}`);
      if (found && (found.nextElementSibling || page.readyState !== "loading")) return found.textContent;
      if (page.readyState !== "loading") throw new Error(`${name}: the page has no such block; it is not whole`);
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
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
