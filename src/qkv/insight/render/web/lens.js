// @ts-check
// The logit lens: the predicted tokens after each layer. Only the visible columns get elements.

import { guessBars } from "qkv/bar_list.js";
import { element, oncePerFrame, percent } from "qkv/elements.js";
import { label, layerName, quoted, tokenText } from "qkv/token_text.js";

const WIDTH = 96;
const SPARE = 3; // columns beside the visible ones

export class Lens {
  /** @type {number} */
  last;

  constructor(page) {
    this.page = page;
    this.title = "Logit lens";
    this.table = element("div", { class: "lens", role: "table", "aria-label": "The likeliest token after each layer" });
    this.scroller = element(
      "div",
      { class: "scroller deep", tabindex: 0, role: "group", "aria-label": "Layers and tokens" },
      this.table,
    );
    this.heading = element("h2");
    this.list = element("div");
    this.note = element(
      "p",
      { class: "note", hidden: true },
      "The likeliest token and its probability. An RNN has no residual stream for a logit lens.",
    );
    this.element = element(
      "section",
      { class: "view beside" },
      element("div", { class: "main" }, this.note, this.scroller),
      element("aside", { class: "side" }, this.heading, this.list),
    );
    this.draw = oncePerFrame(() => this.paint());
    this.scroller.addEventListener("scroll", this.draw);
    new ResizeObserver(this.draw).observe(this.scroller);
    this.table.addEventListener("pointerover", (event) => this.point(event));
    this.table.addEventListener("click", (event) => {
      this.point(event);
      const cell = event.target.closest("[data-position]");
      if (cell) this.page.set({ token: Number(cell.dataset.position) });
    });
  }

  async show(state) {
    const { store } = this.page;
    const layers = await store.part("lens");
    if (this.page.store !== store) return; // the text has changed meanwhile
    this.layers = layers;
    this.side = store.data.sides[store.data.text];
    this.note.hidden = this.layers.length > 1;
    const token = Math.min(state.token ?? this.end, this.end);
    if (this.token !== token || this.chosen[1] >= this.side.tokens.length) {
      this.token = token;
      this.chosen = [this.chosen?.[0] ?? this.layers.length - 1, token];
    }
    this.first = null; // the colours may have changed
    this.paint();
    this.reveal(token);
    this.paint();
    this.showCell();
    this.scrollToCell();
    this.page.setStatus(this.sentence(...this.chosen));
  }

  reveal(position) {
    const left = position * WIDTH;
    const { scrollLeft, clientWidth } = this.scroller;
    if (clientWidth && (left < scrollLeft || left + 2 * WIDTH > scrollLeft + clientWidth))
      this.scroller.scrollLeft = left - clientWidth / 2;
  }

  /** The position of the last token, which is shown until another is chosen. */
  get end() {
    return this.side.tokens.length - 1;
  }

  /** Scrolls the table, never the page, until the chosen layer is in view. */
  scrollToCell() {
    const box = this.scroller;
    const row = this.table.children[this.chosen[0] + 1];
    if (!row || box.scrollHeight <= box.clientHeight) return;
    const top = row.offsetTop - this.table.offsetTop;
    const head = this.table.firstChild.offsetHeight; // it stays at the top
    if (top - head < box.scrollTop) box.scrollTop = top - head;
    else if (top + row.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = top + row.offsetHeight - box.clientHeight;
    }
  }

  /** The arrow keys move from layer to layer. */
  key(event) {
    if (event.key === "ArrowLeft" && !event.shiftKey && this.page.state.token === null) {
      this.page.set({ token: Math.max(0, this.end - 1) }); // from the last token, which is shown
      return true;
    }
    const rows = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (rows === undefined || event.shiftKey) return false;
    const layer = Math.min(this.layers.length - 1, Math.max(0, this.chosen[0] + rows));
    this.chosen = [layer, this.chosen[1]];
    this.showCell();
    this.scrollToCell();
    this.page.setStatus(this.sentence(...this.chosen));
    return true;
  }

  point(event) {
    const cell = event.target.closest("[data-layer]");
    if (!cell) return;
    this.chosen = [Number(cell.dataset.layer), Number(cell.dataset.position)];
    this.showCell();
    this.page.setStatus(this.sentence(...this.chosen));
  }

  sentence(layer, position) {
    const [text, , probability] = this.layers[layer][position][0];
    return `${this.after(layer)}, ${quoted(this.side.tokens[position])}: ${quoted(text)}, ${percent(probability)}`;
  }

  after(layer) {
    const name = layerName(layer, this.layers.length);
    return name === "output" ? "At the output" : `After ${layer === 0 ? "the " : ""}${name}`;
  }

  showCell() {
    const [layer, position] = this.chosen;
    const { follows } = this.page.store.data;
    this.heading.replaceChildren(
      `${this.after(layer)}, ${follows ? "following" : "at the position of"} `,
      tokenText(this.side.tokens[position], { class: "word" }),
    );
    const actual = this.side.ids[follows ? position + 1 : position];
    this.list.replaceChildren(guessBars(this.layers[layer][position], actual));
    this.table.querySelector(".chosen")?.classList.remove("chosen");
    this.table.querySelector(`[data-layer="${layer}"][data-position="${position}"]`)?.classList.add("chosen");
  }

  paint() {
    if (!this.layers) return;
    const count = this.side.tokens.length;
    const first = Math.max(0, Math.floor(this.scroller.scrollLeft / WIDTH) - SPARE);
    const last = Math.min(count - 1, Math.ceil((this.scroller.scrollLeft + this.scroller.clientWidth) / WIDTH) + SPARE);
    if (this.first === first && this.last === last) return;
    Object.assign(this, { first, last });
    const positions = Array.from({ length: last - first + 1 }, (_, index) => first + index);
    const line = (name, cells) => {
      const spacer = element("span", { class: "room" });
      spacer.style.width = `${first * WIDTH}px`;
      return element("div", { role: "row", class: "lens-row" }, name, spacer, ...cells);
    };
    const top = positions.map((position) =>
      element(
        "span",
        { role: "columnheader", class: "lens-word", "data-position": position },
        label(this.side.tokens[position]),
      ),
    );
    const rows = this.layers.map((guesses, layer) =>
      line(
        element("span", { role: "rowheader", class: "lens-layer" }, layerName(layer, this.layers.length)),
        positions.map((position) => this.cell(layer, position, guesses[position][0])),
      ),
    );
    this.table.style.width = `calc(var(--lens-name) + ${count * WIDTH}px)`;
    this.table.replaceChildren(
      line(element("span", { class: "lens-layer corner", role: "columnheader" }, "layer \\ token"), top),
      ...rows,
    );
    const [layer, position] = this.chosen;
    this.table.querySelector(`[data-layer="${layer}"][data-position="${position}"]`)?.classList.add("chosen");
  }

  cell(layer, position, [text, , probability]) {
    const node = element(
      "span",
      { role: "cell", class: "lens-cell", "data-layer": layer, "data-position": position },
      label(text),
      element("span", { class: "number" }, `${Math.round(100 * probability)}%`),
    );
    this.page.colours.shade(node, probability);
    return node;
  }
}
