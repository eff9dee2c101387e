// The page around the views: what is shown, the controls, the keys, and the line that says it in words.

import { alone } from "qkv/alone.js";
import { Beside } from "qkv/beside.js";
import { Colours } from "qkv/colour.js";
import { Compare } from "qkv/compare.js";
import { element } from "qkv/elements.js";
import { Grid } from "qkv/grid.js";
import { Head } from "qkv/head.js";
import { Help } from "qkv/help.js";
import { Lens } from "qkv/lens.js";
import { Lines } from "qkv/lines.js";
import { Controls } from "qkv/controls.js";
import { Matrix } from "qkv/matrix.js";
import { Next } from "qkv/next.js";
import { Norms } from "qkv/norms.js";
import { VIEWS, readFrom, within, written } from "qkv/state.js";
import { Store } from "qkv/store.js";
import { Names, word } from "qkv/words.js";

const LONG = 256; // words, among which the weights are faint
const MADE = { head: Head, heads: Grid, lines: Lines, next: Next, lens: Lens, norms: Norms, attribution: Compare };

export class Page {
  /** `source` is described in store.js, `place` in alone.js; all is put into `root`. */
  constructor(source, root, place = alone) {
    this.store = new Store(source);
    this.root = root;
    this.standing = place;
    this.views = new Map();
    this.known = new Map();
    this.begin();
    this.state = readFrom(place.read(), this.first, this.store.data);
  }

  /** What is shown where no address says anything. */
  begin() {
    const { data } = this.store;
    const longest = Math.max(...data.sides.map(({ tokens }) => tokens.length));
    const first = {
      view: null,
      kind: null,
      layer: 0,
      head: 0,
      words: false,
      token: null,
      kept: [],
      scale: longest > LONG ? "log" : "root",
      glance: "pattern",
      theme: null,
    };
    this.first = within({ ...first, ...data.start }, data);
  }

  async open() {
    await this.store.open();
    const titles = VIEWS.map((view) => [view, this.view(view).title]);
    this.controls = new Controls(this, titles);
    this.status = element("p", { class: "status", role: "status", "aria-live": "polite" });
    this.main = element(this.standing.tag, { id: "view", tabindex: -1 });
    this.help = new Help(titles.map(([, title]) => title));
    this.root.replaceChildren(
      ...(this.standing.heading ? [this.heading()] : []),
      this.controls.element,
      this.status,
      this.main,
      this.help.element,
    );
    const reread = () => {
      this.state = readFrom(this.standing.read(), this.first, this.store.data);
      this.show();
    };
    this.standing.watch(reread, () => this.show());
    this.standing.keys.addEventListener("keydown", (event) => this.key(event));
    await this.show();
  }

  /** The same model has read another text, or more of it: what is shown stays, as far as there is such a thing. */
  async renew(source) {
    const store = new Store(source);
    await store.open();
    this.store = store;
    this.known.clear();
    this.begin();
    this.state = within(this.state, store.data);
    this.controls.renew();
    await this.show();
  }

  /** The text; of a translation the source, an arrow and the target, each in its own direction. */
  heading() {
    const { model, heading } = this.store.data;
    const texts = heading.map((text) => word(text.slice(0, 400)));
    const joined = texts.flatMap((text, number) => (number ? [" → ", text] : [text]));
    return element("header", { class: "top" }, element("h1", {}, model), element("p", { class: "text" }, ...joined));
  }

  view(name) {
    if (!this.views.has(name)) this.views.set(name, new (this.named && name === "heads" ? Beside : MADE[name])(this));
    return this.views.get(name);
  }

  /** Whether heads have names: then they are few, and all heads are seen side by side. */
  get named() {
    return this.store.data.attention.some(({ names }) => names);
  }

  /** The names of both sides of an attention, as words where that is chosen and the weights are there to join. */
  names(kind) {
    const attention = this.store.attention(kind);
    return this.namesOf(attention, this.state.words && attention.layers.includes(this.state.layer));
  }

  namesOf({ rows, columns }, joined = this.state.words) {
    const of = (side) => {
      const key = `${side} ${joined}`;
      if (!this.known.has(key)) this.known.set(key, new Names(this.store.data.sides[side], joined));
      return this.known.get(key);
    };
    return { rows: of(rows), columns: of(columns) };
  }

