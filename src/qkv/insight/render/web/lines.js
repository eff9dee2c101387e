// @ts-check
// Attention as lines between queries and keys; one head, or several in their colours.

import { element, oncePerFrame, percent, roomBelow } from "qkv/elements.js";
import { toldLeftOut } from "qkv/left_out.js";
import { Threshold } from "qkv/line_threshold.js";
import { missing } from "qkv/one_head.js";
import { meanName, shownMatrix } from "qkv/shown_matrix.js";
import { label, quoted } from "qkv/token_text.js";
/** @import { Names } from "qkv/token_text.js" */

const [LOW, HIGH] = [28, 54]; // pixels of a token, at least and at most
const FEW = 32; // tokens up to which all lines are drawn
const STRONGEST = 12; // lines of a token in a longer text
const NEAR = 300; // tokens above and below whose lines may be visible
const CHOSEN = 6; // heads besides the current one

export class Lines {
  /** @type {Names} */
  rows;
  /** @type {Names} */
  columns;

  constructor(page) {
    this.page = page;
    this.title = "Lines";
    this.buttons = element("div", { class: "choice wrap", role: "group", "aria-label": "More heads of this layer" });
    this.chosen = element("ul", { class: "chips", "aria-label": "Heads shown" });
    this.note = element("p", { class: "note" });
    this.threshold = new Threshold(page);
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.sides = [element("div", { class: "words left" }), element("div", { class: "words right" })];
    this.heads = [element("h2"), element("h2")];
    this.scroller = element(
      "div",
      { class: "lines", tabindex: 0, role: "group", "aria-label": "Tokens and the lines between them" },
      ...this.sides,
    );
    this.frame = element("div", { class: "frame" }, this.canvas, this.scroller);
    this.element = element(
      "section",
      { class: "view" },
      element("div", { class: "line" }, element("span", { class: "name" }, "More heads"), this.buttons, this.chosen),
      element("div", { class: "line tight" }, this.threshold.element, this.note),
      element("div", { class: "two" }, ...this.heads),
      this.frame,
    );
    this.hovered = null;
    this.draw = oncePerFrame(() => this.paint());
    this.scroller.addEventListener("scroll", this.draw);
    new ResizeObserver(this.draw).observe(this.scroller);
  }

  /** The heads to draw as [layer, head], the current one first. */
  shownHeads({ layer, head, kept }) {
    return [[layer, head], ...kept.filter(([other, which]) => other !== layer || which !== head)].slice(0, CHOSEN + 1);
  }

  async show(state) {
    const { store } = this.page;
    this.attention = store.attention(state.kind);
    const names = this.page.names(state.kind);
    const across = state.kind === "cross"; // the source is on the left, since it is read first
    this.left = across ? names.columns : names.rows;
    this.right = across ? names.rows : names.columns;
    this.across = across;
    Object.assign(this, names);
    this.heads[0].textContent = across ? "Source (keys)" : "Queries";
    this.heads[1].textContent = across ? "Target (queries)" : "Keys";
    this.choices(state);
    const { kind, words, without, mean } = state;
    const sites = this.shownHeads(state);
    const request = (this.request = JSON.stringify([store.number, sites, kind, words, without, mean]));
    if (this.shown !== request) {
      const matrices = await Promise.all(
        sites.map(async (site, number) => (await shownMatrix(this.page, state, number || !mean ? site : null)) ?? null),
      );
      if (this.request !== request) return;
      this.matrices = matrices;
      this.shown = request;
      this.lists = null;
    }
    if (this.least !== this.threshold.least(state) || !this.lists) {
      this.least = this.threshold.least(state);
      this.lists = this.matrices.map(() => new Map());
    }
    this.tell(state);
    this.pinned = state.token === null ? null : this.rows.indexOf(state.token);
    this.layout();
    if (this.pinned !== null) this.reveal(this.pinned);
    this.paint();
  }

