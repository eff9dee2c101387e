// @ts-check
// What comes after the head: the output projection, the residual stream, and the prediction before and after.

import { barList } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { tokenText } from "qkv/token_text.js";
import { VectorStrip, short } from "qkv/vector_strip.js";
import { scaleOf } from "qkv/walk_math.js";

const LENGTHS = [
  ["before", "residual stream before"],
  ["written", "what this head writes"],
  ["after", "residual stream after"],
];

/** A strip with a name above it. */
function named(name, strip) {
  return element("div", { class: "named-strip" }, element("span", { class: "strip-name" }, name), strip.element);
}

/** Where the rest of the model is computed under edits. */
export function rest() {
  return ["The playground (", element("code", {}, "qkv serve MODEL"), ") computes the rest anew."];
}

/** Tokens with their probability before and after; one of them is outlined: `marked`, else the largest change. */
export function changes(tokens, label, marked = undefined) {
  const sizes = tokens.map(([, , before, after]) => Math.abs(after - before));
  const most = Math.max(...sizes);
  const rows = tokens.map(([text, id, before, after], number) => ({
    text,
    value: after,
    before,
    actual: marked === undefined ? most > 0 && sizes[number] === most : id === marked,
    shown: `${percent(before)} → ${percent(after)}`,
  }));
  return barList(rows, { label, kind: "changes" });
}

export class After {
  constructor(onhover) {
    this.output = new VectorStrip("of-value", onhover);
    this.written = new VectorStrip("of-written");
    this.outputName = element("span");
    this.writtenName = element("span");
    this.lengths = element("ol", { class: "bars lengths", "aria-label": "Lengths of vectors" });
    this.vectors = element(
      "div",
      { class: "vectors" },
      named(this.outputName, this.output),
      element("p", { class: "arrow" }, "↓ output projection W", element("sub", {}, "O")),
      named(this.writtenName, this.written),
      element("p", { class: "arrow" }, "↓ added to the residual stream"),
      this.lengths,
    );
    this.lens = element("div", { class: "lens-pair" });
    this.note = element("p", { class: "note" });
    this.readout = element("p", { class: "readout", "aria-live": "polite" });
    this.element = element("div", { class: "after" }, this.vectors, this.lens, this.readout, this.note);
  }

  /** `behind` are the nodes of a note if the numbers are those without the edits, else null. */
  show({ walk, row, step, theme, behind, real }) {
    const { token } = row;
    this.vectors.hidden = this.readout.hidden = step !== 9;
    this.lens.hidden = step !== 10 || !walk.lens;
    this.output.show(row.output, scaleOf([row.output]), theme, "What the head hands on");
    this.outputName.textContent = `what the head hands on: ${row.output.length} numbers`;
    const written = walk.written?.[token];
    for (const node of [...this.vectors.children].slice(1)) node.hidden = !written;
    if (written) {
      this.written.show(written, scaleOf([written]), theme, "What the head writes");
      this.writtenName.textContent = `what the head writes: ${written.length} numbers`;
      this.showLengths(walk.lengths, token);
    }
    if (walk.lens) this.showLens(walk.lens, token, real);
    this.note.replaceChildren(...(behind ?? []));
    this.note.hidden = behind === null;
  }

  showLengths(lengths, token) {
    this.lengths.hidden = !lengths;
    if (!lengths) return;
    const most = Math.max(...LENGTHS.map(([name]) => lengths[name][token]));
    const items = LENGTHS.map(([name, title]) => {
      const bar = element("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--part", lengths[name][token] / most);
      const number = element("span", { class: "number", "data-length": name }, short(lengths[name][token]));
      return element("li", {}, element("span", { class: "word" }, title), number, bar);
    });
    this.lengths.replaceChildren(...items);
  }

  /**
   * The likeliest tokens before and after, and those whose probability changed most; `real` is the token that the
   * text has, which is outlined.
   */
  showLens({ before, after, changed }, token, real) {
    const list = (guesses, label) =>
      barList(
        guesses.map(([text, id, probability]) => ({ text, value: probability, actual: id === real?.id })),
        { label },
      );
    const part = (title, content) => element("div", {}, element("h2", {}, title), content);
    const among = [...before[token], ...after[token], ...changed[token]].some(([, id]) => id === real?.id);
    const missing = ["The text has ", tokenText(real?.text ?? "", { class: "word" }), ", which is not among them."];
    const told = among ? ["Outlined: the token of the text."] : missing;
    this.lens.replaceChildren(
      part("Before this head", list(before[token], "Likeliest tokens before this head")),
      part("After this head", list(after[token], "Likeliest tokens after this head")),
      part("Largest changes", changes(changed[token], "Tokens whose probability changed most", real?.id ?? null)),
      ...(real ? [element("p", { class: "note real-token" }, ...told)] : []),
    );
  }
}
