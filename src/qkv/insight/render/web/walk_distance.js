// @ts-check
// The score of the same query and key by their distance, as a curve with the distance now.

import { element, svg } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { biasByDistance, movable } from "qkv/walk_data.js";
import { rotaryProduct } from "qkv/walk_math.js";

const WIDTH = 300;
const HEIGHT = 130;
const LEFT = 44;
const BOTTOM = 22;
const FARTHEST = 64;

const WHY = {
  learned: "learned positions are added to the tokens before queries and keys are made",
  sinusoidal: "sinusoidal positions are added to the tokens before queries and keys are made",
  none: "this attention knows no positions",
  recurrent: "an RNN reads one token after the other and has no positions to change",
};

/** The distances that can be tried: to both sides where a query may look at both. */
export function distances(walk, token) {
  const forward = walk.visible.some((row, query) => row.some((see, key) => see && key > query)) ? -FARTHEST : 0;
  const table = walk.by_distance;
  if (!table) return [forward, FARTHEST];
  return [Math.max(forward, table.first), table.first + table.bias[token].length - 1];
}

/** The score of query `token` and key `at` at a distance. */
export function scoreAt(walk, token, at, distance, divisor, sum) {
  const bias = biasByDistance(walk, token, distance) ?? 0;
  if (!walk.rotary) return sum / divisor + bias;
  return (
    rotaryProduct(walk.rotary.query[token], walk.rotary.key[at], walk.rotary.frequencies, distance) / divisor + bias
  );
}

export class DistancePanel {
  /** `onmove(position, distance)` of a key. */
  constructor(onmove) {
    this.title = element("h2");
    this.slider = element("input", {
      type: "range",
      step: 1,
      oninput: () => onmove(this.at, Number(this.slider.value)),
    });
    this.now = element("output", { class: "number" });
    this.label = element("label", {}, element("span", { class: "name" }, "Distance"), this.slider, this.now);
    this.drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.note = element("p", { class: "note" });
    this.element = element("div", { class: "distance-panel" }, this.title, this.label, this.drawn, this.note);
  }

  show({ walk, row, picked, edits, query, keys }) {
    const can = movable(walk) && walk.score !== "other";
    this.title.textContent = `${quoted(query)} and ${quoted(keys[picked])}, by distance`;
    this.label.hidden = !can;
    this.drawn.toggleAttribute("hidden", !can);
    if (!can) {
      const why = WHY[walk.position] ?? "its positions are not part of the score";
      this.note.textContent = `The score at another distance cannot be computed here: ${why}.`;
      return;
    }
    this.at = picked;
    const at = edits.moved[picked] ?? picked;
    const distance = row.token - at;
    const [least, most] = distances(walk, row.token);
    Object.assign(this.slider, { min: Math.min(least, distance), max: Math.max(most, distance), value: distance });
    this.now.textContent = String(distance);
    const from = swappedFrom(edits.swapped, picked);
    const score = (d) => scoreAt(walk, row.token, from, d, row.divisor, row.rows[picked].sum);
    this.draw(score, Number(this.slider.min), Number(this.slider.max), distance);
    const kind = walk.rotary ? "Rotary positions turn both vectors: only their distance counts." : "";
    const alibi = walk.slope ? `ALiBi subtracts ${short(walk.slope)} a position.` : "";
    this.note.textContent = `${kind || alibi} Score at distance ${distance}: ${short(score(distance))}.`.trim();
  }

  draw(score, least, most, distance) {
    const points = [];
    for (let d = least; d <= most; d++) points.push([d, score(d)]);
    const scores = points.map(([, value]) => value);
    const [low, high] = [Math.min(...scores), Math.max(...scores)];
    const x = (d) => LEFT + ((d - least) / (most - least || 1)) * (WIDTH - LEFT - 8);
    const y = (value) => 8 + ((high - value) / (high - low || 1)) * (HEIGHT - BOTTOM - 16);
    const path = points.map(([d, value], number) => `${number ? "L" : "M"}${x(d).toFixed(1)} ${y(value).toFixed(1)}`);
    const text = (at, down, content, anchor) =>
      svg("text", { class: "tick", x: at, y: down, "text-anchor": anchor }, content);
    this.drawn.replaceChildren(
      svg("path", { class: "curve", d: path.join("") }),
      svg("circle", { class: "here", cx: x(distance), cy: y(score(distance)), r: 4.5 }),
      text(LEFT - 6, 14, short(high), "end"),
      text(LEFT - 6, HEIGHT - BOTTOM - 2, short(low), "end"),
      text(LEFT, HEIGHT - 5, String(least), "start"),
      text(WIDTH - 8, HEIGHT - 5, `${most} tokens`, "end"),
    );
    this.drawn.setAttribute(
      "aria-label",
      `Score from ${short(low)} to ${short(high)} at distances ${least} to ${most}`,
    );
  }
}

/** The token whose key stands at this position after the swaps. */
function swappedFrom(swapped, at) {
  let from = at;
  for (const [a, b] of [...swapped].reverse()) {
    if (from === a) from = b;
    else if (from === b) from = a;
  }
  return from;
}