  /** How many lines there are, what is left out, or why there are none. */
  tell(state) {
    const full = this.attention.layers.includes(state.layer) || state.mean === "all";
    this.threshold.show(state, this.matrices, this.columns.count > FEW ? STRONGEST : 0);
    const told = [this.threshold.told, toldLeftOut(this.attention, this.columns.side, state)].join(" ");
    this.note.replaceChildren(...(full ? [told] : missing(this.attention, state.layer)));
  }

  choices(state) {
    const { colours } = this.page;
    const heads = this.shownHeads(state);
    const colourOf = (layer, head) => heads.findIndex(([a, b]) => a === layer && b === head);
    this.buttons.replaceChildren(
      ...Array.from({ length: this.attention.heads }, (_, head) => {
        const pressed = colourOf(state.layer, head) >= 0;
        const node = element(
          "button",
          {
            type: "button",
            "aria-pressed": String(pressed),
            "aria-label": this.attention.names?.[head] ?? `Head ${head}`,
            disabled: head === state.head,
            onclick: () => this.page.toggleHead(state.layer, head),
          },
          this.attention.names?.[head] ?? head,
        );
        if (pressed) node.style.borderBottomColor = colours.heads[colourOf(state.layer, head)];
        return node;
      }),
    );
    this.chosen.replaceChildren(
      ...heads.map(([layer, head], number) => {
        const dot = element("span", { class: "dot", "aria-hidden": "true" });
        dot.style.backgroundColor = colours.heads[number];
        const away =
          number === 0
            ? []
            : [
                element(
                  "button",
                  {
                    type: "button",
                    "aria-label": `Remove ${this.page.headName(layer, head)}`,
                    onclick: () => this.page.toggleHead(layer, head),
                  },
                  "×",
                ),
              ];
        const name = number === 0 && state.mean ? meanName(this.attention, state) : this.page.headName(layer, head);
        return element("li", {}, dot, name, ...away);
      }),
    );
  }

  /** Sets the sizes for all tokens; only the visible ones get elements. */
  layout() {
    const room = roomBelow(this.frame, 28);
    const count = Math.max(this.left.count, this.right.count);
    this.height = Math.min(HIGH, Math.max(LOW, Math.floor(room / count)));
    this.frame.style.setProperty("--height", `${this.height}px`);
    const widest = Math.max(14, this.frame.clientWidth / 24);
    this.frame.style.fontSize = `${Math.round(Math.min(22, this.height * 0.53, widest))}px`;
    for (const side of this.sides) side.style.height = `${count * this.height}px`;
    this.frame.style.height = `${Math.min(count * this.height + 4, room)}px`;
  }

  reveal(row) {
    const top = row * this.height;
    const { scrollTop, clientHeight } = this.scroller;
    if (clientHeight && (top < scrollTop || top + this.height > scrollTop + clientHeight))
      this.scroller.scrollTop = top - clientHeight / 2;
  }

