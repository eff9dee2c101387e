// A text as words one can select, pick and see shaded.

import { element } from "qkv/elements.js";
import { direction, visible, whole } from "qkv/words.js";

/** `onpick(piece)` is told the place of the piece that was clicked. */
export class Strip {
  constructor(name, onpick = null) {
    this.onpick = onpick;
    this.element = element("p", { class: onpick ? "strip picking" : "strip", "aria-label": name });
    this.element.addEventListener("click", (event) => {
      const piece = event.target.closest("[data-place]");
      if (piece && onpick && getSelection().isCollapsed) onpick(Number(piece.dataset.place));
    });
  }

  /** The pieces of a word touch; words stand apart. */
  show(side, joined = false) {
    if (this.side === side && this.joined === joined) return;
    Object.assign(this, { side, joined, marked: null });
    this.pieces = [];
    const all = document.createDocumentFragment();
    for (const [text, places] of side.words) {
      const together = element("span", { class: "together" });
      const parts = joined ? [[whole(side, [text, places]), places[0]]] : places.map((at) => [side.tokens[at], at]);
      for (const [part, place] of parts) {
        const made = element("bdi", { class: "piece", "data-place": place }, visible(part));
        if (part.length > 24) made.title = visible(part);
        together.append(made);
        this.pieces.push(made);
      }
      all.append(together, " ");
    }
    this.element.replaceChildren(all);
    this.element.dir = direction(side.tokens);
  }

  /** One weight for each word or piece that is shown, or null. */
  shade(weights, colours) {
    this.pieces.forEach((piece, index) => colours.shade(piece, weights ? weights[index] : null));
  }

  /** Frames the one with this index. */
  mark(index) {
    this.marked?.classList.remove("marked");
    this.marked?.removeAttribute("aria-current");
    this.marked = index === null ? null : (this.pieces[index] ?? null);
    this.marked?.classList.add("marked");
    this.marked?.setAttribute("aria-current", "true");
  }

  /** Scrolls its own box, never the page. */
  reveal() {
    const box = this.element;
    if (!this.marked || box.scrollHeight <= box.clientHeight) return;
    const top = this.marked.offsetTop - box.offsetTop;
    if (top < box.scrollTop || top + 30 > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  }
}
