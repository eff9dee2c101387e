// @ts-check
// Vectors of the embedding as strips of numbers, and the positions of the model as a heat map.

import { element } from "qkv/elements.js";
import { brief } from "qkv/model_walk_places.js";
import { VectorStrip, signedColour } from "qkv/vector_strip.js";

/** What the heat map of the positions shows. */
const DRAWN = {
  learned: "A row is the learned vector of a position.",
  sinusoidal: "A row is the vector of a position: sines and cosines, from fast to slow.",
  rotary: "A row is a position: the cosines of the angles by which pairs of numbers are turned, from fast to slow.",
  alibi: "A row is a distance, a column a head: what the distance adds to a score.",
  relative: "A row is a distance, a column a head: what the distance adds to a score, whatever the query.",
};
const BY_DISTANCE = ["alibi", "relative"];

function largest(rows) {
  let most = 1e-9;
  for (const row of rows) for (const number of row) most = Math.max(most, Math.abs(number));
  return most;
}

/** One vector with its name and length. */
export function vectorLine(name, { lengths, drawn }, token, theme, most = null) {
  const strip = new VectorStrip("of-stream");
  const row = drawn.rows[token];
  strip.show(row, most ?? largest([row]), theme, name);
  const some = row.length < drawn.width ? `, ${row.length} of them drawn` : "";
  const text = `${name}: ${drawn.width} numbers${some}, length ${brief(lengths[token])}`;
  return element("div", { class: "vector-line" }, element("p", { class: "strip-name" }, text), strip.element);
}

/** Token, position and segment, and what they become. */
export function embeddingLines(embedding, token, theme) {
  const names = { token: "token", position: `position ${token}`, segment: "segment" };
  const parts = Object.keys(names).filter((name) => embedding[name]);
  const most = largest(parts.map((name) => embedding[name].drawn.rows[token]));
  const sign = { sum: "+", product: "×", concatenate: "beside" }[embedding.join];
  const lines = parts.flatMap((name, index) => [
    ...(index ? [element("p", { class: "sign" }, name === "segment" ? "+" : sign)] : []),
    vectorLine(names[name], embedding[name], token, theme, most),
  ]);
  const after = embedding.normed ? "normed: the residual stream" : "the residual stream";
  return [...lines, element("p", { class: "sign" }, "="), vectorLine(after, embedding.output, token, theme)];
}

/** The positions as a heat map, a row for each; that of the token is framed. */
export function positionMap(positions, token, count, theme) {
  const { kind, drawn } = positions;
  if (!drawn || !DRAWN[kind]) return null;
  const rows = drawn.rows.slice(0, count);
  const most = largest(rows);
  const canvas = element("canvas", { class: "position-cells", width: rows[0].length, height: rows.length });
  const context = canvas.getContext("2d");
  const image = context.createImageData(rows[0].length, rows.length);
  rows.forEach((row, at) =>
    row.forEach((number, index) => {
      image.data.set([...signedColour(number, most, theme), 255], 4 * (at * row.length + index));
    }),
  );
  context.putImageData(image, 0, 0);
  const name = `Positions, ${kind}: ${rows.length} rows of ${rows[0].length} numbers`;
  const map = element("div", { class: "position-map", role: "img", "aria-label": name }, canvas);
  if (!BY_DISTANCE.includes(kind)) {
    map.style.setProperty("--at", String(token / rows.length));
    map.style.setProperty("--share", String(1 / rows.length));
    map.classList.add("framed");
  }
  const title = kind === "alibi" ? "ALiBi" : kind.replace(/^./, (letter) => letter.toUpperCase());
  const caption = element("figcaption", {}, `${title} positions. `, element("span", { class: "note" }, DRAWN[kind]));
  return element("figure", { class: "positions" }, caption, map);
}
