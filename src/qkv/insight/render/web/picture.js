// @ts-check
// What is seen of an element as a plain SVG: boxes, texts, canvases as images. Any program for slides opens it, and no
// foreign element keeps a browser from drawing it.

import { svg } from "qkv/elements.js";
import { borders, colourOf, insetFrame, painted } from "qkv/picture_paint.js";

const LEFT_OUT = [
  ".zoom, .tools-line, .second-line, .walk-foot, .place-steps, .threshold, .readout, .model-hint",
  ".busy, .unseen, select",
  ".line > :is(.choice, .names, .name), .side > button, input:not([type=range])",
].join(", ");
const MARGIN = 20;
const LINE = 24;
const UNWRITABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu; // XML has none of these
const SHAPE = /^(d|x|y|x1|y1|x2|y2|cx|cy|r|width|height|points|transform|viewBox|preserveAspectRatio)$/;

/** The picture as text with its size; `lines` are texts above it. */
export function pictureOf(root, lines = []) {
  const box = root.getBoundingClientRect();
  const { fontFamily, color } = getComputedStyle(root);
  const widest = Math.max(300, box.width - MARGIN);
  const heading = lines.flatMap((line, number) => wrapped(line, number ? "15px" : "650 17px", fontFamily, widest));
  const above = MARGIN + heading.length * LINE + (heading.length ? 8 : 0);
  const painter = new Painter(box.left - MARGIN, box.top - above);
  const drawn = painter.element(root);

  const texts = heading.map(({ text, wide, first }, number) => {
    painter.right = Math.max(painter.right, MARGIN + wide);
    const place = { x: MARGIN, y: MARGIN + LINE * (number + 0.7), "font-family": fontFamily };
    const bold = first && number === 0;
    const size = { "font-size": bold ? 17 : 15, "font-weight": bold ? 650 : null };
    return svg("text", { ...place, ...size, ...colourOf(color, "fill") }, writable(text));
  });
  const width = Math.ceil(painter.right + MARGIN);
  const height = Math.ceil(painter.bottom + MARGIN);
  const page = getComputedStyle(document.documentElement).backgroundColor;
  const picture = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  const ground = svg("rect", { width, height, ...colourOf(page, "fill") });
  picture.append(ground, svg("defs", {}, ...painter.clips), ...texts, drawn);
  return { text: new XMLSerializer().serializeToString(picture), width, height };
}

