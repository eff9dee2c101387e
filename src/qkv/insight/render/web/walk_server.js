// @ts-check
// The rest of the model under edits of one head, which only a server can compute.

import { decodeWalk, edited } from "qkv/walk_data.js";

/** Edits as the server reads them. */
function asRequest({ divisor, lifted, swapped, moved, weights }) {
  const rows = Object.entries(weights).map(([token, row]) => [token, Array.from(row)]);
  return {
    ...(divisor === null ? {} : { divisor }),
    ...(lifted ? { lift_mask: true } : {}),
    ...(swapped.length ? { swap_keys: swapped } : {}),
    ...(Object.keys(moved).length ? { move: moved } : {}),
    ...(rows.length ? { weights: Object.fromEntries(rows) } : {}),
  };
}

/** One request at a time; only the response to the latest edits counts. */
export class Recomputed {
  /** @type {any} */
  walk;
  /** @type {any} */
  next;
  /** @type {any} */
  problem;
  /** @type {any} */
  key;
  /** @type {any} */
  source;

  /** `ondone()` is called when a response or an error has come. */
  constructor(ondone) {
    this.ondone = ondone;
    this.clear();
  }

  clear() {
    Object.assign(this, { key: null, wanted: null, walk: null, next: undefined, problem: null });
  }

  /** Requests what the server makes of the edits, unless it is known. */
  ask(source, name, edits, position) {
    if (!source.rewalk || !edited(edits)) return this.clear();
    const request = asRequest(edits);
    const key = JSON.stringify([name, request, position]);
    if (this.key === key && this.source === source) return;
    Object.assign(this, { key, source, problem: null, wanted: { source, name, request, position, key } });
    if (!this.asking) this.run();
  }

  async run() {
    this.asking = true;
    while (this.wanted) {
      const { source, name, request, position, key } = this.wanted;
      this.wanted = null;
      const current = () => this.key === key && this.source === source;
      try {
        const { walk, next } = await source.rewalk(name, request, position);
        if (current()) Object.assign(this, { walk: decodeWalk(walk), next });
      } catch (error) {
        if (current()) Object.assign(this, { walk: null, next: undefined, problem: error.message });
      }
      if (current()) this.ondone();
    }
    this.asking = false;
  }
}
