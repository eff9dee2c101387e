// @ts-check
// The numbers of one head for the walk, fetched from /v1/walk: as they are, or under edits of the equation.

import { fetchJson } from "./api.js";

const MOST = 256; // tokens of a text, as the server allows

/**
 * The source with blocks `walk.KIND.LAYER.HEAD`, and with `rewalk`, which promises a head under edits.
 *
 * `bodyOf()` promises the text as /v1/walk reads it.
 */
export function withWalks(source, bodyOf) {
  const { data } = source;
  const size = Math.max(...data.sides.map(({ tokens }) => tokens.length));
  const can = data.attention.length > 0 && size <= MOST;
  const { walk: reason, ...lacking } = data.lacking;
  if (!can && data.attention.length) lacking.walk = `Limited to ${MOST} tokens; this text has ${size}`;
  else if (!can) lacking.walk = reason;
  const kinds = Object.fromEntries(data.attention.map(({ kind }) => [kind, { heads: null }]));

  async function fetchWalk(name, more = {}) {
    const [, kind, layer, head] = name.split(".");
    const body = await bodyOf();
    return fetchJson("/v1/walk", { ...body, kind, layer: Number(layer), head: Number(head), ...more });
  }

  return {
    ...source,
    data: { ...data, walk: can ? kinds : null, lacking },

    part: (name) => (name.startsWith("walk.") ? fetchWalk(name).then(({ walk }) => walk) : source.part(name)),

    /** The walk under edits, and the next-token probabilities before and after. */
    rewalk: (name, edits, position) => fetchWalk(name, { edits, position }),
  };
}
