// The data source of the attention page: one response of /v1/attention, and further parts when they are shown.

import { fromBase64 } from "qkv/store.js";
import { fetchJson } from "./api.js";
import { withWalks } from "./walk_source.js";

const SHORT = 256; // tokens up to which the server computes the logit lens and norms
const MOST = 4; // tokens per character, at most

/** The first request: the overview of all heads, the weights of one layer, and the part of the open view. */
export function fetchAttention(body, layer, view = null) {
  const { text = body.texts?.join("") ?? body.source ?? "" } = body;
  // the part of a longer text is requested when its number of tokens is known
  const short = text.length * (Array.isArray(text) ? 1 : MOST) <= SHORT;
  const extra = short && (view === "lens" || view === "norms") ? { [view]: true } : {};
  return fetchJson("/v1/attention", { ...body, layers: [layer], ...extra });
}

/** A source for store.js: other layers, the lens and the norms are fetched when they are shown. */
export function sourceOf(response, body) {
  const { data } = response;
  const blocks = { ...response.blocks };
  const coming = new Map();

  function once(name, fetched) {
    if (!coming.has(name)) {
      coming.set(name, fetched());
      coming.get(name).catch(() => coming.delete(name));
    }
    return coming.get(name);
  }

  const first = data.attention[0]?.layers[0] ?? 0;
  const missing = { ...data.lacking };
  const size = Math.max(...data.sides.map(({ tokens }) => tokens.length));
  const stacked = data.attention.some(({ kind }) => kind !== "cross"); // an RNN has no stack of blocks
  if (data.next && stacked && size <= SHORT) delete missing.lens;
  if (stacked && size <= SHORT) delete missing.norms;
  if (size <= SHORT) delete missing.model;
  const source = {
    data: {
      ...data,
      attention: data.attention.map((kind) => ({ ...kind, layers: [...Array(kind.depth).keys()] })),
      lacking: missing,
    },

    async bytes(name) {
      if (!(name in blocks)) {
        const layer = Number(name.split(".")[1]);
        Object.assign(blocks, (await once(`layer ${layer}`, () => fetchAttention(body, layer))).blocks);
      }
      return fromBase64(blocks[name]);
    },

    async part(name) {
      if (response[name]) return response[name];
      const more = await once(name, () => fetchJson("/v1/attention", { ...body, layers: [first], [name]: true }));
      return more[name] ?? more.data[name];
    },
  };
  return withWalks(source, body);
}
