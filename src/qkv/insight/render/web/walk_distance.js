// @ts-check
// The score of the same query and key by their distance, as a curve with the distance now.

import { element, svg } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { distanceOf, knownDistance, movable, scoreAtDistance } from "qkv/walk_data.js";

const WIDTH = 300;
const HEIGHT = 130;
const LEFT = 44;
const BOTTOM = 22;
const FARTHEST = 64;
const POINTS = 200; // of the curve, at most

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

/** The distances at which the curve is drawn: all, or at equal steps; always both ends and the one `now`. */
export function drawnDistances(least, most, now) {
  const step = Math.max(1, Math.ceil((most - least) / POINTS));
  const drawn = new Set([now, most]);
  for (let distance = least; distance < most; distance += step) drawn.add(distance);
  return [...drawn].sort((a, b) => a - b);
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
    const asked = distanceOf(walk, row.token, picked, edits);
    const distance = knownDistance(walk, row.token, asked);
    const [least, most] = distances(walk, row.token);
    Object.assign(this.slider, { min: Math.min(least, distance), max: Math.max(most, distance), value: distance });
    this.now.textContent = String(distance);
    const score = (d) => scoreAtDistance(walk, row.token, picked, d, edits);
    this.draw(score, Number(this.slider.min), Number(this.slider.max), distance);
    const kind = walk.rotary ? "Rotary positions turn both vectors: only their distance counts." : "";
    const alibi = walk.slope ? `ALiBi subtracts ${short(walk.slope)} a position.` : "";
    const beyond = asked === distance ? "" : ` Distance ${asked} is beyond those of this text; the nearest is used.`;
    const now = `Score at distance ${distance}: ${short(score(distance))}.`;
    this.note.textContent = `${kind || alibi} ${now}${beyond}`.trim();
  }

  draw(score, least, most, distance) {
    const points = drawnDistances(least, most, distance).map((d) => [d, score(d)]);
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
