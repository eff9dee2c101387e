// A text as tokens that can be selected, picked and shaded.

import { element } from "qkv/elements.js";
import { direction, visible, wordText } from "qkv/token_text.js";

/** `onpick(position)` gets the position of the token that was clicked. */
export class TokenStrip {
  constructor(name, onpick = null) {
    this.onpick = onpick;
    this.element = element("p", { class: onpick ? "strip picking" : "strip", "aria-label": name });
    this.element.addEventListener("click", (event) => {
      const piece = event.target.closest("[data-position]");
      if (piece && onpick && getSelection().isCollapsed) onpick(Number(piece.dataset.position));
    });
  }

  /** The tokens of a word touch; words are separated. */
  show(side, joined = false) {
    if (this.side === side && this.joined === joined) return;
    Object.assign(this, { side, joined, marked: null });
    this.pieces = [];
    const all = document.createDocumentFragment();
    for (const [text, positions] of side.words) {
      const together = element("span", { class: "together" });
      const parts = joined
        ? [[wordText(side, [text, positions]), positions[0]]]
        : positions.map((position) => [side.tokens[position], position]);
      for (const [part, position] of parts) {
        const piece = element("bdi", { class: "piece", "data-position": position }, visible(part));
        if (part.length > 24) piece.title = visible(part);
        together.append(piece);
        this.pieces.push(piece);
      }
      all.append(together, " ");
    }
    this.element.replaceChildren(all);
    this.element.dir = direction(side.tokens);
  }

  /** One weight for each token or word that is shown, or null. */
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

  /** Scrolls its own box to the framed one, never the page. */
  reveal() {
    const box = this.element;
    if (!this.marked || box.scrollHeight <= box.clientHeight) return;
    const top = this.marked.offsetTop - box.offsetTop;
    if (top < box.scrollTop || top + 30 > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  }
}