  /** The first and the last visible token of a side. */
  visibleRange(count) {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / this.height));
    const last = Math.min(count - 1, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / this.height));
    return [first, last];
  }

  /** The lines of one query in one head. */
  linesOf(number, row) {
    const list = this.lists[number];
    if (!list.has(row)) {
      const count = this.columns.count > FEW ? STRONGEST : this.columns.count;
      list.set(row, this.matrices[number].strongest(row, count, this.least));
    }
    return list.get(row);
  }

  /** The token whose lines are shown focus, {row} or {column}: the hovered one, else the pinned one. */
  focused() {
    return this.hovered ?? (this.pinned === null ? null : { row: this.pinned });
  }

  paint() {
    if (!this.lists) return;
    const focus = this.focused();
    const weights = new Map(); // of the tokens on the other side of the focused one
    const lines = [];
    const [first, last] = this.visibleRange(this.rows.count);
    const [firstKey, lastKey] = this.visibleRange(this.columns.count);
    const [from, to] = focus?.row !== undefined ? [focus.row, focus.row] : [first - NEAR, last + NEAR];
    this.matrices.forEach((matrix, number) => {
      if (!matrix) return;
      for (let row = Math.max(0, from); row <= Math.min(this.rows.count - 1, to); row++) {
        for (const [column, weight] of this.linesOf(number, row)) {
          if (focus?.column !== undefined && focus.column !== column) continue;
          const inView = (row >= first && row <= last) || (column >= firstKey && column <= lastKey);
          if (inView || focus) lines.push([row, column, weight, number]);
          if (focus) {
            const other = focus.row !== undefined ? column : row;
            weights.set(other, Math.max(weights.get(other) ?? 0, weight));
          }
        }
      }
    });
    this.drawTokens(focus, weights);
    this.drawLines(lines);
    this.canvas.dispatchEvent(new CustomEvent("drawn"));
  }

  drawTokens(focus, weights) {
    [this.left, this.right].forEach((names, number) => {
      const isQuery = (number === 0) !== this.across;
      const [first, last] = this.visibleRange(names.count);
      const side = this.sides[number];
      while (side.children.length < last - first + 1) side.append(this.row(isQuery));
      while (side.children.length > Math.max(0, last - first + 1)) side.lastChild.remove();
      for (let index = first; index <= last; index++) {
        /** @type {any} */
        const node = side.children[index - first]; // it has the index and the text that it shows
        node.index = index;
        if (node.text !== names.texts[index]) {
          node.text = names.texts[index];
          label(node.text, node.firstChild);
        }
        node.style.transform = `translateY(${index * this.height}px)`;
        const isFocus = focus && (isQuery ? focus.row : focus.column) === index;
        const weight = focus && (isQuery ? focus.column : focus.row) !== undefined ? weights.get(index) : undefined;
        node.classList.toggle("own", Boolean(isFocus));
        node.classList.toggle("faint", Boolean(focus) && !isFocus && weight === undefined);
        node.lastChild.textContent = weight === undefined ? "" : percent(weight);
      }
    });
  }

  row(isQuery) {
    /** @type {any} */
    const node = element("div", { class: "row" }, element("bdi"), element("span", { class: "number" }));
    node.addEventListener("pointerenter", () =>
      this.hover(isQuery ? { row: node.index } : { column: node.index }, node.text, isQuery),
    );
    node.addEventListener("pointerleave", () => this.hover(null));
    if (isQuery) {
      node.addEventListener("click", () => {
        const token = this.rows.firstToken(node.index);
        if (getSelection().isCollapsed) this.page.set({ token: this.page.state.token === token ? null : token });
      });
    }
    return node;
  }

  hover(focus, text, isQuery) {
    this.hovered = focus;
    this.draw();
    if (!focus) return;
    const strongest = isQuery && this.matrices[0] ? this.linesOf(0, focus.row)[0] : undefined;
    const most = strongest
      ? ` attends most to ${quoted(this.columns.texts[strongest[0]])}: ${percent(strongest[1])}`
      : isQuery
        ? ""
        : " as a key";
    this.page.setStatus(`${this.page.site()}: ${quoted(text)}${most}`);
  }

  drawLines(lines) {
    const ratio = window.devicePixelRatio || 1;
    const box = this.frame.getBoundingClientRect();
    const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, box.width, box.height);
    const begin = this.sides[0].getBoundingClientRect().right - box.left + 4;
    const end = this.sides[1].getBoundingClientRect().left - box.left - 4;
    const middle = (begin + end) / 2;
    const at = (index) => (index + 0.5) * this.height - this.scroller.scrollTop;
    const heads = this.matrices.length;
    const apart = Math.min(4, this.height / (2 * heads)); // lines of several heads run side by side
    lines.sort((one, other) => one[2] - other[2]); // the largest weights on top
    for (const [row, column, weight, number] of lines) {
      const shift = (number - (heads - 1) / 2) * apart;
      const [left, right] = (this.across ? [at(column), at(row)] : [at(row), at(column)]).map((y) => y + shift);
      pen.strokeStyle = this.page.colours.heads[number];
      pen.globalAlpha = 0.07 + 0.93 * Math.min(1, weight) ** 0.8;
      pen.lineWidth = 1 + 2.5 * weight;
      pen.beginPath();
      pen.moveTo(begin, left);
      pen.bezierCurveTo(middle, left, middle, right, end, right);
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }
}