  /** The overview's picture of a head, spread over the words that are shown. */
  coarse({ kind, layer, head }) {
    const { rows, columns } = this.names(kind);
    const { levels, code, most } = this.store.coarse(kind, layer, head);
    return new Matrix(rows.count, columns.count, levels[0], code, most);
  }

  set(changes) {
    const state = within({ ...this.state, ...changes }, this.store.data);
    if (JSON.stringify(state) === JSON.stringify(this.state)) return;
    const moved = state.layer !== this.state.layer || state.head !== this.state.head || state.kind !== this.state.kind;
    this.state = state;
    this.standing.write(written(state));
    if (moved) this.say(this.place());
    this.show();
  }

  async show() {
    const { state, root } = this;
    const theme = this.standing.theme(state);
    const scale = ["next", "lens"].includes(state.view) ? "linear" : state.scale; // probabilities are seldom faint
    if (this.colours?.theme !== theme || this.colours.scale !== scale) this.colours = new Colours(theme, scale);
    this.controls.show(state);
    const view = this.view(state.view);
    if (this.main.firstChild !== view.element) {
      this.main.replaceChildren(view.element);
      this.say(state.kind === null ? "" : this.place()); // a view may know better
    }
    root.dataset.view = state.view;
    try {
      await view.show(state);
    } catch (error) {
      this.main.replaceChildren(
        element("p", { class: "note wide", role: "alert" }, `This cannot be shown: ${error.message}`),
      );
      throw error;
    }
    if (this.state === state) root.dataset.shown = written(state);
  }

  /** A view, or why it is not there. */
  choose(view) {
    const reason = this.store.data.lacking[view];
    if (reason) this.say(reason);
    else this.set({ view });
  }

  say(text) {
    this.status.textContent = text;
  }

  place() {
    const { kind, layer, head } = this.state;
    const several = this.store.data.attention.length > 1 ? `${kind} attention, ` : "";
    return `${several}${this.called(layer, head)}`.replace(/^./, (letter) => letter.toUpperCase());
  }

  /** What a head of the chosen attention is called: its name, or its numbers. */
  called(layer, head) {
    return this.store.attention(this.state.kind).names?.[head] ?? `layer ${layer}, head ${head}`;
  }

  /** Draws a head beside the current one, or no longer. */
  keep(layer, head) {
    const others = this.state.kept.filter(([a, b]) => a !== layer || b !== head);
    this.set({ kept: others.length < this.state.kept.length ? others : [...others, [layer, head]] });
  }

  step(by) {
    const { rows } = this.state.kind === null ? { rows: this.store.data.text } : this.store.attention(this.state.kind);
    const side = ["head", "heads", "lines"].includes(this.state.view) ? rows : this.store.data.text;
    const last = this.store.data.sides[side].tokens.length - 1;
    const from = this.state.token ?? (by > 0 ? -1 : last + 1);
    this.set({ token: Math.min(last, Math.max(0, from + by)) });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (event.target.closest("select, input, textarea")) return;
    const view = this.view(this.state.view);
    if (view.key?.(event)) {
      event.preventDefault();
      return;
    }
    const { layer, head, view: name } = this.state;
    const ofWords = ["next", "lens", "norms"].includes(name); // where there are no heads
    const actions = {
      ArrowLeft: () => (ofWords ? this.step(-1) : this.set({ head: head - 1 })),
      ArrowRight: () => (ofWords ? this.step(1) : this.set({ head: head + 1 })),
      ArrowUp: () => this.set({ layer: layer - 1 }),
      ArrowDown: () => this.set({ layer: layer + 1 }),
      w: () => this.controls.joinable && this.set({ words: !this.state.words }),
      n: () => this.step(1),
      p: () => this.step(-1),
      k: () => this.keep(layer, head),
      a: () => this.controls.nextKind(),
      t: () => this.standing.turn(this),
      "?": () => this.help.show(),
      Escape: () => this.set({ token: null }),
    };
    const number = /^[1-9]$/.test(event.key) ? VIEWS[Number(event.key) - 1] : undefined;
    const act = number ? () => this.choose(number) : actions[event.key];
    if (!act || event.shiftKey !== (event.key === "?" && event.shiftKey)) return;
    if (ofWords && /^Arrow(Up|Down)$/.test(event.key)) return; // these scroll
    event.preventDefault();
    act();
  }
}
