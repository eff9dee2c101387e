// All heads: a row for each layer, a column for each head; a small heat map of each, its entropy or its distance.

import { choice, element } from "qkv/elements.js";

const NUMBERS = {
  entropy: ["Entropy", "bits: 0 is one token, 3 is eight tokens equally", 2, "bits"],
  distance: ["Distance", "tokens: the mean distance between a token and those it attends to", 1, "tokens"],
};

export class AllHeads {
  constructor(page) {
    this.page = page;
    this.title = "All heads";
    this.pattern = choice(
      "What is shown of each head",
      [
        ["pattern", "Pattern"],
        ["entropy", "Entropy"],
        ["distance", "Distance"],
      ],
      (glance) => page.set({ glance }),
    );
    this.note = element("p", { class: "note" });
    this.table = element("div", { class: "grid", role: "grid", "aria-label": "Heads by layer" });
    this.scroller = element("div", { class: "scroller" }, this.table);
    this.heading = element("h2");
    this.large = element("canvas", { class: "closer", "aria-hidden": "true" });
    this.facts = element("p", { class: "note" });
    const open = element("button", { type: "button", onclick: () => page.set({ view: "head" }) }, "Open the heat map");
    this.element = element(
      "section",
      { class: "view" },
      element("div", { class: "line" }, this.pattern.element, this.note),
      element(
        "div",
        { class: "beside fitted" },
        element("div", { class: "main" }, this.scroller),
        element("aside", { class: "side" }, this.heading, this.large, this.facts, open),
      ),
    );
  }

  show(state) {
    const { store, colours } = this.page;
    const attention = store.attention(state.kind);
    const glance = state.glance === "distance" && attention.distance === null ? "pattern" : state.glance;
    this.pattern.show(glance);
    this.pattern.element.lastChild.disabled = attention.distance === null;
    if (this.kind !== state.kind) this.build(attention);
    const ratio = Math.min(2, Math.max(0.5, attention.shape[1] / attention.shape[0]));
    for (const part of [this.table, this.large]) part.style.setProperty("--ratio", ratio);
    const drawn = `${store.number} ${state.kind} ${glance} ${colours.theme} ${colours.scale}`;
    if (this.drawn !== drawn) {
      this.drawn = drawn;
      if (glance === "pattern") this.drawPatterns(attention);
      else this.drawNumbers(attention, glance);
    }
    this.choose(state);
  }

  build(attention) {
    this.kind = attention.kind;
    const { depth, heads } = attention;
    const corner = element("span", { class: "corner", role: "columnheader" }, "layer \\ head");
    const top = Array.from({ length: heads }, (_, head) =>
      element("span", { class: "axis", role: "columnheader" }, head),
    );
    const lines = [element("div", { role: "row", class: "contents" }, corner, ...top)];
    this.cells = [];
    for (let layer = 0; layer < depth; layer++) {
      const cells = Array.from({ length: heads }, (_, head) => {
        const cell = element(
          "button",
          {
            type: "button",
            class: "cell",
            role: "gridcell",
            tabindex: -1,
            "data-at": `${layer}.${head}`,
            onclick: () => this.page.set({ layer, head, view: "head" }),
            onfocus: () => this.page.set({ layer, head }),
            onpointerenter: () => this.enlarge(layer, head),
            onpointerleave: () => this.enlarge(this.page.state.layer, this.page.state.head),
          },
          element("canvas", { "aria-hidden": "true" }),
        );
        this.cells.push(cell);
        return cell;
      });
      const name = element("span", { class: "axis", role: "rowheader" }, layer);
      lines.push(element("div", { role: "row", class: "contents" }, name, ...cells));
    }
    this.table.style.setProperty("--heads", heads);
    this.table.style.setProperty("--layers", depth);
    this.table.replaceChildren(...lines);
    this.drawn = null;
  }

  /** The head and its numbers as a sentence. */
  describe(layer, head) {
    const attention = this.page.store.attention(this.kind);
    const numbers = Object.entries(NUMBERS)
      .filter(([name]) => attention[name])
      .map(
        ([name, [title, , digits, unit]]) =>
          `${title.toLowerCase()} ${attention[name][layer][head].toFixed(digits)} ${unit}`,
      );
    return `Layer ${layer}, head ${head}: ${numbers.join(", ")}`;
  }

  /** Draws a head from the overview, a pixel for each of its cells. */
  drawOn(canvas, layer, head) {
    const { store, colours } = this.page;
    const { levels, code, most } = store.coarse(this.kind, layer, head);
    const { rows, columns, numbers } = levels[0];
    const table = colours.table(code, most);
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < numbers.length; at++) pixels[at] = table[numbers[at]];
    canvas.width = columns;
    canvas.height = rows;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** Draws one head larger beside the others. */
  enlarge(layer, head) {
    const description = this.describe(layer, head);
    this.heading.textContent = `Layer ${layer}, head ${head}`;
    this.facts.textContent = description.split(": ")[1].replace(/^./, (letter) => letter.toUpperCase());
    this.drawOn(this.large, layer, head);
    this.page.setStatus(description);
  }

  drawPatterns(attention) {
    const long = Math.max(...attention.shape) > Math.max(...attention.overview);
    this.note.textContent = long
      ? "Each dot is the largest weight among several tokens."
      : "Rows are queries, columns are keys.";
    this.table.classList.remove("numbers");
    this.drawCells(attention, (cell, layer, head) => {
      this.drawOn(cell.firstChild, layer, head);
      cell.style.backgroundColor = "";
      cell.dataset.number = "";
    });
  }

  drawNumbers(attention, name) {
    const { colours } = this.page;
    const [title, meaning, digits] = NUMBERS[name];
    const most = Math.max(1e-9, ...attention[name].flat());
    this.note.textContent = `${title} in ${meaning}.`;
    this.table.classList.add("numbers");
    this.drawCells(attention, (cell, layer, head) => {
      const number = attention[name][layer][head];
      const t = number / most;
      cell.style.backgroundColor = `rgb(${colours.at(t)})`;
      cell.style.color = colours.ink(t);
      cell.dataset.number = number.toFixed(digits);
    });
  }

  drawCells({ depth, heads }, draw) {
    for (let layer = 0; layer < depth; layer++) {
      for (let head = 0; head < heads; head++) {
        const cell = this.cells[layer * heads + head];
        draw(cell, layer, head);
        cell.setAttribute("aria-label", this.describe(layer, head));
        this.crossOut(cell, layer, head);
      }
    }
  }

  /** Crosses out a head that is switched off. */
  crossOut(cell, layer, head) {
    const off = this.page.host.off(layer, head);
    cell.classList.toggle("crossed", off);
    if (off) cell.setAttribute("aria-label", `${this.describe(layer, head)}; switched off`);
  }

  /** Marks the chosen head; the focus moves along if it is in the table. */
  choose({ layer, head }) {
    const { heads } = this.page.store.attention(this.kind);
    const focused = this.table.contains(document.activeElement);
    for (const cell of this.table.querySelectorAll("[aria-current]")) {
      cell.removeAttribute("aria-current");
      cell.tabIndex = -1;
    }
    const cell = this.cells[layer * heads + head];
    cell.setAttribute("aria-current", "true");
    cell.tabIndex = 0;
    if (focused) cell.focus({ preventScroll: false });
    this.enlarge(layer, head);
  }
}
