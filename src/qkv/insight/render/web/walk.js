// @ts-check
// Walk one head: attention as an equation, step by step, with the numbers of this model and text.

import { element } from "qkv/elements.js";
import { TokenStrip } from "qkv/token_strip.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { After, rest } from "qkv/walk_after.js";
import { UNEDITED, decodeWalk, edited, editsFrom, editsText, headRow, listed } from "qkv/walk_data.js";
import { DistancePanel } from "qkv/walk_distance.js";
import { SetWeights } from "qkv/walk_drag.js";
import { Formula, Steps } from "qkv/walk_formula.js";
import { walkKey } from "qkv/walk_keys.js";
import { largest } from "qkv/walk_math.js";
import { missingHead } from "qkv/walk_missing.js";
import { NumberPanel } from "qkv/walk_numbers.js";
import { QueryChart } from "qkv/walk_query.js";
import { Recomputed } from "qkv/walk_server.js";
import { STEPS, TRY } from "qkv/walk_steps.js";
import { WalkTable } from "qkv/walk_table.js";
import { numberText, rootOf, sentences } from "qkv/walk_text.js";
import { Answer, Touch } from "qkv/walk_touch.js";

const MOST_ROWS = 48; // tokens of a text whose rows are all listed
const LISTED = 24; // rows of a longer text
const KEYS = "Keys: ← → step, ↑ ↓ token, with Shift number and row.";

const capital = (text) => text.replace(/^./, (letter) => letter.toUpperCase());

/** Why tokens are hidden from this query. */
function reasonOf(walk, row) {
  const later = row.rows.every(({ at }) => Boolean(walk.visible[row.token][at]) === at <= row.token);
  return later ? "hidden by the causal mask" : "hidden by the mask";
}

export class Walk {
  /** @type {any} */
  loaded;
  /** @type {any} */
  walk;
  /** @type {any} */
  name;

  constructor(page) {
    this.page = page;
    this.title = "Walk one head";
    this.edits = UNEDITED;
    this.panel = null;
    this.picked = null; // a row that was chosen; else that with the most weight
    this.index = null; // a number of the vectors
    const hover = (index, at) => this.hover(index, at);
    this.formula = new Formula();
    this.strip = new TokenStrip("The text; choose the token that looks", (token) => page.set({ token }));
    this.table = new WalkTable({
      onpick: (at) => this.pick(at),
      onweight: (at, weight) => this.setWeight(at, weight),
      onhover: hover,
    });
    this.first = new QueryChart(hover);
    this.after = new After(hover);
    this.numbers = new NumberPanel((index) => this.hover(index));
    this.distance = new DistancePanel((at, distance) => this.move(at, distance));
    this.touch = new Touch(
      (edits) => this.edit(edits),
      (name) => this.openPanel(name),
    );
    this.answer = new Answer();
    this.setWeights = new SetWeights();
    this.recomputed = new Recomputed(() => page.state.view === "walk" && !this.whole.hidden && this.draw());
    this.steps = new Steps((step) => page.set({ step }));
    this.missing = element("div", { class: "note wide", hidden: true });
    this.side = element(
      "aside",
      { class: "walk-side" },
      this.numbers.element,
      this.distance.element,
      this.answer.hint,
    );
    const content = element(
      "div",
      { class: "walk-content" },
      this.first.element,
      this.table.element,
      this.after.element,
    );
    this.body = element("div", { class: "walk-body" }, content, this.side);
    const top = element("div", { class: "walk-top" }, this.formula.element, this.strip.element);
    this.foot = element("div", { class: "walk-foot" }, this.steps.element, this.touch.element);
    this.whole = element("div", {}, top, this.body, this.foot);
    this.element = element("section", { class: "view walk" }, this.missing, this.whole);
  }

