// @ts-check
// Norms of the residual stream and of its gradient after each layer, as line charts.

import { element, svg } from "qkv/elements.js";
import { TokenStrip } from "qkv/token_strip.js";
import { layerName, quoted, visible } from "qkv/token_text.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [560, 300, 58, 28, 14, 28];
const NAMED = 8; // layers that have room for their names

function quantile(values, part) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.round((sorted.length - 1) * part)];
}

function short(value) {
  if (value === 0) return "0";
  return Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3
    ? value.toExponential(0).replace("e+", "e")
    : String(Number(value.toPrecision(2)));
}

/** Round numbers on a logarithmic scale. */
function ticks(low, high) {
  const values = [];
  const decades = Math.log10(high / low);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const step of decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 2.5 ? [1, 3] : [1]) values.push(step * 10 ** power);
  }
  const within = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return within.length > 7 ? within.filter((_, index) => index % 2 === 0) : within;
}

/** `layers` has a number for each layer and position, or null: the last position has no loss, so no gradient. */
function chart(title, layers, chosen, name) {
  const positive = layers.flat().filter((value) => value > 0);
  const [low, high] = [
    Math.min(...(positive.length ? [least(positive)] : [1])) / 1.15,
    (positive.length ? most(positive) : 1) * 1.15,
  ];
  const x = (layer) => LEFT + ((WIDTH - LEFT - RIGHT) * layer) / Math.max(1, layers.length - 1);
  const y = (value) => {
    const part = Math.log(Math.max(value, low) / low) / Math.log(high / low);
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part;
  };
  // points are pairs of a layer and a number
  const known = layers
    .map((values, layer) => [layer, values.filter((value) => value !== null)])
    .filter(([, values]) => values.length);
  const at = (part) => known.map(([layer, values]) => [layer, quantile(values, part)]);
  const path = (points) =>
    points.map(([layer, value], index) => `${index ? "L" : "M"}${x(layer).toFixed(1)},${y(value).toFixed(1)}`).join("");
  const band = (lower, upper) => `${path([...upper, ...lower.reverse()])}Z`;
  const chosenPoints = layers
    .map((values, layer) => [layer, chosen === null ? null : values[chosen]])
    .filter(([, value]) => value !== null);
  const lines = ticks(low, high).map((value) =>
    svg(
      "g",
      {},
      svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    ),
  );
  const every = Math.ceil(layers.length / NAMED);
  const below = layers
    .map((_, layer) => layer)
    .filter((layer) => layer === 0 || ((layer - 1) % every === 0 && (layer > 1 || every === 1)))
    .map((layer) =>
      svg(
        "text",
        { class: "tick", x: x(layer), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" },
        layerName(layer),
      ),
    );
  const drawn = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title },
    ...lines,
    ...below,
    svg("path", { class: "all", d: band(at(0), at(1)) }),
    svg("path", { class: "most", d: band(at(0.25), at(0.75)) }),
    svg("path", { class: "median", d: path(at(0.5)) }),
    ...(chosenPoints.length ? [svg("path", { class: "chosen", d: path(chosenPoints) })] : []),
    ...chosenPoints.map(([layer, value]) =>
      svg(
        "circle",
        { class: "chosen", cx: x(layer), cy: y(value), r: 3 },
        svg("title", {}, `${layerName(layer)}: ${value.toPrecision(4)}`),
      ),
    ),
  );
  const key = element(
    "p",
    { class: "legend-words" },
    element("span", { class: "key median" }, "median"),
    element("span", { class: "key most" }, "middle half of the positions"),
    element("span", { class: "key all" }, "all positions"),
    ...(chosenPoints.length
      ? [element("span", { class: "key chosen" }, element("bdi", { class: "word" }, visible(name)))]
      : []),
  );
  return element("figure", {}, element("figcaption", {}, title), drawn, key);
}

const least = (values) => values.reduce((low, value) => Math.min(low, value));
const most = (values) => values.reduce((high, value) => Math.max(high, value));

export class Norms {
  constructor(page) {
    this.page = page;
    this.title = "Norms";
    this.charts = element("div", { class: "charts" });
    this.strip = new TokenStrip("The text; choose a token to draw its line", (token) =>
      page.set({ token: page.state.token === token ? null : token }),
    );
    this.element = element("section", { class: "view" }, this.charts, this.strip.element);
  }

  async show(state) {
    const { store } = this.page;
    const { data } = store;
    const norms = data.norms ?? (await store.part("norms"));
    if (this.page.state !== state || this.page.store !== store) return;
    const side = data.sides[data.text];
    const chosen = state.token === null ? null : Math.min(state.token, side.tokens.length - 1);
    const name = chosen === null ? "" : side.tokens[chosen];
    this.charts.replaceChildren(
      chart("Residual stream norm after each layer", norms.residual, chosen, name),
      ...(norms.gradient ? [chart("Gradient norm after each layer", norms.gradient, chosen, name)] : []),
    );
    this.strip.show(side);
    this.strip.mark(chosen);
    const ends = [norms.residual[0], norms.residual.at(-1)];
    const [first, last] = ends.map((values) => (chosen === null ? quantile(values, 0.5) : values[chosen]));
    const whose = chosen === null ? "Median of the positions" : quoted(name);
    const change = last < first ? "falls" : "rises";
    const sentence = `the residual stream norm ${change} from ${first?.toPrecision(3)} to ${last?.toPrecision(3)}`;
    this.page.setStatus(first === null || last === null ? `${whose}: a norm is not finite` : `${whose}: ${sentence}`);
  }
}
