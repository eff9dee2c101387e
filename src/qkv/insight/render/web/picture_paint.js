// @ts-check
// Colours, frames and borders of a picture, as every reader of SVG understands them.

import { svg } from "qkv/elements.js";

const COLOUR = /(?:rgba?|oklab|oklch|lab|lch|color|hsla?)\([^()]+\)|#\w+/;
const known = new Map();
/** @type {CanvasRenderingContext2D | null} */
let pen = null;

/** Red, green, blue and alpha of any colour that the browser knows. */
function channels(colour) {
  if (!known.has(colour)) {
    pen ??= Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
      willReadFrequently: true,
    });
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    known.set(colour, [...pen.getImageData(0, 0, 1, 1).data]);
  }
  return known.get(colour);
}

export function painted(colour) {
  return colour !== "none" && channels(colour)[3] > 0;
}

/** colourOf("rgba(255, 0, 0, 0.5)", "fill") is {fill: "#ff0000", "fill-opacity": 0.5} */
export function colourOf(colour, name) {
  if (colour === "none") return { [name]: "none" };
  const [red, green, blue, alpha] = channels(colour);
  const hex = [red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("");
  const opacity = alpha === 255 ? {} : { [`${name}-opacity`]: Math.round((100 * alpha) / 255) / 100 };
  return { [name]: `#${hex}`, ...opacity };
}

/** A frame: a shadow that is as wide on all sides, or an outline. */
export function insetFrame(style, place) {
  const frames = [];
  const shadow = /^(.+?) 0px 0px 0px ([\d.]+)px( inset)?$/.exec(style.boxShadow);
  const colour = shadow && COLOUR.exec(shadow[1])?.[0];
  const wide = shadow ? parseFloat(shadow[2]) : 0;
  if (colour && painted(colour)) frames.push(frame(place, colour, wide, shadow[3] ? wide / 2 : -wide / 2));
  const outline = parseFloat(style.outlineWidth);
  if (style.outlineStyle !== "none" && style.outlineStyle !== "auto" && outline && painted(style.outlineColor)) {
    frames.push(frame(place, style.outlineColor, outline, -outline / 2 - (parseFloat(style.outlineOffset) || 0)));
  }
  return frames;
}

function frame({ x, y, width, height }, colour, wide, by) {
  const inner = { x: x + by, y: y + by, width: Math.max(0, width - 2 * by), height: Math.max(0, height - 2 * by) };
  return svg("rect", { ...inner, rx: 3, fill: "none", "stroke-width": wide, ...colourOf(colour, "stroke") });
}

/** The borders that can be seen: one frame if all are alike, else lines. */
export function borders(style, { x, y, width, height }) {
  const sides = { Top: [0, 0, 1, 0], Right: [1, 0, 1, 1], Bottom: [0, 1, 1, 1], Left: [0, 0, 0, 1] };
  const lines = [];
  for (const [side, [x1, y1, x2, y2]] of Object.entries(sides)) {
    const wide = parseFloat(style[`border${side}Width`]);
    const colour = style[`border${side}Color`];
    if (!wide || style[`border${side}Style`] === "none" || !painted(colour)) continue;
    const ends = { x1: x + x1 * width, y1: y + y1 * height, x2: x + x2 * width, y2: y + y2 * height };
    lines.push({ ends, wide, colour });
  }
  const [first] = lines;
  if (lines.length === 4 && lines.every(({ wide, colour }) => wide === first.wide && colour === first.colour)) {
    return [frame({ x, y, width, height }, first.colour, first.wide, first.wide / 2)];
  }
  return lines.map(({ ends, wide, colour }) =>
    svg("line", { ...ends, "stroke-width": wide, ...colourOf(colour, "stroke") }),
  );
}
