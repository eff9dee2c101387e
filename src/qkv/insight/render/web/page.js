// @ts-check
// The page around the views: its state, the controls, the keys and the status line.

import { AllHeads } from "qkv/all_heads.js";
import { Attribution } from "qkv/attribution.js";
import { Colours } from "qkv/colour.js";
import { Controls } from "qkv/controls.js";
import { element } from "qkv/elements.js";
import { Explanation } from "qkv/explanations.js";
import { HEAD_STATE } from "qkv/head_state.js";
import { Help } from "qkv/help.js";
import { standalone } from "qkv/host.js";
import { Lens } from "qkv/lens.js";
import { Lines } from "qkv/lines.js";
import { Matrix } from "qkv/matrix.js";
import { WholeModel } from "qkv/model_walk.js";
import { NamedHeads } from "qkv/named_heads.js";
import { NextTokens } from "qkv/next_tokens.js";
import { Norms } from "qkv/norms.js";
import { OneHead } from "qkv/one_head.js";
import { PresentMenu } from "qkv/present_menu.js";
import { Presenter } from "qkv/presenter.js";
import { meanName } from "qkv/shown_matrix.js";
import { VIEWS, fromHash, toHash, within } from "qkv/state.js";
import { Store, otherStore } from "qkv/store.js";
import { StoryBar } from "qkv/story.js";
import { Names, tokenText } from "qkv/token_text.js";
import { Walk } from "qkv/walk.js";

const LONG = 256; // tokens; in a longer text the weights are small
const CLASSES = {
  walk: Walk,
  model: WholeModel,
  head: OneHead,
  heads: AllHeads,
  lines: Lines,
  next: NextTokens,
  lens: Lens,
  norms: Norms,
  attribution: Attribution,
};

export class Page {
  /** `source` is described in store.js, `host` in host.js; the page is put into `root`. */
  constructor(source, root, host = standalone) {
    this.store = new Store(source);
    this.other = otherStore(source); // of another model at the same tokens, or null
    this.root = root;
    this.host = host;
    this.views = new Map();
    this.known = new Map();
    this.begin();
    this.state = fromHash(host.read(), this.first, this.store.data);
  }

