// @ts-check
// The view inside the model: attention of the text on the page, also while it is generated. One request at a time.

import { element } from "qkv/elements.js";
import { Page } from "qkv/page.js";
import { fetchAttention, sourceOf } from "./attention_source.js";
import { Knockout } from "./knockout.js";
import { notice, problem } from "./notices.js";
import { headsOff } from "./settings.js";

const REST = 350; // milliseconds after a key press before the next request

const pause = (time) => new Promise((resume) => setTimeout(resume, time));

export class InsideView {
  /** @type {() => void} */
  redraw;
  /** @type {() => void} */
  reread;
  /** @type {string} */
  model;
  /** @type {string} */
  kinds;

  constructor(app) {
    this.app = app;
    this.toggle = element("button", {
      type: "button",
      class: "disclosure",
      "aria-controls": "inside",
      onclick: () => this.switchOpen(),
    });
    this.message = element("div");
    this.title = element("h2", { id: "inside-title" }, this.toggle);
    const says = "Attention weights of all heads, logit lens and norms of every layer.";
    this.about = element("p", { class: "note" }, says);
    this.knockout = new Knockout(app);
    this.container = element("div", { class: "embedded" });
    this.inside = element("div", { id: "inside" }, this.knockout.element, this.message, this.container);
    this.element = element(
      "section",
      { class: "inside-view", "aria-labelledby": "inside-title" },
      this.title,
      this.about,
      this.inside,
    );
    this.toggle.textContent = "Look inside the model";
  }

  switchOpen() {
    this.opening = !this.app.settings.think;
    this.app.set({ think: this.opening });
  }

  /** Scrolls to the text and this view after it was opened. */
  scrollTo() {
    const stage = this.element.closest(".stage");
    const top = stage?.getClientRects().length ? stage : this.element; // on a narrow screen it has no box of its own
    if (this.opening) top.scrollIntoView({ block: "start" });
    this.opening = false;
  }

  /** The server is back: repeats a failed request. */
  recover() {
    this.knockout.recover();
    if (this.message.querySelector(".lost")) this.key = null;
  }

  /** The host of the attention page: its state is one of the settings, its theme is the playground's. */
  hostOf(root) {
    const { app } = this;
    const { knockout } = this;
    root.addEventListener("keydown", (event) => {
      const typing = event.target.closest("select, input, textarea") || event.ctrlKey || event.metaKey || event.altKey;
      if (event.key === "x" && !typing && knockout.head !== null) knockout.toggle(knockout.head);
    });
    const switchHead = (event) => {
      const cell = event.shiftKey && knockout.head !== null && event.target.closest(".cell");
      if (!cell) return;
      event.stopPropagation(); // a click without Shift opens the head
      knockout.toggle(cell.dataset.at);
    };
    root.addEventListener("click", switchHead, { capture: true });
    return {
      tag: /** @type {"div"} */ ("div"),
      heading: false,
      grows: true,
      keys: root,
      read: () => `#${app.settings.look}`,
      write: (address) => {
        this.read = address.slice(1); // it is already drawn
        app.set({ look: this.read });
      },
      watch: (reread, redraw) => Object.assign(this, { reread, redraw }),
      theme: () => app.theme,
      switchTheme: () => app.switchTheme(),
      off: (layer, head) => headsOff(app.requestSettings).includes(`${layer}.${head}`),
    };
  }

  show(settings) {
    const { app } = this;
    const { model } = app;
    const can = model?.qkv.can.includes("attention") && app.ready;
    this.element.hidden = !can;
    this.toggle.setAttribute("aria-expanded", String(settings.think));
    const { insideOpen } = app;
    this.inside.hidden = !insideOpen;
    this.title.hidden = this.about.hidden = settings.tab === "look"; // there it is always open
    if (!can || !insideOpen) return;
    this.order(settings.tab === "look");
    this.knockout.show(this.page?.state);
    this.update(settings);
    const panel = app.panelOf(settings.tab);
    if (panel.pending) return; // it will be known soon
    const subject = panel.subject ?? null;
    const off = model.qkv.can.includes("complete") ? headsOff(app.requestSettings) : [];
    const body = subject && { model: model.id, ...subject, ...(off.length ? { heads_off: off } : {}) };
    const key = JSON.stringify(body);
    if (this.key === key) return;
    this.key = key;
    this.wanted = body;
    if (!body) this.empty();
    else if (!this.requesting) this.begin(panel.running || panel.hurried ? 0 : REST);
  }

