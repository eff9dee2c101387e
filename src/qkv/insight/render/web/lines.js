// Lines between words: who looks on one side, who is looked at on the other; one head, or several in their colours.

import { element, oncePerFrame, percent, roomBelow } from "qkv/elements.js";
import { missing } from "qkv/head.js";
import { label, quoted } from "qkv/words.js";

const [LOW, HIGH] = [28, 54]; // pixels of a word, where there are many and where there are few
const FEW = 32; // words, between which all lines are drawn
const STRONGEST = 12; // lines of a word where there are more
const LEAST = 0.005; // a weight that is still a line
const NEAR = 300; // words above and below whose lines come into sight
const CHOSEN = 6; // heads beside the current one

export class Lines {
  constructor(page) {
    this.page = page;
    this.title = "Lines";
    this.buttons = element("div", { class: "choice wrap", role: "group", "aria-label": "More heads of this layer" });
    this.chosen = element("ul", { class: "chips", "aria-label": "Heads that are drawn" });
    this.note = element("p", { class: "note" });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.sides = [element("div", { class: "words left" }), element("div", { class: "words right" })];
    this.heads = [element("h2"), element("h2")];
    this.scroller = element(
      "div",
      { class: "lines", tabindex: 0, role: "group", "aria-label": "Words and the lines between them" },
      ...this.sides,
    );
    this.frame = element("div", { class: "frame" }, this.canvas, this.scroller);
    this.element = element(
      "section",
      { class: "view" },
      element("div", { class: "line" }, element("span", { class: "name" }, "More heads"), this.buttons, this.chosen),
      this.note,
      element("div", { class: "two" }, ...this.heads),
      this.frame,
    );
    this.hovered = null;
    this.draw = oncePerFrame(() => this.paint());
    this.scroller.addEventListener("scroll", this.draw);
    new ResizeObserver(this.draw).observe(this.scroller);
  }

  /** Heads as [layer, head]: the current one first. */
  drawn({ layer, head, kept }) {
    return [[layer, head], ...kept.filter(([other, which]) => other !== layer || which !== head)].slice(0, CHOSEN + 1);
  }

  async show(state) {
    const { store } = this.page;
    this.attention = store.attention(state.kind);
    const names = this.page.names(state.kind);
    const across = state.kind === "cross"; // the source is on the left, as it is read first
    this.left = across ? names.columns : names.rows;
    this.right = across ? names.rows : names.columns;
    this.across = across;
    Object.assign(this, names);
    const [looks, looked] = ["looks", "is looked at"];
    this.heads[0].textContent = across ? `Source: ${looked}` : looks;
    this.heads[1].textContent = across ? `Target: ${looks}` : looked;
    this.choices(state);
    const full = this.attention.layers.includes(state.layer);
    this.note.replaceChildren(
      ...(full
        ? [
            `Weights from ${percent(LEAST)} on; the stronger, the bolder.`,
            this.columns.count > FEW ? ` At most ${STRONGEST} lines a word.` : "",
          ]
        : missing(this.attention, state.layer)),
    );
    const asked = (this.asked = JSON.stringify([store.number, this.drawn(state), state.kind, state.words]));
    if (this.shown !== asked) {
      const matrices = await Promise.all(
        this.drawn(state).map(
          async ([layer, head]) => (await store.matrix(state.kind, layer, head, state.words)) ?? null,
        ),
      );
      if (this.asked !== asked) return;
      this.matrices = matrices;
      this.lists = matrices.map(() => new Map());
      this.shown = asked;
    }
    this.pinned = state.token === null ? null : this.rows.of(state.token);
    this.place();
    if (this.pinned !== null) this.revealed(this.pinned);
    this.paint();
  }

