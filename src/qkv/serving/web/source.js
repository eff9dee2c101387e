// Where the views of insight get their data here: one answer of /v1/attention, and what it left out when it is shown.

import { fromBase64 } from "qkv/store.js";
import { ask } from "./api.js";

const SHORT = 256; // tokens up to which the server makes a lens, and norms
const MOST = 4; // tokens of one character

/** The first answer: every head at a glance, one layer in full, and what the view that is open needs. */
export function looked(body, layer, view = null) {
  const { text = body.texts?.join("") ?? body.source ?? "" } = body;
  const short = text.length * (Array.isArray(text) ? 1 : MOST) <= SHORT; // else it is asked for when its size is known
  const also = short && (view === "lens" || view === "norms") ? { [view]: true } : {};
  return ask("/v1/attention", { ...body, layers: [layer], ...also });
}

/** A source as store.js wants it: other layers, the lens and the norms are fetched when someone looks. */
export function sourceOf(answer, body) {
  const { data } = answer;
  const blocks = { ...answer.blocks };
  const coming = new Map();

  function once(name, fetched) {
    if (!coming.has(name)) {
      coming.set(name, fetched());
      coming.get(name).catch(() => coming.delete(name));
    }
    return coming.get(name);
  }

  const first = data.attention[0]?.layers[0] ?? 0;
  const there = { ...data.lacking };
  const size = Math.max(...data.sides.map(({ tokens }) => tokens.length));
  const stacked = data.attention.some(({ kind }) => kind !== "cross"); // an RNN has none
  if (data.next && stacked && size <= SHORT) delete there.lens;
  if (stacked && size <= SHORT) delete there.norms;
  return {
    data: {
      ...data,
      attention: data.attention.map((each) => ({ ...each, layers: Array.from({ length: each.depth }, (_, at) => at) })),
      lacking: there,
    },

    async bytes(name) {
      if (!(name in blocks)) {
        const layer = Number(name.split(".")[1]);
        Object.assign(blocks, (await once(`layer ${layer}`, () => looked(body, layer))).blocks);
      }
      return fromBase64(blocks[name]);
    },

    async part(name) {
      if (answer[name]) return answer[name];
      const more = await once(name, () => ask("/v1/attention", { ...body, layers: [first], [name]: true }));
      return more[name] ?? more.data[name];
    },
  };
}
