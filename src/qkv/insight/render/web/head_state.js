// @ts-check
// The part of the state that is about heads: what is left out, the mean, a second head, the order of the tiles.

export const HEAD_STATE = {
  without: false, // whether the first token and special tokens are left out
  sums: false, // whether a map has the sums of its rows and columns
  mean: null, // "layer" or "all" for the mean of heads instead of one
  compare: null, // a second head as [layer, head]
  difference: false, // whether the second map is the difference
  least: 0, // percent; smaller weights have no line
  sort: "layer", // the order of all heads: "layer", "name" or "telling"
  only: null, // the name of the heads that are shown
};

const CHOICES = { mean: ["layer", "all"], sort: ["layer", "name", "telling"] };
const FLAGS = ["without", "sums", "difference"];

/** Adds what differs from the default to the parts of an address. */
export function writeHeadState(state, parts) {
  for (const name of FLAGS) if (state[name]) parts.set(name, 1);
  for (const name of ["mean", "only"]) if (state[name]) parts.set(name, state[name]);
  if (state.sort !== HEAD_STATE.sort) parts.set("sort", state.sort);
  if (state.least) parts.set("least", state.least);
  if (state.compare) parts.set("compare", state.compare.join("."));
}

/** Reads these parts; an address of a whole state sets what it does not name to the default. */
export function readHeadState(parts, state) {
  const before = parts.has("view") ? HEAD_STATE : state;
  const read = {};
  for (const name of FLAGS) read[name] = parts.has(name) ? parts.get(name) === "1" : before[name];
  for (const [name, values] of Object.entries(CHOICES)) {
    read[name] = values.includes(parts.get(name)) ? parts.get(name) : before[name];
  }
  const least = Number(parts.get("least"));
  read.least = parts.has("least") && least >= 0 && least <= 100 ? least : before.least;
  read.only = parts.get("only") || before.only;
  const compare = /^(\d+)\.(\d+)$/.exec(parts.get("compare") ?? "");
  read.compare = compare ? [Number(compare[1]), Number(compare[2])] : before.compare;
  return read;
}

/** The nearest state that this attention has heads for; the second head may be of another model. */
export function withinHeads(state, attention, against = null) {
  const [layer, head] = state.compare ?? [0, 0];
  const other = against?.attention.find(({ kind }) => kind === attention.kind) ?? attention;
  const exists = layer < other.depth && head < other.heads;
  const named = attention.patterns?.flat().some((pattern) => pattern?.[0] === state.only);
  return {
    compare: state.compare && exists ? state.compare : null,
    only: named ? state.only : null,
    without: state.without && (attention.sinks?.length ?? 0) > 0,
    mean: state.mean === "all" && !attention.telling ? null : state.mean,
    sort: attention.telling ? state.sort : HEAD_STATE.sort,
  };
}
