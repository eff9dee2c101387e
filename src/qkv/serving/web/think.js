// See it think: the attention of the text on the page, while it is written. One question at a time, the latest wins.

import { element } from "qkv/elements.js";
import { Page } from "qkv/page.js";
import { Knockout } from "./knockout.js";
import { notice, problem } from "./notices.js";
import { headsOff } from "./settings.js";
import { looked, sourceOf } from "./source.js";

const REST = 350; // milliseconds after a key before the model reads the text again

const pause = (time) => new Promise((resume) => setTimeout(resume, time));

export class Think {
  constructor(app) {
    this.app = app;
    this.toggle = element("button", {
      type: "button",
      class: "disclosure",
      "aria-controls": "inside",
      onclick: () => this.turn(),
    });
    this.message = element("div");
    this.knockout = new Knockout(app);
    this.hole = element("div", { class: "embedded" });
    this.inside = element("div", { id: "inside" }, this.knockout.element, this.message, this.hole);
    this.element = element(
      "section",
      { class: "think", "aria-labelledby": "think-title" },
      element("h2", { id: "think-title" }, this.toggle),
      element("p", { class: "note" }, "Which words each head looks at, and what every layer would say."),
      this.inside,
    );
    this.toggle.textContent = "See it think";
  }

  turn() {
    this.arriving = !this.app.settings.think;
    this.app.set({ think: this.arriving });
  }

  /** One who opens it wants to see it, and the text above it. */
  arrive() {
    const stage = this.element.closest(".stage");
    const top = stage?.getClientRects().length ? stage : this.element; // on a phone it has no box of its own
    if (this.arriving) top.scrollIntoView({ block: "start" });
    this.arriving = false;
  }

  /** The server is back: what it did not answer is asked again. */
  recover() {
    this.knockout.recover();
    if (this.message.querySelector(".lost")) this.key = null;
  }

  /** Where insight's page stands: its address is a part of ours, its theme is ours. */
  standing(root) {
    const { app } = this;
    const { knockout } = this;
    root.addEventListener("keydown", (event) => {
      const typing = event.target.closest("select, input, textarea") || event.ctrlKey || event.metaKey || event.altKey;
      if (event.key === "x" && !typing && knockout.place !== null) knockout.toggle(knockout.place);
    });
    const switched = (event) => {
      const cell = event.shiftKey && knockout.place !== null && event.target.closest(".cell");
      if (!cell) return;
      event.stopPropagation(); // a click alone opens the head
      knockout.toggle(cell.dataset.at);
    };
    root.addEventListener("click", switched, { capture: true });
    return {
      tag: "div",
      heading: false,
      grows: true,
      keys: root,
      read: () => `#${app.settings.look}`,
      write: (address) => {
        this.read = address.slice(1); // which is drawn already
        app.set({ look: this.read });
      },
      watch: (reread, redraw) => Object.assign(this, { reread, redraw }),
      theme: () => app.theme,
      turn: () => app.turn(),
      off: (layer, head) => headsOff(app.asked).includes(`${layer}.${head}`),
    };
  }

  show(settings) {
    const { app } = this;
    const { model } = app;
    const can = model?.qkv.can.includes("attention") && app.ready;
    this.element.hidden = !can;
    this.toggle.setAttribute("aria-expanded", String(settings.think));
    this.inside.hidden = !settings.think;
    if (!can || !settings.think) return;
    this.knockout.show(this.page?.state);
    this.drawn(settings);
    const subject = app.panelOf(settings.tab).subject ?? null;
    const off = model.qkv.can.includes("complete") ? headsOff(app.asked) : [];
    const body = subject && { model: model.id, ...subject, ...(off.length ? { heads_off: off } : {}) };
    const key = JSON.stringify(body);
    if (this.key === key) return;
    this.key = key;
    this.wanted = body;
    if (!body) this.empty();
    else if (!this.asking) this.begin(app.panelOf(settings.tab).running ? 0 : REST);
  }

  /** The theme or the address may have changed. */
  drawn(settings) {
    if (!this.page) return;
    if (this.theme !== this.app.theme) this.redraw?.();
    this.theme = this.app.theme;
    if (this.read !== settings.look) this.reread?.();
    this.read = settings.look;
  }

  empty() {
    this.forget();
    const more = "Write something above: it is looked at while it grows.";
    this.message.replaceChildren(notice("empty", "There is no text yet.", more));
  }

  async begin(rest) {
    this.asking = true;
    await pause(rest);
    while (this.wanted) {
      const body = this.wanted;
      this.wanted = null;
      const began = performance.now();
      await this.look(body);
      const { running } = this.app.panelOf(this.app.settings.tab);
      if (running) await pause(performance.now() - began); // half of the time is for the writing
    }
    this.asking = false;
  }

  async look(body) {
    if (this.model !== body.model) this.forget();
    if (!this.page) this.message.replaceChildren(notice("waiting", "The model reads the text …"));
    try {
      const answer = await looked(body, ...this.shown());
      if (!this.app.settings.think) this.key = null; // to be asked again when it is opened
      if (!this.app.settings.think || this.key === "null") return;
      await this.put(sourceOf(answer, body), body.model);
      this.message.replaceChildren();
      this.arrive();
    } catch (error) {
      if (this.wanted) return;
      this.message.replaceChildren(problem(error, () => this.again(body)));
      this.app.failed(error);
    }
  }

  /** The layer and the view that are open, or that the address says before anything is there to see. */
  shown() {
    const said = new URLSearchParams(this.app.settings.look);
    const { layer, view } = this.page?.state ?? { layer: Number(said.get("layer")) || 0, view: said.get("view") };
    return [Math.min(layer, (this.app.model.qkv.layers ?? 1) - 1), view];
  }

  forget() {
    this.page = null;
    this.hole.replaceChildren();
  }

  again(body) {
    this.wanted = body;
    this.begin(0);
  }

  /** The page keeps what it shows when the same model reads on; another model gets a page of its own. */
  async put(source, model) {
    const kinds = JSON.stringify([model, source.data.attention.map(({ kind, depth, heads }) => [kind, depth, heads])]);
    if (this.page && this.kinds === kinds) {
      this.page.status.setAttribute("aria-live", "off"); // it would be said with every token
      await this.page.renew(source);
      this.page.status.setAttribute("aria-live", "polite");
    } else {
      const root = element("div", { id: "qkv" });
      this.hole.replaceChildren(root);
      Object.assign(this, { kinds, model });
      this.page = new Page(source, root, this.standing(root));
      await this.page.open();
    }
    this.theme = this.app.theme;
    this.read = this.app.settings.look;
    this.knockout.show(this.page.state);
  }
}
