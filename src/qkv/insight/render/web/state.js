// @ts-check
// The state of the page as the end of its address: a link restores it.

import { readHeadState, withinHeads, writeHeadState } from "qkv/head_state.js";
import { STEPS } from "qkv/walk_steps.js";

export const VIEWS = ["walk", "model", "head", "heads", "lines", "next", "lens", "norms", "attribution"];

export function toHash(state) {
  const parts = new URLSearchParams();
  for (const name of ["view", "kind", "layer", "head"]) if (state[name] !== null) parts.set(name, state[name]);
  if (state.words) parts.set("words", 1);
  if (state.token !== null) parts.set("token", state.token);
  if (state.kept.length) parts.set("kept", state.kept.map(([layer, head]) => `${layer}.${head}`).join(" "));
  if (state.view === "walk") parts.set("step", state.step);
  if (state.view === "model" && state.place) parts.set("place", state.place);
  if (state.view === "walk" && state.edits) parts.set("edits", state.edits);
  parts.set("scale", state.scale);
  if (state.glance !== "pattern") parts.set("glance", state.glance);
  writeHeadState(state, parts);
  if (state.theme) parts.set("theme", state.theme);
  if (state.told !== null && state.told !== undefined) parts.set("story", state.told + 1);
  if (state.present) parts.set("present", 1);
  return `#${parts}`;
}

/** The state that an address describes, as far as the data has it. */
export function fromHash(hash, state, data) {
  const parts = new URLSearchParams(hash.slice(1));
  const one = (name, of) => (of.includes(parts.get(name)) ? parts.get(name) : state[name]);
  const number = (name) => (/^\d+$/.test(parts.get(name) ?? "") ? Number(parts.get(name)) : state[name]);
  const kept = (parts.get("kept") ?? "").split(" ").filter((head) => /^\d+\.\d+$/.test(head));
  return within(
    {
      view: one("view", VIEWS),
      kind: one(
        "kind",
        data.attention.map(({ kind }) => kind),
      ),
      layer: number("layer"),
      head: number("head"),
      words: parts.has("words") ? parts.get("words") === "1" : parts.has("view") ? false : state.words,
      token: parts.has("token") ? number("token") : parts.has("view") ? null : state.token,
      kept: parts.has("view") ? kept.map((head) => head.split(".").map(Number)) : state.kept,
      step: number("step"),
      place: /^[a-z_]+(\.\d+)?(\.[a-z_]+)?$/.test(parts.get("place") ?? "") ? parts.get("place") : state.place,
      edits: parts.get("edits") ?? "",
      scale: one("scale", ["linear", "root", "log"]),
      glance: one("glance", ["pattern", "entropy", "distance"]),
      theme: one("theme", ["dark", "light"]),
      told: /^[1-9]\d*$/.test(parts.get("story") ?? "")
        ? Number(parts.get("story")) - 1
        : parts.has("view")
          ? null
          : state.told,
      present: parts.get("present") === "1",
      ...readHeadState(parts, state),
    },
    data,
  );
}

/** The nearest state that the data has something to show for. */
export function within(state, data) {
  const attention = data.attention.find(({ kind }) => kind === state.kind);
  const views = available(data);
  const view = views.includes(state.view) ? state.view : views[0];
  if (!attention) return { ...state, view };
  const clamp = (value, count) => Math.min(count - 1, Math.max(0, value));
  const kept = state.kept.filter(([layer, head]) => layer < attention.depth && head < attention.heads);
  const longest = Math.max(...data.sides.map(({ tokens }) => tokens.length));
  const token = state.token === null ? null : clamp(state.token, longest);
  return {
    ...state,
    view,
    kept,
    token,
    layer: clamp(state.layer, attention.depth),
    head: clamp(state.head, attention.heads),
    step: Math.min(STEPS.length, Math.max(1, state.step ?? 1)),
    ...withinHeads(state, attention, data.against),
  };
}

/** The views that have data. */
function available(data) {
  return VIEWS.filter((view) => !(view in data.lacking));
}
