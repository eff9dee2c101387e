// @ts-check
// The heads of one attention as tiles: the pattern of each, what it adds to the token, and its name if it has one.

import { element } from "qkv/elements.js";
import { brief } from "qkv/model_walk_places.js";

/** Draws a head from the overview, a pixel for each of its cells. */
function drawOn(canvas, page, kind, layer, head) {
  const { levels, code, most } = page.store.coarse(kind, layer, head);
  const { rows, columns, numbers } = levels[0];
  const table = page.colours.table(code, most);
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < numbers.length; at++) pixels[at] = table[numbers[at]];
  Object.assign(canvas, { width: columns, height: rows });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Whether the page has the numbers of a head for the walk. */
function walkable(data, kind, layer, head) {
  if ("walk" in data.lacking || !data.walk?.[kind]) return false;
  const { heads } = data.walk[kind];
  return heads === null || heads.some(([one, other]) => one === layer && other === head);
}

/** A tile for each head; a click opens its walk, or its heat map where there is none. */
export function headTiles(page, kind, layer, lengths, token) {
  const { data } = page.store;
  const attention = page.store.attention(kind);
  const count = attention?.heads ?? lengths?.length ?? 0;
  const most = Math.max(1e-9, ...(lengths ?? []).map((head) => head[token] ?? 0));
  const tiles = Array.from({ length: count }, (_, head) => {
    const view = walkable(data, kind, layer, head) ? "walk" : "head";
    const length = lengths?.[head][token] ?? null;
    const name = attention?.names?.[head] ?? attention?.patterns?.[layer]?.[head]?.[0] ?? null;
    const canvas = element("canvas", { "aria-hidden": "true" });
    if (attention) drawOn(canvas, page, kind, layer, head);
    const bar = element("span", { class: "added is-attention" });
    bar.style.setProperty("--part", String((length ?? 0) / most));
    const does = view === "walk" ? "walk it" : "heat map";
    const said = [`Head ${head}`, name, length === null ? null : `adds ${brief(length)}`].filter(Boolean);
    return element(
      "button",
      {
        type: "button",
        class: "head-tile",
        "data-head": head,
        disabled: !attention,
        "aria-label": `${said.join(", ")}; ${does}`,
        title: said.join(", "),
        onclick: () => page.set({ view, kind, layer, head }),
      },
      element("span", { class: "tile-name" }, name === null ? `${head}` : `${head} ${name}`),
      canvas,
      element("span", { class: "tile-added" }, length === null ? "" : brief(length), bar),
    );
  });
  return element("div", { class: "head-tiles", role: "group", "aria-label": `Heads of layer ${layer}` }, ...tiles);
}
