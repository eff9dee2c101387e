// @ts-check
// A text as tokens that can be selected, picked and shaded.

import { element } from "qkv/elements.js";
import { direction, directionOf, visible, wordText } from "qkv/token_text.js";

/** `onpick(position)` gets the position of the token that was clicked. */
export class TokenStrip {
  constructor(name, onpick = null) {
    this.onpick = onpick;
    this.side = null;
    this.joined = false;
    this.marked = null;
    /** @type {HTMLElement[]} */
    this.pieces = [];
    const kind = onpick ? "strip picking" : "strip";
    this.element = element("p", { class: kind, role: "group", "aria-label": name });
    // a box that scrolls must be reachable by the Tab key
    new ResizeObserver(() => this.reach()).observe(this.element);
    this.element.addEventListener("click", (event) => {
      const piece = /** @type {Element} */ (event.target).closest("[data-position]");
      if (piece && onpick && getSelection()?.isCollapsed) onpick(Number(piece.getAttribute("data-position")));
    });
  }

  reach() {
    const { scrollHeight, clientHeight } = this.element;
    if (scrollHeight > clientHeight) this.element.tabIndex = 0;
    else this.element.removeAttribute("tabindex");
  }

  /** The tokens of a word touch; words are separated where the text has a space between them. */
  show(side, joined = false) {
    if (this.side === side && this.joined === joined) return;
    Object.assign(this, { side, joined, marked: null });
    this.pieces = [];
    const base = direction(side.tokens);
    const spaced = side.tokens.some((token) => token.startsWith(" "));
    const all = document.createDocumentFragment();
    /** @type {Node & ParentNode} */
    let run = all;
    let way = base;
    side.words.forEach((word, number) => {
      const first = side.tokens[word[1][0]] ?? "";
      if (number && !(spaced && !first.startsWith(" "))) run.append(" ");
      const own = directionOf(wordText(side, word)) ?? way;
      if (own !== way) {
        // consecutive words against the direction of the text run in their own
        run = own === base ? all : all.appendChild(element("span", { class: "run", dir: own }));
        way = own;
      }
      run.append(this.together(side, word, joined));
    });
    this.element.replaceChildren(all);
    this.element.dir = base;
  }

  together(side, word, joined) {
    const node = element("span", { class: "together" });
    const [, positions] = word;
    const parts = joined
      ? [[wordText(side, word), positions[0]]]
      : positions.map((position) => [side.tokens[position], position]);
    for (const [part, position] of parts) {
      // a single space before a token is the gap that the strip has there
      const shown = visible(part.replace(/^ (?=[^ ])/u, ""));
      const piece = element("bdi", { class: "piece", "data-position": position }, shown);
      if (part.length > 24) piece.title = shown;
      node.append(piece);
      this.pieces.push(piece);
    }
    return node;
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
