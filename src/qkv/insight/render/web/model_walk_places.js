// @ts-check
// The places of a walk through the whole model, from the tokens to the draw; no part of the page is touched.
//
// A place is a text: tokens, embedding, self.3 (a block), self.3.attention (a step inside a block), logits, softmax.
// A part of the model that reads a source has the places source, source_embedding and encoder.0, encoder.1, ...

import { rowsOf } from "qkv/walk_data.js";

/** The names of the parts of a block. */
export const PARTS = {
  attention: "attention",
  cross_attention: "cross-attention",
  feed_forward: "feed-forward",
  block: "block",
};

/** The names of places that are no blocks. */
export const PLACES = {
  source: "source tokens",
  source_embedding: "embedding",
  tokens: "tokens",
  embedding: "embedding",
  encoder: "encoder states",
  query: "state before",
  context: "context vector",
  state: "new state",
  hidden: "state and context",
  norm: "last norm",
  output: "output",
  logits: "logits",
  softmax: "softmax",
  draw: "the draw",
};

const drawnOf = (drawn) => drawn && { width: drawn.width, rows: rowsOf(drawn.numbers) };

/** A block of the page with its arrays decoded. */
export function decodeModelWalk(block) {
  const vectors = (part) => part && { lengths: part.lengths, drawn: drawnOf(part.drawn) };
  const stacks = block.stacks.map((stack) => {
    const { token, position, segment, output } = stack.embedding;
    const parts = { token, position, segment, output };
    const decoded = Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, vectors(part)]));
    return { ...stack, embedding: { ...stack.embedding, ...decoded } };
  });
  const steps = block.steps.map((step) => ({ ...step, drawn: drawnOf(step.drawn) }));
  const positions = { ...block.positions, drawn: drawnOf(block.positions.drawn) };
  return { ...block, stacks, steps, positions };
}

/** The places of the whole model, in the order in which it computes. */
export function placesOf(walk) {
  const places = [];
  for (const stack of walk.stacks) {
    const source = stack.side === 1;
    places.push(source ? "source" : "tokens", source ? "source_embedding" : "embedding");
    stack.blocks.forEach((_, layer) => places.push(`${stack.kind}.${layer}`));
  }
  for (const { name } of walk.steps) {
    if (name === "source_embedding") places.push("source");
    if (name === "embedding") places.push("tokens");
    places.push(name);
  }
  if (walk.stacks.at(-1)?.ends_with_norm) places.push("norm");
  return [...places, ...(walk.next ? ["logits", "softmax", "draw"] : ["output"])];
}

/** The places inside a block: in a pre-norm block norm, part, add; in a post-norm block part, add, norm. */
export function placesInside(stack, layer) {
  return stack.blocks[layer].flatMap(({ name }) => {
    const at = (step) => `${stack.kind}.${layer}.${step}`;
    if (stack.norm === null) return [at(name), at(`add_${name}`)];
    const [norm, part, add] = [at(`norm_${name}`), at(name), at(`add_${name}`)];
    return stack.norm === "before" ? [norm, part, add] : [part, add, norm];
  });
}

/** A place taken apart: the stack, the layer, the part of the block and what it does; or its name alone. */
export function placeOf(walk, place) {
  const [name, number, step] = place.split(".");
  const stack = number === undefined ? null : walk.stacks.find(({ kind }) => kind === name);
  if (!stack) return { place, name, stack: null, layer: null, part: null, action: null };
  const layer = Number(number);
  const [, action = null, part = null] = /^(?:(norm|add)_)?(.+)$/.exec(step ?? "") ?? [];
  const found = part === null ? null : stack.blocks[layer].find((one) => one.name === part);
  return { place, name, stack, layer, part: found, action: part === null ? null : (action ?? "part") };
}

/** The place of the state if this walk has it, else the first. */
export function within(walk, place) {
  const all = placesOf(walk);
  const [name, layer, step] = (place ?? "").split(".");
  if (step === undefined) return all.includes(place) ? place : all[0];
  const block = `${name}.${layer}`;
  if (!all.includes(block)) return all[0];
  const { stack } = placeOf(walk, block);
  return placesInside(stack, Number(layer)).includes(place) ? place : block;
}

/** The places of the same level. */
export function level(walk, place) {
  const { stack, layer, part } = placeOf(walk, place);
  return part ? placesInside(stack, layer) : placesOf(walk);
}

/** Whether the vectors of a place belong to the tokens of the source. */
export function ofSource(walk, place) {
  const { stack, name } = placeOf(walk, place);
  if (stack) return stack.side === 1;
  return ["source", "source_embedding", "encoder"].includes(name);
}

/** The stack whose embedding or end a place is; null for an RNN. */
export function stackAt(walk, place) {
  const side = ofSource(walk, place) ? 1 : 0;
  return walk.stacks.find((stack) => stack.side === side) ?? null;
}

/** The name of a place. */
export function placeName(walk, place) {
  const { stack, layer, part, action, name } = placeOf(walk, place);
  if (!stack) return PLACES[name];
  if (!part) return stack.kind === "self" ? `block ${layer}` : `${stack.kind} ${layer}`;
  if (action === "part") return PARTS[part.name];
  return action;
}

/** A length or logit with three digits or so. */
export function brief(number) {
  if (number === null || number === undefined) return "not finite";
  const size = Math.abs(number);
  const text = size >= 1e5 || (size > 0 && size < 1e-3) ? number.toExponential(1) : String(Number(number.toPrecision(3)));
  return text.replace("-", "−");
}