/** A text in lines that are not too wide. */
function wrapped(text, font, family, widest) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${font} ${family}`;
  const lines = [""];
  for (const part of text.split(/\s+/)) {
    const longer = `${lines.at(-1)} ${part}`.trim();
    if (pen.measureText(longer).width > widest && lines.at(-1)) lines.push(part);
    else lines[lines.length - 1] = longer;
  }
  const first = font.startsWith("650");
  return lines.map((line) => ({ text: line, wide: Math.min(widest, pen.measureText(line).width), first }));
}

/** The colour of a bar that can be moved; its style sheet draws it as a gradient. */
function accentOf(style) {
  return /(?:rgba?|oklab|oklch|color)\([^()]+\)/.exec(style.backgroundImage)?.[0] ?? style.color;
}

function writable(text) {
  return text.replace(UNWRITABLE, "\ufffd");
}

class Painter {
  constructor(left, top) {
    this.left = left;
    this.top = top;
    this.right = 0; // of what is drawn
    this.bottom = 0;
    this.clips = [];
    this.pen = document.createElement("canvas").getContext("2d");
    /** @type {DOMRect | null} */
    this.window = null; // what a scroller shows of its content
  }

  /** A box in the picture's coordinates. */
  at({ left, top, width, height }) {
    return { x: round(left - this.left), y: round(top - this.top), width: round(width), height: round(height) };
  }

  /** An element with all that it contains; an empty group if it is not seen. */
  element(node) {
    const group = svg("g");
    const style = getComputedStyle(node);
    if (style.display === "none" || style.opacity === "0" || node.matches(LEFT_OUT)) return group;
    const box = node.getBoundingClientRect();
    if (!this.seen(box) && style.display !== "contents") return group;
    if (style.opacity !== "1") group.setAttribute("opacity", style.opacity);
    if (node instanceof SVGSVGElement) {
      this.grow(box);
      group.append(this.drawing(node, this.at(box)));
      return group;
    }
    if (style.visibility !== "hidden") this.box(group, node, style, box);
    const inside = this.clipped(group, node, style, box);
    const before = this.window;
    if (inside !== group) this.window = box;
    for (const child of [...node.childNodes].sort((a, b) => layerOf(a) - layerOf(b))) {
      if (child instanceof Text && style.visibility !== "hidden") inside.append(...this.text(child, style));
      else if (child instanceof Element) inside.append(this.element(child));
    }
    this.window = before;
    return group;
  }

  seen({ left, top, right, bottom, width, height }) {
    if (width === 0 && height === 0) return false;
    const { window } = this;
    return !window || (right > window.left && left < window.right && bottom > window.top && top < window.bottom);
  }

  /** Notes how far the picture reaches; what a scroller hides does not count. */
  grow({ right, bottom }) {
    this.right = Math.max(this.right, Math.min(right, this.window?.right ?? Infinity) - this.left);
    this.bottom = Math.max(this.bottom, Math.min(bottom, this.window?.bottom ?? Infinity) - this.top);
  }

  /** Background, frame, border and canvas. */
  box(group, node, style, box) {
    const place = this.at(box);
    const parts = [];
    if (painted(style.backgroundColor)) {
      const round = Math.min(parseFloat(style.borderTopLeftRadius) || 0, place.height / 2);
      parts.push(svg("rect", { ...place, rx: round, ...colourOf(style.backgroundColor, "fill") }));
    }
    if (node instanceof HTMLCanvasElement && node.width && node.height) {
      const rendering = style.imageRendering === "pixelated" ? "pixelated" : null;
      const href = node.toDataURL();
      parts.push(svg("image", { ...place, href, preserveAspectRatio: "none", "image-rendering": rendering }));
    }
    if (node instanceof HTMLInputElement) {
      const part = (Number(node.value) - Number(node.min)) / (Number(node.max) - Number(node.min));
      parts.push(svg("rect", { ...place, width: place.width * part, rx: 3, ...colourOf(accentOf(style), "fill") }));
    }
    parts.push(...insetFrame(style, place), ...borders(style, place));
    for (const which of ["::before", "::after"]) parts.push(...this.pseudo(node, which, place));
    if (parts.length) this.grow(box);
    group.append(...parts);
  }

  /** A mark of a legend, which stands at the left, or a number, which stands in the middle. */
  pseudo(node, which, { x, y, width, height }) {
    const style = getComputedStyle(node, which);
    if (style.content === "none" || style.display === "none" || style.position === "absolute") return [];
    const text = /^"(.+)"$/.exec(style.content)?.[1];
    if (text) {
      const middle = { x: x + width / 2, y: y + height / 2 + parseFloat(style.fontSize) * 0.35 };
      return [svg("text", { ...middle, "text-anchor": "middle", ...this.font(style) }, writable(text))];
    }
    const [wide, high] = [parseFloat(style.width), parseFloat(style.height)];
    if (!(wide > 0 && high > 0) || !painted(style.backgroundColor)) return [];
    const mark = { x, y: y + (height - high) / 2, width: wide, height: high, opacity: style.opacity };
    return [svg("rect", { ...mark, rx: 2, ...colourOf(style.backgroundColor, "fill") })];
  }

  /** The group for the children: cut at the box if this element hides what overflows. */
  clipped(group, node, style, box) {
    const over = node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1;
    if (style.overflowX === "visible" || !over || style.display === "inline") return group;
    const id = `clip${this.clips.length}`;
    this.clips.push(svg("clipPath", { id }, svg("rect", this.at(box))));
    const inside = svg("g", { "clip-path": `url(#${id})` });
    group.append(inside);
    return inside;
  }

  font(style) {
    return {
      "font-family": style.fontFamily,
      "font-size": parseFloat(style.fontSize),
      "font-weight": style.fontWeight === "400" ? null : style.fontWeight,
      "font-style": style.fontStyle === "normal" ? null : style.fontStyle,
      "text-decoration": style.textDecorationLine === "none" ? null : style.textDecorationLine,
      ...colourOf(style.color, "fill"),
    };
  }

  /** A text node, each line of it where the page has it. */
  text(node, style) {
    if (!node.data.trim()) return [];
    this.pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const rise = this.pen.measureText("x").fontBoundingBoxAscent;
    const texts = [];
    for (const { data, box } of linesOf(node)) {
      if (!data.trim() || !this.seen(box)) continue;
      this.grow(box);
      const line = writable(data.trim().replace(/\s+/g, " "));
      texts.push(svg("text", { ...this.placed(box, style, rise, node), ...this.font(style) }, line));
    }
    return texts;
  }

  /** Where a line begins: upright, or along a turned label from bottom to top. */
  placed(box, style, rise, node) {
    const { x, y, width, height } = this.at(box);
    if (style.writingMode === "horizontal-tb") {
      const leftward = style.direction === "rtl";
      return { x: leftward ? x + width : x, y: round(y + rise), direction: leftward ? "rtl" : null };
    }
    const label = node.parentElement.closest("[style*=rotate]");
    if (!label) return { transform: `translate(${round(x + width - rise)} ${y}) rotate(90)` };
    return { transform: `translate(${round(x + rise)} ${y + height}) rotate(-90)` };
  }

  /** A drawing that is SVG already, with the colours that its style sheet gives it. */
  drawing(node, place) {
    const copy = svg(/** @type {any} */ (node.localName), place ?? {});
    for (const { name, value } of node.attributes) {
      if (SHAPE.test(name) && !copy.hasAttribute(name)) copy.setAttribute(name, value);
    }
    const style = getComputedStyle(node);
    if (style.display === "none") return svg("g");
    if (node instanceof SVGTextElement) {
      for (const [name, value] of Object.entries(this.font(style))) if (value !== null) copy.setAttribute(name, value);
      copy.setAttribute("text-anchor", style.textAnchor);
    }
    if (node instanceof SVGGeometryElement) {
      const stroke = { "stroke-width": parseFloat(style.strokeWidth), "stroke-dasharray": style.strokeDasharray };
      const paint = { ...colourOf(style.fill, "fill"), ...colourOf(style.stroke, "stroke"), ...stroke };
      for (const [name, value] of Object.entries(paint)) copy.setAttribute(name, String(value));
    }
    if (style.opacity !== "1") copy.setAttribute("opacity", style.opacity);
    for (const child of node.childNodes) {
      if (child instanceof Text) copy.append(writable(child.data));
      else if (child instanceof SVGElement) copy.append(this.drawing(child));
    }
    return copy;
  }
}

