// @ts-check
// The chain of places from the tokens to the draw: the residual stream as a band whose width is its length, bars of
// what attention and feed-forward add, and the likeliest token after each block.

import { element, percent, svg } from "qkv/elements.js";
import { PARTS, brief, placeName, placeOf, stackAt } from "qkv/model_walk_places.js";
import { label, quoted } from "qkv/token_text.js";

const BAND = 44; // width of the longest stream, in units of the drawing
const BESIDE = 6; // room left and right of it

/** The lengths of the stream before and after a place, or null where there is none. */
function streamAt(walk, place, token) {
  const { stack, layer, part, action, name } = placeOf(walk, place);
  if (part) {
    if (action === "part" || (action === "norm" && stack.norm === "before")) {
      const length = part.before[token];
      return [length, length];
    }
    if (action === "norm") return [part.sum[token], part.after[token]];
    return [part.before[token], part.sum[token]];
  }
  if (stack) return [stack.blocks[layer][0].before[token], stack.blocks[layer].at(-1).after[token]];
  if (name === "embedding" || name === "source_embedding") {
    const at = stackAt(walk, place);
    const length = at?.embedding.output.lengths[token] ?? walk.steps.find((step) => step.name === name).lengths[token];
    return [0, length];
  }
  const step = walk.steps.find((one) => one.name === name);
  if (step) return [step.lengths[token], step.lengths[token]];
  const end = walk.stacks.at(-1);
  if (name === "norm") return [end.blocks.at(-1).at(-1).after[token], end.output[token]];
  if (name === "logits") {
    const length = end ? end.output[token] : walk.steps.at(-1).lengths[token];
    return [length, 0];
  }
  return null;
}

/** The likeliest token that the lens reads after a block or at the end: text and probability. */
function guessAt(walk, place, token) {
  const { stack, layer, part, name } = placeOf(walk, place);
  if (name === "embedding" && walk.lens) return walk.lens[0][token][0];
  if (stack && !part && stack === walk.stacks.at(-1)) return walk.lens?.[layer + 1][token][0] ?? null;
  if (name === "softmax") {
    const [text, id, , probability] = walk.next[token][0];
    return [text, id, probability];
  }
  return null;
}

export class Chain {
  /** `onpick(place)` gets the place of a row that was clicked. */
  constructor(onpick) {
    this.onpick = onpick;
    this.list = element("ol", { class: "chain" });
    this.element = element("div", { class: "chain-box" }, this.list);
  }

  /** Draws all rows of a level; `tokenAt(place)` is the token whose vector is shown there. */
  show(walk, places, tokenAt, key) {
    if (this.key === key) return;
    this.key = key;
    const streams = places.map((place) => streamAt(walk, place, tokenAt(place)));
    const longest = Math.max(1e-9, ...streams.flatMap((pair) => pair ?? []).filter(Number.isFinite));
    const added = places.map((place) => this.additions(walk, place, tokenAt(place)));
    const most = Math.max(1e-9, ...added.flat().map(({ length }) => length ?? 0));
    this.rows = new Map();
    const items = places.map((place, index) => {
      const guess = guessAt(walk, place, tokenAt(place));
      const row = this.row(walk, place, streams[index], longest, added[index], most, guess);
      this.rows.set(place, row);
      return element("li", {}, row);
    });
    this.list.style.setProperty("--rows", places.length);
    this.list.replaceChildren(...items);
  }

  /** What is added at a place: one bar for each part. */
  additions(walk, place, token) {
    const { stack, layer, part, action } = placeOf(walk, place);
    if (part) return action === "part" ? [{ name: part.name, length: part.added[token] }] : [];
    if (!stack) return [];
    return stack.blocks[layer].map(({ name, added }) => ({ name, length: added[token] }));
  }

  row(walk, place, stream, longest, added, most, guess) {
    const { stack, part, action } = placeOf(walk, place);
    const beside = action === "part" || (action === "norm" && stack.norm === "before"); // on a way round the stream
    const name = placeName(walk, place);
    const bars = added.map(({ name: of, length }) => {
      const bar = element("span", { class: `added is-${of}` });
      bar.style.setProperty("--part", String(Math.sqrt(Math.min(1, (length ?? 0) / most))));
      return bar;
    });
    const length = stream ? brief(stream[1] || stream[0]) : "";
    const button = element(
      "button",
      {
        type: "button",
        class: `place${stack && !part ? " is-block" : ""}${beside ? " is-beside" : ""}`,
        "data-place": place,
        tabindex: -1,
        "aria-label": this.describe(name, stream, added, guess, Boolean(stack && !part)),
        onclick: () => this.onpick(place),
      },
      element("span", { class: "place-name" }, name),
      band(stream, longest),
      element("span", { class: "place-length number" }, length),
      element("span", { class: "place-added" }, ...bars),
      element("span", { class: "place-guess" }, ...(guess ? [label(guess[0]), share(guess[2])] : [])),
    );
    return button;
  }

  describe(name, stream, added, guess, opens) {
    const parts = [name.replace(/^./, (letter) => letter.toUpperCase())];
    if (stream) parts.push(`stream of length ${brief(stream[1] || stream[0])}`);
    for (const { name: of, length } of added) parts.push(`${PARTS[of]} adds ${brief(length)}`);
    if (guess) parts.push(`likeliest ${quoted(guess[0])}, ${percent(guess[2])}`);
    return `${parts.join(", ")}${opens ? "; opens the block" : ""}`;
  }

  /** Marks the current place; the focus moves along if it is in the chain. */
  mark(place) {
    const focused = this.list.contains(document.activeElement);
    for (const [at, row] of this.rows) {
      const current = at === place;
      if (current) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
      row.tabIndex = current ? 0 : -1;
      if (!current) continue;
      if (focused) row.focus({ preventScroll: true });
      this.reveal(row);
    }
  }

  /** Scrolls the chain's own box, never the page. */
  reveal(row) {
    const box = this.element;
    const top = row.offsetTop - box.offsetTop;
    if (top < box.scrollTop) box.scrollTop = Math.max(0, top - 40);
    else if (top + row.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight + 80;
  }
}

function share(probability) {
  return element("span", { class: "number" }, percent(probability));
}

/** A piece of the band: as wide above as the stream before, and below as the stream after. */
function band(stream, longest) {
  const whole = BAND + 2 * BESIDE;
  const drawing = svg("svg", { class: "stream-band", viewBox: `0 0 ${whole} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (!stream) return drawing;
  const half = (length) => (length ? Math.max(1, BAND * Math.sqrt(length / longest)) : 0) / 2;
  const [above, below] = stream.map((length) => half(length));
  const middle = whole / 2;
  const points = [
    [middle - above, 0],
    [middle + above, 0],
    [middle + below, 10],
    [middle - below, 10],
  ];
  drawing.append(svg("polygon", { points: points.map((point) => point.join(",")).join(" ") }));
  return drawing;
}