  /** Sets the state that is shown without an address. */
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
      step: 1, // of the walk
      place: null, // in the whole model
      edits: "",
      scale: longest > LONG ? "log" : "root",
      glance: "pattern",
      theme: null,
      present: false, // large type, and nothing but the view
      told: null, // the step of the story
      ...HEAD_STATE,
    };
    const { story, ...start } = data.start ?? {};
    this.first = within({ ...first, ...start }, data);
  }

  async open() {
    await this.store.open();
    await this.other?.open();
    this.story = new StoryBar(this);
    this.presenter = new Presenter(this);
    this.menu = new PresentMenu(this);
    const titles = VIEWS.map((view) => [view, this.view(view).title]);
    this.controls = new Controls(this, titles);
    this.status = element("p", { class: "status", role: "status", "aria-live": "polite" });
    this.main = element(this.host.tag, { id: "view", tabindex: -1 });
    this.explanation = new Explanation();
    this.help = new Help(titles.map(([, title]) => title));
    this.root.replaceChildren(
      ...(this.host.heading ? [this.heading()] : []),
      this.controls.element,
      this.story.element,
      this.explanation.element,
      this.status,
      this.main,
      this.help.element,
      this.menu.element,
    );
    const reread = () => {
      this.state = fromHash(this.host.read(), this.first, this.store.data);
      this.show();
    };
    this.host.watch(reread, () => this.show());
    this.host.keys.addEventListener("keydown", (event) => this.key(event));
    await this.show();
  }

  /** Shows another text of the same model, and keeps the state as far as possible. */
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

  /** The text; for a translation the source, an arrow and the target, each in its own direction. */
  heading() {
    const { model, heading, between } = this.store.data;
    const texts = heading.map((text) => tokenText(text.slice(0, 400)));
    const joined = texts.flatMap((text, number) => (number ? [between, text] : [text]));
    return element("header", { class: "top" }, element("h1", {}, model), element("p", { class: "text" }, ...joined));
  }

  view(name) {
    if (!this.views.has(name)) {
      const View = this.named && name === "heads" ? NamedHeads : CLASSES[name];
      this.views.set(name, new View(this));
    }
    return this.views.get(name);
  }

  /** Whether heads have names: then they are few, and are shown side by side. */
  get named() {
    return this.store.data.attention.some(({ names }) => names);
  }

  /** The labels of queries and keys: words if these are chosen and the weights are loaded, else tokens. */
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

  /** A head from the overview, spread over the tokens or words that are shown. */
  coarse({ kind, layer, head }) {
    const { rows, columns } = this.names(kind);
    const { levels, code, most } = this.store.coarse(kind, layer, head);
    return new Matrix(rows.count, columns.count, levels[0], code, most);
  }

  set(changes) {
    const state = within({ ...this.state, ...changes }, this.store.data);
    if (JSON.stringify(state) === JSON.stringify(this.state)) return;
    const moved = ["layer", "head", "kind", "mean"].some((name) => state[name] !== this.state[name]);
    this.state = state;
    this.host.write(toHash(state));
    if (moved) this.setStatus(this.site());
    this.show();
  }

  async show() {
    const { state, root } = this;
    const theme = this.host.theme(state);
    const scale = ["next", "lens"].includes(state.view) ? "linear" : state.scale; // probabilities are rarely small
    if (this.colours?.theme !== theme || this.colours.scale !== scale) this.colours = new Colours(theme, scale);
    this.controls.show(state);
    this.story.show();
    this.menu.show();
    this.presenter.show(state);
    const view = this.view(state.view);
    this.explanation.show(view.explained ?? state.view);
    if (this.main.firstChild !== view.element) {
      this.main.replaceChildren(view.element);
      this.setStatus(state.kind === null ? "" : this.site()); // a view may replace it
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
    if (this.state === state) root.dataset.shown = toHash(state);
  }

  /** Opens a view, or shows why it is missing. */
  choose(view) {
    const reason = this.store.data.lacking[view];
    if (reason) this.setStatus(reason);
    else this.set({ view });
  }

  setStatus(text) {
    this.status.textContent = text;
  }

  /** Where the shown weights come from: the kind of attention, the layer and the head. */
  site() {
    const { kind, layer, head } = this.state;
    const several = this.store.data.attention.length > 1 ? `${kind} attention, ` : "";
    const attention = this.store.attention(kind);
    const name = this.state.mean ? meanName(attention, this.state) : this.headName(layer, head);
    return `${several}${name}`.replace(/^./, (letter) => letter.toUpperCase());
  }

  /** The name of a head, or its numbers. */
  headName(layer, head) {
    return this.store.attention(this.state.kind).names?.[head] ?? `layer ${layer}, head ${head}`;
  }

  /** Adds a head to the lines, or removes it. */
  toggleHead(layer, head) {
    const others = this.state.kept.filter(([a, b]) => a !== layer || b !== head);
    this.set({ kept: others.length < this.state.kept.length ? others : [...others, [layer, head]] });
  }

  step(by) {
    const { rows } = this.state.kind === null ? { rows: this.store.data.text } : this.store.attention(this.state.kind);
    const side = ["walk", "head", "heads", "lines"].includes(this.state.view) ? rows : this.store.data.text;
    const last = this.store.data.sides[side].tokens.length - 1;
    const from = this.state.token ?? (by > 0 ? -1 : last + 1);
    this.set({ token: Math.min(last, Math.max(0, from + by)) });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open || this.menu.open) return;
    const field = event.target.closest("select, input, textarea");
    const typing = field && (field.type !== "checkbox" || event.key === " "); // a checkbox uses no other key
    if (typing && event.key !== "Escape") return;
    if (this.presenter.key(event)) event.preventDefault();
    else if (!typing) this.act(event);
  }

  /** The keys of the view, and those of all views. */
  act(event) {
    const view = this.view(this.state.view);
    if (view.key?.(event)) {
      event.preventDefault();
      return;
    }
    const { layer, head, view: name } = this.state;
    const withoutHeads = ["model", "next", "lens", "norms"].includes(name);
    const actions = {
      ArrowLeft: () => (withoutHeads ? this.step(-1) : this.set({ head: head - 1 })),
      ArrowRight: () => (withoutHeads ? this.step(1) : this.set({ head: head + 1 })),
      ArrowUp: () => this.set({ layer: layer - 1 }),
      ArrowDown: () => this.set({ layer: layer + 1 }),
      w: () => this.controls.joinable && this.set({ words: !this.state.words }),
      n: () => this.step(1),
      p: () => this.step(-1),
      k: () => this.toggleHead(layer, head),
      a: () => this.controls.nextKind(),
      t: () => this.host.switchTheme(this),
      "?": () => this.help.show(),
      Escape: () => this.set({ token: null }),
    };
    const number = /^[1-9]$/.test(event.key) ? VIEWS[Number(event.key) - 1] : undefined;
    const act = number ? () => this.choose(number) : actions[event.key];
    if (!act || event.shiftKey !== (event.key === "?" && event.shiftKey)) return;
    if (withoutHeads && /^Arrow(Up|Down)$/.test(event.key)) return; // these keys scroll
    event.preventDefault();
    act();
  }
}
