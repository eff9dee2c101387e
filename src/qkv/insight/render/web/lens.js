// The logit lens: what the model would say after each layer. Only the columns in sight are made.

import { element, oncePerFrame, percent } from "qkv/elements.js";
import { bars } from "qkv/head.js";
import { label, quoted, stage, word } from "qkv/words.js";

const WIDTH = 96;
const SPARE = 3; // columns beside those in sight

export class Lens {
  constructor(page) {
    this.page = page;
    this.title = "Logit lens";
    this.table = element("div", { class: "lens", role: "table", "aria-label": "The likeliest token after each layer" });
    this.scroller = element(
      "div",
      { class: "scroller deep", tabindex: 0, role: "group", "aria-label": "Layers and words" },
      this.table,
    );
    this.heading = element("h2");
    this.list = element("div");
    this.note = element("p", { class: "note" });
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
      const cell = event.target.closest("[data-place]");
      if (cell) this.page.set({ token: Number(cell.dataset.place) });
    });
  }

  async show(state) {
    const { store } = this.page;
    const layers = await store.part("lens");
    if (this.page.store !== store) return; // the text is another by now
    this.layers = layers;
    this.side = store.data.sides[store.data.text];
    this.note.textContent =
      this.layers.length === 1
        ? "What the model says: the likeliest token, and how likely. An RNN has no residual stream to read before."
        : "What the output layer would say after each layer: the likeliest token, and how likely.";
    const last = this.side.tokens.length - 1;
    const { grows } = this.page.standing;
    const token = Math.min(state.token ?? (grows ? last : 0), last);
    if (this.token !== token || this.chosen[1] >= this.side.tokens.length) {
      this.token = token;
      this.chosen = [this.chosen?.[0] ?? this.layers.length - 1, token];
    }
    this.first = null; // the colours may be others
    this.paint();
    if (grows || state.token !== null) this.reveal(token);
    this.paint();
    this.tell();
    this.page.say(this.sentence(...this.chosen));
  }

  reveal(place) {
    const left = place * WIDTH;
    const { scrollLeft, clientWidth } = this.scroller;
    if (clientWidth && (left < scrollLeft || left + 2 * WIDTH > scrollLeft + clientWidth))
      this.scroller.scrollLeft = left - clientWidth / 2;
  }

  /** The arrows go from cell to cell. */
  key(event) {
    const rows = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (rows === undefined || event.shiftKey) return false;
    const layer = Math.min(this.layers.length - 1, Math.max(0, this.chosen[0] + rows));
    this.chosen = [layer, this.chosen[1]];
    this.tell();
    this.table.querySelector(".chosen")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.page.say(this.sentence(...this.chosen));
    return true;
  }

  point(event) {
    const cell = event.target.closest("[data-layer]");
    if (!cell) return;
    this.chosen = [Number(cell.dataset.layer), Number(cell.dataset.place)];
    this.tell();
    this.page.say(this.sentence(...this.chosen));
  }

  sentence(layer, place) {
    const [text, , probability] = this.layers[layer][place][0];
    return `${this.after(layer)}, ${quoted(this.side.tokens[place])}: ${quoted(text)}, ${percent(probability)}`;
  }

  after(layer) {
    const name = stage(layer, this.layers.length);
    return name === "output" ? "At the output" : `After ${layer === 0 ? "the " : ""}${name}`;
  }

  tell() {
    const [layer, place] = this.chosen;
    const { follows } = this.page.store.data;
    this.heading.replaceChildren(
      `${this.after(layer)}, ${follows ? "following" : "in the place of"} `,
      word(this.side.tokens[place], { class: "word" }),
    );
    const real = this.side.ids[follows ? place + 1 : place];
    this.list.replaceChildren(
      bars(this.layers[layer][place].map(([text, id, probability]) => [text, probability, id === real])),
    );
    this.table.querySelector(".chosen")?.classList.remove("chosen");
    this.table.querySelector(`[data-layer="${layer}"][data-place="${place}"]`)?.classList.add("chosen");
  }

  paint() {
    if (!this.layers) return;
    const count = this.side.tokens.length;
    const first = Math.max(0, Math.floor(this.scroller.scrollLeft / WIDTH) - SPARE);
    const last = Math.min(count - 1, Math.ceil((this.scroller.scrollLeft + this.scroller.clientWidth) / WIDTH) + SPARE);
    if (this.first === first && this.last === last) return;
    Object.assign(this, { first, last });
    const places = Array.from({ length: last - first + 1 }, (_, place) => first + place);
    const line = (name, cells) => {
      const room = element("span", { class: "room" });
      room.style.width = `${first * WIDTH}px`;
      return element("div", { role: "row", class: "lens-row" }, name, room, ...cells);
    };
    const top = places.map((place) =>
      element(
        "span",
        { role: "columnheader", class: "lens-word", "data-place": place },
        label(this.side.tokens[place]),
      ),
    );
    const rows = this.layers.map((places_, layer) =>
      line(
        element("span", { role: "rowheader", class: "lens-layer" }, stage(layer, this.layers.length)),
        places.map((place) => this.cell(layer, place, places_[place][0])),
      ),
    );
    this.table.style.width = `calc(var(--lens-name) + ${count * WIDTH}px)`;
    this.table.replaceChildren(
      line(element("span", { class: "lens-layer corner", role: "columnheader" }, "layer \\ word"), top),
      ...rows,
    );
    const [layer, place] = this.chosen;
    this.table.querySelector(`[data-layer="${layer}"][data-place="${place}"]`)?.classList.add("chosen");
  }

  cell(layer, place, [text, , probability]) {
    const made = element(
      "span",
      { role: "cell", class: "lens-cell", "data-layer": layer, "data-place": place },
      label(text),
      element("span", { class: "number" }, `${Math.round(100 * probability)}%`),
    );
    this.page.colours.shade(made, probability);
    return made;
  }
}