  choices(state) {
    const { colours } = this.page;
    const heads = this.drawn(state);
    const colourOf = (layer, head) => heads.findIndex(([a, b]) => a === layer && b === head);
    this.buttons.replaceChildren(
      ...Array.from({ length: this.attention.heads }, (_, head) => {
        const pressed = colourOf(state.layer, head) >= 0;
        const made = element(
          "button",
          {
            type: "button",
            "aria-pressed": String(pressed),
            "aria-label": this.attention.names?.[head] ?? `Head ${head}`,
            disabled: head === state.head,
            onclick: () => this.page.keep(state.layer, head),
          },
          this.attention.names?.[head] ?? head,
        );
        if (pressed) made.style.borderBottomColor = colours.heads[colourOf(state.layer, head)];
        return made;
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
                    "aria-label": `Leave out ${this.page.called(layer, head)}`,
                    onclick: () => this.page.keep(layer, head),
                  },
                  "×",
                ),
              ];
        return element("li", {}, dot, this.page.called(layer, head), ...away);
      }),
    );
  }

  /** Room for all words; only those in sight are made. */
  place() {
    const room = roomBelow(this.frame, 28);
    const count = Math.max(this.left.count, this.right.count);
    this.height = Math.min(HIGH, Math.max(LOW, Math.floor(room / count)));
    this.frame.style.setProperty("--height", `${this.height}px`);
    const widest = Math.max(14, this.frame.clientWidth / 24);
    this.frame.style.fontSize = `${Math.round(Math.min(22, this.height * 0.53, widest))}px`;
    for (const side of this.sides) side.style.height = `${count * this.height}px`;
    this.frame.style.height = `${Math.min(count * this.height + 4, room)}px`;
  }

  revealed(row) {
    const top = row * this.height;
    const { scrollTop, clientHeight } = this.scroller;
    if (clientHeight && (top < scrollTop || top + this.height > scrollTop + clientHeight))
      this.scroller.scrollTop = top - clientHeight / 2;
  }

  inSight(count) {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / this.height));
    const last = Math.min(count - 1, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / this.height));
    return [first, last];
  }

  /** The lines that start at a word that looks, of one head. */
  from(number, row) {
    const list = this.lists[number];
    if (!list.has(row)) {
      const count = this.columns.count > FEW ? STRONGEST : this.columns.count;
      list.set(row, this.matrices[number].strongest(row, count, LEAST));
    }
    return list.get(row);
  }

  /** Who is alone: {row} or {column} of the word under the mouse, else of the pinned one. */
  alone() {
    return this.hovered ?? (this.pinned === null ? null : { row: this.pinned });
  }

  paint() {
    if (!this.lists) return;
    const alone = this.alone();
    const weights = new Map(); // of the words on the other side of the one that is alone
    const lines = [];
    const [first, last] = this.inSight(this.rows.count);
    const [firstLooked, lastLooked] = this.inSight(this.columns.count);
    const [from, to] = alone?.row !== undefined ? [alone.row, alone.row] : [first - NEAR, last + NEAR];
    this.matrices.forEach((matrix, number) => {
      if (!matrix) return;
      for (let row = Math.max(0, from); row <= Math.min(this.rows.count - 1, to); row++) {
        for (const [column, weight] of this.from(number, row)) {
          if (alone?.column !== undefined && alone.column !== column) continue;
          const seen = (row >= first && row <= last) || (column >= firstLooked && column <= lastLooked);
          if (seen || alone) lines.push([row, column, weight, number]);
          if (alone) {
            const other = alone.row !== undefined ? column : row;
            weights.set(other, Math.max(weights.get(other) ?? 0, weight));
          }
        }
      }
    });
    this.words(alone, weights);
    this.strokes(lines);
    this.canvas.dispatchEvent(new CustomEvent("drawn"));
  }

  words(alone, weights) {
    [this.left, this.right].forEach((names, number) => {
      const looks = (number === 0) !== this.across;
      const [first, last] = this.inSight(names.count);
      const side = this.sides[number];
      while (side.children.length < last - first + 1) side.append(this.row(looks));
      while (side.children.length > Math.max(0, last - first + 1)) side.lastChild.remove();
      for (let index = first; index <= last; index++) {
        const made = side.children[index - first];
        made.index = index;
        if (made.of !== names.texts[index]) {
          made.of = names.texts[index];
          label(made.of, made.firstChild);
        }
        made.style.transform = `translateY(${index * this.height}px)`;
        const own = alone && (looks ? alone.row : alone.column) === index;
        const weight = alone && (looks ? alone.column : alone.row) !== undefined ? weights.get(index) : undefined;
        made.classList.toggle("own", Boolean(own));
        made.classList.toggle("faint", Boolean(alone) && !own && weight === undefined);
        made.lastChild.textContent = weight === undefined ? "" : percent(weight);
      }
    });
  }

  row(looks) {
    const made = element("div", { class: "row" }, element("bdi"), element("span", { class: "number" }));
    made.addEventListener("pointerenter", () =>
      this.hover(looks ? { row: made.index } : { column: made.index }, made.of, looks),
    );
    made.addEventListener("pointerleave", () => this.hover(null));
    if (looks) {
      made.addEventListener("click", () => {
        const token = this.rows.piece(made.index);
        if (getSelection().isCollapsed) this.page.set({ token: this.page.state.token === token ? null : token });
      });
    }
    return made;
  }

  hover(alone, text, looks) {
    this.hovered = alone;
    this.draw();
    if (!alone) return;
    const strongest = looks && this.matrices[0] ? this.from(0, alone.row)[0] : undefined;
    const most = strongest
      ? `, most of all at ${quoted(this.columns.texts[strongest[0]])}: ${percent(strongest[1])}`
      : "";
    this.page.say(`${this.page.place()}: ${quoted(text)} ${looks ? `looks${most}` : "is looked at"}`);
  }

  strokes(lines) {
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
    const apart = Math.min(4, this.height / (2 * heads)); // heads that agree run side by side
    lines.sort((one, other) => one[2] - other[2]); // the strongest on top
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
