// @ts-check
// What the current place of the whole model shows: tokens, vectors, additions, heads, predictions, the draw.

import { barList, guessBars, keyBars } from "qkv/bar_list.js";
import { element } from "qkv/elements.js";
import { Draw, logitList, softmaxList } from "qkv/model_walk_end.js";
import { headTiles } from "qkv/model_walk_heads.js";
import { PARTS, brief, ofSource, placeOf, stackAt } from "qkv/model_walk_places.js";
import { embeddingLines, positionMap, vectorLine } from "qkv/model_walk_vectors.js";
import { tokenText } from "qkv/token_text.js";

const KEYS = 8; // source tokens that are listed for a context vector

export class Detail {
  constructor(page, onpick) {
    this.page = page;
    this.onpick = onpick;
    this.draw = new Draw();
    this.element = element("div", { class: "place-detail" });
  }

  /** Fills the panel; an RNN's weights may have to be loaded. */
  async show(told) {
    const nodes = await this.nodes(told);
    if (nodes) this.element.replaceChildren(...nodes.filter(Boolean));
  }

  async nodes(told) {
    const { walk, place, token, theme } = told;
    const { stack, part, name } = placeOf(walk, place);
    if (part) return this.insideBlock(told, placeOf(walk, place));
    if (stack) return this.block(told, placeOf(walk, place));
    const actual = this.page.store.data.follows ? walk.sides[0].ids[token + 1] : walk.sides[0].ids[token];
    if (name === "tokens" || name === "source") return [this.tokens(told)];
    if (name === "logits") return [logitList(walk.next[token], actual)];
    if (name === "softmax") return [softmaxList(walk.next[token], actual)];
    if (name === "draw") {
      this.draw.show(walk.next[token]);
      return [this.draw.element];
    }
    if (name === "norm" || name === "output") return [this.ending(walk, token)];
    const at = stackAt(walk, place);
    if (!at) return this.recurrent(told, name);
    const count = walk.sides[at.side].tokens.length;
    return [...embeddingLines(at.embedding, token, theme), positionMap(walk.positions, token, count, theme)];
  }

  /** Each token above its id. */
  tokens({ walk, place, token }) {
    const { tokens, ids } = walk.sides[ofSource(walk, place) ? 1 : 0];
    const chips = tokens.map((text, position) =>
      element(
        "button",
        {
          type: "button",
          class: "chip",
          "data-position": position,
          "aria-pressed": String(position === token),
          onclick: () => this.onpick(position),
        },
        tokenText(text, { class: "word" }),
        element("span", { class: "number" }, ids[position]),
      ),
    );
    return element("div", { class: "id-chips", role: "group", "aria-label": "Tokens and their ids" }, ...chips);
  }

  // Blocks

  /** The additions of a block as bars, and the lens after it. */
  block({ walk, token }, { stack, layer }) {
    const parts = stack.blocks[layer];
    const rows = [["stream before", parts[0].before[token]]];
    for (const { name, added } of parts) rows.push([`${PARTS[name]} adds`, added[token]]);
    rows.push(["stream after", parts.at(-1).after[token]]);
    const guesses = stack === walk.stacks.at(-1) ? walk.lens?.[layer + 1][token] : null;
    return [lengthBars(rows), this.open(stack, layer), ...this.lens(walk, guesses, token, "Read out after this block")];
  }

  open(stack, layer) {
    const inside = `${stack.kind}.${layer}.${stack.norm === "before" ? "norm_attention" : stack.blocks[layer][0].name}`;
    const go = () => this.page.set({ place: inside });
    return element("button", { type: "button", class: "open-block", onclick: go }, "Open this block");
  }

  lens(walk, guesses, token, title) {
    if (!guesses) return [];
    const { ids } = walk.sides[0];
    const actual = this.page.store.data.follows ? ids[token + 1] : ids[token];
    return [element("h2", {}, title), guessBars(guesses, actual)];
  }

  /** One step inside a block: its lengths, and the heads of an attention. */
  insideBlock({ token }, { stack, layer, part, action }) {
    if (action === "norm") {
      const before = stack.norm === "before";
      const [from, to] = before ? [part.before, part.read] : [part.sum, part.after];
      return [
        lengthBars([
          [before ? "stream" : "sum", from[token]],
          [before ? `read by ${PARTS[part.name]}` : "stream after", to[token]],
        ]),
      ];
    }
    if (action === "add") {
      const rows = [
        ["stream", part.before[token]],
        [PARTS[part.name], part.added[token]],
        ["sum", part.sum[token]],
      ];
      return [lengthBars(rows), angle(part, token)];
    }
    const rows = [[`read by ${PARTS[part.name]}`, part.read?.[token] ?? null], ["handed on", part.added[token]]];
    const lengths = lengthBars(rows.filter(([, length]) => length !== null));
    if (!part.name.endsWith("attention")) return [lengths];
    const kind = part.name === "cross_attention" ? "cross" : stack.kind;
    const title = "What each head adds, as a length; choose one to walk it";
    return [lengths, element("h2", {}, title), headTiles(this.page, kind, layer, part.heads, token)];
  }

  ending(walk, token) {
    const stack = walk.stacks.at(-1);
    if (!stack) return lengthBars([["output", walk.steps.at(-1).lengths[token]]]);
    const last = stack.blocks.at(-1).at(-1).after[token];
    return lengthBars([["stream", last], ["output", stack.output[token]]]);
  }

  // An RNN

  async recurrent({ walk, token, theme, sourceToken }, name) {
    const step = walk.steps.find((one) => one.name === name);
    const at = step.side === 1 ? sourceToken : token;
    const line = vectorLine("vector", step, at, theme);
    const attention = this.page.store.data.attention[0];
    if (name !== "context" || !attention) return [line];
    const { store } = this.page;
    const matrix = await store.matrix(attention.kind, 0, 0);
    if (this.page.store !== store || !matrix) return [line];
    const names = this.page.namesOf(attention, false).columns;
    const title = element("h2", {}, "Weights of the encoder's states");
    return [line, title, keyBars(names, matrix.strongest(token, KEYS), KEYS)];
  }
}

/** Lengths as bars on one scale. */
function lengthBars(rows) {
  const most = Math.max(1e-9, ...rows.map(([, length]) => length ?? 0));
  const bars = rows.map(([text, length]) => ({ text, value: (length ?? 0) / most, shown: brief(length) }));
  return barList(bars, { label: "Lengths", kind: "length-list" });
}

/** The angle between the stream and what is added to it. */
function angle(part, token) {
  const cosine = part.cosine[token] ?? 0;
  const degrees = Math.round((Math.acos(Math.min(1, Math.max(-1, cosine))) * 180) / Math.PI);
  return element("p", { class: "note" }, `Cosine ${cosine.toFixed(3).replace("-", "−")}: an angle of ${degrees}°.`);
}