  async show(state) {
    const { store } = this.page;
    const { kind, layer, head } = state;
    const heads = store.data.walk?.[kind]?.heads;
    const has = heads === null || heads?.some(([a, b]) => a === layer && b === head);
    this.missing.hidden = has;
    this.whole.hidden = !has;
    if (!has) return this.showMissing(heads ?? [], layer, head);
    const name = `walk.${kind}.${layer}.${head}`;
    const request = (this.request = `${store.number} ${name}`);
    if (this.loaded !== request) {
      const walk = decodeWalk(await store.part(name));
      if (this.request !== request) return; // another head was chosen meanwhile
      this.begin(request, name, walk);
    }
    const { edits } = this.page.state;
    if (edits !== editsText(this.edits)) this.edits = editsFrom(edits, this.walk.key.length);
    this.draw();
  }

  /** Another head: changes of the one before are dropped, those of an address are kept. */
  begin(request, name, walk) {
    const again = Boolean(this.loaded);
    Object.assign(this, { loaded: request, name, walk, picked: null });
    this.recomputed.clear();
    this.edits = again ? UNEDITED : editsFrom(this.page.state.edits, walk.key.length);
    if (again && this.page.state.edits) this.page.set({ edits: "" });
  }

  /** Says which heads the file has, and the command that writes another. */
  showMissing(heads, layer, head) {
    const pick = (one, other) => this.page.set({ layer: one, head: other });
    this.missing.replaceChildren(...missingHead(heads, layer, head, pick));
    this.page.setStatus(this.page.site());
  }

  /** Draws the chosen token and step under the edits. */
  draw() {
    const { page, walk, edits } = this;
    const { state, store } = page;
    const attention = store.attention(state.kind);
    const side = store.data.sides[attention.rows];
    const token = Math.min(state.token ?? walk.query.length - 1, walk.query.length - 1);
    const { step } = state;
    this.ask(token);
    const later = this.recomputed.walk ?? walk; // what comes after the head
    const behind = step > 8 && edited(edits) && !this.recomputed.walk;
    const plain = headRow(walk, token);
    const row = edited(edits) && !behind ? headRow(walk, token, edits) : plain;
    const keys = store.data.sides[attention.columns].tokens;
    const query = side.tokens[token];
    if (this.told?.row.token !== token) this.picked = null; // each token has its own strongest row
    const picked = this.picked ?? largest(row.weights, 1)[0];
    const { theme } = page.colours;
    this.told = {
      walk,
      row,
      plain,
      edits,
      head: capital(page.headName(state.layer, state.head)),
      query,
      keys,
      picked,
      step,
      theme,
      panel: this.panel,
      place: `layer ${state.layer} of ${attention.depth}`,
      follows: store.data.follows,
      real: this.real(side, token),
    };
    this.strip.show(side);
    this.strip.mark(token);
    this.formula.show(walk, step);
    this.steps.show(step);
    this.layRows(token, keys);
    const divisor = edits.divisor === null ? rootOf(walk).split(" = ")[0] : short(edits.divisor);
    this.table.show({ ...this.told, divisor, reason: reasonOf(walk, row) });
    this.first.element.hidden = step !== 1;
    if (step === 1) this.first.show({ ...this.told, most: this.table.scales(walk).query });
    this.table.element.hidden = step === 1 || step > 8;
    this.after.element.hidden = step <= 8;
    this.after.show({ ...this.told, walk: later, behind: behind ? this.unchanged() : null });
    this.showPanels();
    this.touch.show(this.told);
    this.mark();
    page.setStatus(sentences(STEPS[step - 1], { ...this.told, walk: step > 8 ? later : walk }));
  }

  /** The token that the text has where one is predicted, or null. */
  real({ ids, tokens }, token) {
    const at = this.page.store.data.follows ? token + 1 : token;
    return at < ids.length ? { id: ids[at], text: tokens[at] } : null;
  }

  /** Says that the steps after the head are those without the edits. */
  unchanged() {
    const start = "From here on the unchanged model is shown. ";
    return this.page.store.source.rewalk ? [start] : [start, ...rest()];
  }