/** Which of two siblings lies above the other, such as a row of names that stays while the rest scrolls. */
function layerOf(node) {
  return node instanceof Element ? Number(getComputedStyle(node).zIndex) || 0 : 0;
}

const round = (number) => Math.round(100 * number) / 100;

/** The lines of a text node: the parts between spaces, as far as they stand side by side. */
function linesOf(node) {
  const range = document.createRange();
  const boxOf = (start, end) => {
    range.setStart(node, start);
    range.setEnd(node, end);
    return [...range.getClientRects()].filter(({ width, height }) => width && height);
  };
  const start = node.data.search(/\S/);
  const boxes = boxOf(start, node.data.trimEnd().length);
  if (boxes.length === 1) return [{ data: node.data, box: boxes[0] }];
  const lines = [];
  for (const { index, 0: part } of node.data.matchAll(/\S+\s*/g)) {
    const [box] = boxOf(index, index + part.trimEnd().length);
    const line = lines.at(-1);
    if (!box) continue;
    if (line && Math.abs(line.box.top - box.top) < 2) {
      line.data += part;
      line.box = DOMRect.fromRect({ ...rectOf(line.box), width: box.right - line.box.left });
    } else lines.push({ data: part, box });
  }
  return lines;
}

function rectOf({ x, y, width, height }) {
  return { x, y, width, height };
}