  /** In Look the views come first, elsewhere the heads that are switched off. */
  order(viewsFirst) {
    const first = viewsFirst ? this.message : this.knockout.element;
    if (this.inside.firstChild === first) return;
    if (viewsFirst) this.inside.append(this.knockout.element);
    else this.inside.prepend(this.knockout.element);
  }

  /** Redraws after a change of the theme or of the address. */
  update(settings) {
    if (!this.page) return;
    if (this.theme !== this.app.theme) this.redraw?.();
    this.theme = this.app.theme;
    if (this.read !== settings.look) this.reread?.();
    this.read = settings.look;
  }

  empty() {
    this.clear();
    const more = "Write a text above to see the attention of its tokens.";
    this.message.replaceChildren(notice("empty", "No text yet.", more));
  }

  async begin(rest) {
    this.requesting = true;
    await pause(rest);
    while (this.wanted) {
      const body = this.wanted;
      this.wanted = null;
      const began = performance.now();
      await this.request(body);
      const { running } = this.app.panelOf(this.app.settings.tab);
      if (running) await pause(performance.now() - began); // half of the time is left for generation
    }
    this.requesting = false;
  }

  async request(body) {
    if (this.model !== body.model) this.clear();
    if (!this.page) this.message.replaceChildren(notice("waiting", "Running the model …"));
    try {
      const response = await fetchAttention(body, ...this.shown());
      if (!this.app.insideOpen) this.key = null; // to be requested again when it is opened
      if (!this.app.insideOpen || this.key === "null") return;
      const { can } = this.app.model.qkv;
      await this.showSource(sourceOf(response, body, can.includes("classify")), body.model);
      this.response = response;
      this.tellPanel();
      this.message.replaceChildren();
      this.scrollTo();
    } catch (error) {
      if (this.wanted) return;
      this.message.replaceChildren(problem(error, () => this.retry(body)));
      this.app.failed(error);
    }
  }

  /** Tells the panel what is shown. */
  tellPanel() {
    if (this.page && this.response) this.app.panelOf(this.app.settings.tab).insideShown?.(this.response, this.page);
  }

  /** The layer and the view that are open, or those of the address before anything is shown. */
  shown() {
    const address = new URLSearchParams(this.app.settings.look);
    const { layer, view } = this.page?.state ?? { layer: Number(address.get("layer")) || 0, view: address.get("view") };
    return [Math.min(layer, (this.app.model.qkv.layers ?? 1) - 1), view];
  }

  clear() {
    this.page = this.response = null;
    this.app.panelOf(this.app.settings.tab).insideCleared?.();
    this.container.replaceChildren();
  }

  retry(body) {
    this.wanted = body;
    this.begin(0);
  }

  /** Shows new data: the page keeps its state for the same model, another model gets a new page. */
  async showSource(source, model) {
    const { opens } = this.app.panelOf(this.app.settings.tab);
    if (opens && !(opens in source.data.lacking)) source.data.start = { ...source.data.start, view: opens };
    const kinds = JSON.stringify([model, source.data.attention.map(({ kind, depth, heads }) => [kind, depth, heads])]);
    if (this.page && this.kinds === kinds) {
      this.page.status.setAttribute("aria-live", "off"); // otherwise it would be announced for every token
      await this.page.renew(source);
      this.page.status.setAttribute("aria-live", "polite");
    } else {
      const root = element("div", { id: "qkv" });
      this.container.replaceChildren(root);
      Object.assign(this, { kinds, model });
      this.page = new Page(source, root, this.hostOf(root));
      await this.page.open();
    }
    this.theme = this.app.theme;
    this.read = this.app.settings.look;
    this.knockout.show(this.page.state);
  }
}