  /** The rows of the table; of a long text those with the most weight before any edit. */
  layRows(token, keys) {
    const all = this.walk.key.length;
    const many = all > MOST_ROWS;
    const laid = `${this.loaded} ${many ? token : ""}`;
    if (this.laid === laid && (this.picked === null || this.table.rows.has(this.picked))) return;
    this.laid = laid; // while a bar is moved, its row must stay
    const chosen = listed(this.walk.weights[token], MOST_ROWS, LISTED);
    if (this.picked !== null && !chosen.includes(this.picked)) chosen.push(this.picked);
    chosen.sort((a, b) => a - b);
    const folded = Array.from({ length: all }, (_, at) => at).filter((at) => !chosen.includes(at));
    this.table.build(chosen, keys, folded);
    const dense = chosen.length > 12;
    this.body.classList.toggle("dense", dense);
    this.body.style.setProperty("--rows", chosen.length + (folded.length ? 1 : 0)); // other steps are as high
  }

  showPanels() {
    const { panel, told } = this;
    const changed = edited(this.edits);
    this.numbers.element.hidden = panel !== "numbers" || told.step > 8;
    this.distance.element.hidden = panel !== "distance" || told.step > 8;
    if (!this.numbers.element.hidden) this.numbers.show(told);
    if (!this.distance.element.hidden) this.distance.show(told);
    const { data, source } = this.page.store;
    const served = Boolean(source.rewalk);
    // A file has one sentence, below everything. The answer of a server has its column from the start: nothing may
    // move while a bar is dragged.
    const place = served ? this.side : this.foot;
    if (this.answer.element.parentNode !== place) place.append(this.answer.element);
    this.answer.show({
      edits: this.edits,
      step: told.step,
      served,
      next: this.recomputed.next,
      problem: this.recomputed.problem,
      tokens: data.sides[data.text].tokens,
      follows: data.follows,
    });
    const table = told.step > 1 && told.step < 9;
    this.side.hidden = this.numbers.element.hidden && this.distance.element.hidden && !(served && (changed || table));
  }

  openPanel(name) {
    this.panel = this.panel === name ? null : name;
    this.picked = this.told.picked;
    this.draw();
  }

  // Choosing a row and a number

  pick(at) {
    this.picked = at;
    this.draw();
    this.table.rows.get(at)?.pick.focus({ preventScroll: false });
  }

  hover(index, at = null) {
    this.index = index;
    this.at = at;
    this.mark();
  }

  /** Frames one number of all vectors and says what it is. */
  mark() {
    const { index } = this;
    this.table.mark(index);
    if (!this.numbers.element.hidden) this.numbers.mark(index);
    this.first.mark(index);
    const text = index === null ? `${TRY[STEPS[this.told.step - 1]]} ${KEYS}` : numberText(this.told, this.at, index);
    for (const { readout } of [this.first, this.table, this.after]) readout.textContent = text;
  }

  // Edits

  edit(edits) {
    this.edits = edited(edits) ? edits : UNEDITED;
    this.picked = this.told.picked; // the row in view stays, whatever has the most weight now
    const text = editsText(edits);
    if (text === this.page.state.edits) this.draw();
    else this.page.set({ edits: text });
  }

  setWeight(at, weight) {
    const { row } = this.told;
    const changed = this.setWeights.changed(this.walk, row, this.edits, at, weight);
    this.told.picked = at;
    this.edit({ ...this.edits, weights: { ...this.edits.weights, [row.token]: changed } });
  }

  move(at, distance) {
    const position = this.told.row.token - distance;
    const { [at]: _, ...others } = this.edits.moved;
    const moved = position === at ? others : { ...others, [at]: position };
    this.edit({ ...this.edits, weights: {}, moved });
  }

  /** The rest of the model, which a server computes, and the file cannot. */
  ask(token) {
    const position = this.walk.kind === "encoder" ? undefined : token; // else that of the source
    this.recomputed.ask(this.page.store.source, this.name, this.edits, position);
  }

  key(event) {
    return !this.whole.hidden && Boolean(this.told) && walkKey(this, event);
  }
}
