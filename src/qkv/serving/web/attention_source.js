// @ts-check
// The data source of the attention page: one response of /v1/attention, and further parts when they are shown.

import { fromBase64 } from "qkv/store.js";
import { fetchJson } from "./api.js";
import { withOwnTarget } from "./own_target.js";
import { withWalks } from "./walk_source.js";

const SHORT = 256; // tokens up to which the server computes the logit lens and norms
const ATTRIBUTED = 48; // tokens up to which it computes attribution
const MOST = 4; // tokens per character, at most
const LISTED = 5; // predictions that the views show

/** The first request: the overview of all heads, the weights of one layer, and the part of the open view. */
export function fetchAttention({ top, ...body }, layer, view = null) {
  const { text = body.texts?.join("") ?? body.source ?? "" } = body;
  // the part of a longer text is requested when its number of tokens is known
  const short = text.length * (Array.isArray(text) ? 1 : MOST) <= SHORT;
  const extra = short && (view === "lens" || view === "norms") ? { [view]: true } : {};
  return fetchJson("/v1/attention", { ...body, layers: [layer], ...extra, ...(short && top ? { top } : {}) });
}

/** The views that are missing, and why; the server computes some of the others when they are shown. */
function lackingOf(data, size, explains) {
  const missing = { ...data.lacking };
  const stacked = data.attention.some(({ kind }) => kind !== "cross"); // an RNN has no stack of blocks
  const limited = (most) => `Limited to ${most} tokens here; this text has ${size.toLocaleString("en")}.`;
  const offer = (view, most) => {
    if (size <= most) delete missing[view];
    else missing[view] = limited(most);
  };
  if (data.next && stacked) offer("lens", SHORT);
  if (stacked) offer("norms", SHORT);
  if (data.next || explains) offer("attribution", ATTRIBUTED);
  offer("model", SHORT);
  return missing;
}

/** What the view of the attribution reads before its weights: the rows and columns of the last kind of attention. */
function attributionOf({ attention, attribution }) {
  if (attribution || !attention.length) return attribution;
  const { rows, columns, shape, code } = attention.find(({ kind }) => kind === "cross") ?? attention[0];
  return { rows, columns, shape, code, most: 1 };
}

/** A source for store.js: other layers and the parts of a view are fetched when they are shown. */
export function sourceOf(response, body, explains = false) {
  const { data } = response;
  const { top: _, ...plain } = body;
  const blocks = { ...response.blocks };
  const coming = new Map();
  const further = withOwnTarget(plain, data);

  function once(name, fetched) {
    if (!coming.has(name)) {
      coming.set(name, fetched());
      coming.get(name).catch(() => coming.delete(name));
    }
    return coming.get(name);
  }

  const first = data.attention[0]?.layers[0] ?? 0;
  const fetchPart = (name) =>
    once(name, async () => fetchJson("/v1/attention", { ...(await further()), layers: [first], [name]: true }));
  const size = Math.max(...data.sides.map(({ tokens }) => tokens.length));
  const source = {
    data: {
      ...data,
      attention: data.attention.map((kind) => ({ ...kind, layers: [...Array(kind.depth).keys()] })),
      attribution: attributionOf(data),
      parts: data.next, // they come with the attribution
      lacking: lackingOf(data, size, explains),
    },

    async bytes(name) {
      if (!(name in blocks)) {
        const layer = Number(name.split(".")[1]);
        const fetchLayer = () => once(`layer ${layer}`, async () => fetchAttention(await further(), layer));
        Object.assign(blocks, (await (name === "attribution" ? fetchPart(name) : fetchLayer())).blocks);
      }
      return fromBase64(blocks[name]);
    },

    async part(name) {
      if (name === "next" && response.next) return response.next.map((guesses) => guesses.slice(0, LISTED));
      if (response[name]) return response[name];
      if (name === "parts") return (await fetchPart("attribution")).parts;
      const more = await fetchPart(name);
      return more[name] ?? more.data[name];
    },
  };
  return withWalks(source, further);
}
