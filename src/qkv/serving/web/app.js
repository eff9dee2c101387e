// The frame of the playground: the tabs, the model, the theme, the link, and what is chosen, in one place.

import { element } from "qkv/elements.js";
import { Chat } from "./chat.js";
import { Classify } from "./classify.js";
import { Fill } from "./fill.js";
import { Models, TABS } from "./models.js";
import { failed, noModel, notice, problem, unused } from "./notices.js";
import { DEFAULTS, headsOff, read, write } from "./settings.js";
import { Think } from "./think.js";
import { Translate } from "./translate.js";
import { Write } from "./write.js";

const PANELS = { write: Write, chat: Chat, translate: Translate, fill: Fill, classify: Classify };
const REST = 300; // milliseconds before what was chosen is written into the address
const KEPT = "qkv.settings";

/** What was chosen last in this tab: signing in leaves the page, and comes back without its address. */
function remembered() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

export class App {
  constructor(root) {
    this.root = root;
    this.defaults = DEFAULTS;
    this.take(location.hash || remembered());
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.models = new Models(
      () => this.show(),
      () => this.recover(),
    );
    this.panels = new Map();
  }

  /** What an address says. An answer that it asks for is asked for once, as soon as its model is there. */
  take(address) {
    const { run, on, ...settings } = read(address);
    if (!(settings.tab in TABS)) settings.tab = "write";
    this.settings = { ...settings, run: false, on: "" };
    this.coming = run || on ? { tab: settings.tab, on } : null;
  }

  come() {
    const { coming } = this;
    if (!coming || !this.ready) return;
    this.coming = null;
    this.write();
    if (coming.tab === this.settings.tab) this.panelOf(coming.tab).arrive?.(coming.on);
  }

  open() {
    this.status = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.theming = element("button", { type: "button", class: "tool", onclick: () => this.turn() });
    this.link = element("button", { type: "button", onclick: () => this.copy() }, "Copy link");
    this.tabs = Object.entries(TABS).map(([tab, [title]]) =>
      element(
        "button",
        { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": "panel", onclick: () => this.set({ tab }) },
        title,
      ),
    );
    const list = element("div", { class: "tabs", role: "tablist", "aria-label": "What to do" }, ...this.tabs);
    list.addEventListener("keydown", (event) => this.walk(event));
    this.picker = element("select", { id: "model", onchange: () => this.set({ model: this.picker.value, look: "" }) });
    this.facts = element("p", { class: "note facts" });
    const name = element("label", { for: "model" }, "Model");
    this.picking = element("div", { class: "picking-model" }, name, this.picker, this.facts);
    this.gate = element("div", { class: "gate" });
    this.panel = element("div", { id: "panel", role: "tabpanel", tabindex: -1 });
    this.think = new Think(this);
    this.root.replaceChildren(
      element("a", { class: "skip", href: "#panel", onclick: (event) => this.skip(event) }, "To the content"),
      element(
        "header",
        { class: "head" },
        element("h1", {}, element("span", { class: "mark" }, "qkv"), " playground"),
        element("span", { class: "tools" }, this.link, this.theming),
      ),
      list,
      element("main", {}, this.picking, this.gate, this.panel),
      this.status,
    );
    addEventListener("hashchange", () => {
      clearTimeout(this.writing); // it is about another address
      this.take(location.hash);
      this.show();
    });
    addEventListener("pagehide", () => this.write());
    this.dark.addEventListener("change", () => this.show());
    this.show();
    this.models.load();
  }

  skip(event) {
    event.preventDefault(); // the address is taken
    this.panel.focus();
  }

  /** The model that the tab works with, and whether it can begin. */
  get model() {
    return this.models.choose(this.settings.tab, this.settings.model);
  }

  get ready() {
    return this.model?.qkv.state === "ready" && !this.models.problem;
  }

  /** What is chosen, as the model can be asked it: heads that it has not got are none that are off. */
  get asked() {
    const { layers, heads } = this.model?.qkv ?? {};
    const has = (place) => {
      const [layer, head] = place.split(".");
      return layer < layers && head < heads;
    };
    return { ...this.settings, off: headsOff(this.settings).filter(has).join(" ") };
  }

  get theme() {
    return this.settings.theme || (this.dark.matches ? "dark" : "light");
  }

  set(changes) {
    if (Object.entries(changes).every(([name, value]) => this.settings[name] === value)) return;
    const turned = "tab" in changes;
    if (turned) this.write(); // the way back leads to the tab before, as it was left
    this.settings = { ...this.settings, ...changes };
    clearTimeout(this.writing);
    if (turned) this.write("pushState");
    else this.writing = setTimeout(() => this.write(), REST);
    this.show();
  }

  address(more = {}) {
    return write({ ...this.settings, model: this.model?.id ?? this.settings.model, ...more });
  }

  write(how = "replaceState") {
    clearTimeout(this.writing);
    const address = this.address();
    history[how](null, "", address);
    try {
      sessionStorage.setItem(KEPT, address);
    } catch {
      // the address has it
    }
  }

  async copy() {
    this.write();
    const { linked = {} } = this.panelOf(this.settings.tab); // null: the text is too long to go with it
    const address = new URL(this.address(linked ?? {}), location.href).href;
    try {
      await navigator.clipboard.writeText(address);
      this.link.textContent = linked ? "Link copied" : "Link copied: settings only";
      const text = "The text is not in it: it was changed by hand, and is too long for a link.";
      this.announce(linked ? "The link is copied: it shows the same again." : `The link has the settings. ${text}`);
      this.link.title = linked ? "" : text;
    } catch {
      history.replaceState(null, "", address);
      this.link.textContent = "It is in the address bar";
    }
    setTimeout(() => (this.link.textContent = "Copy link"), 2000);
  }

  turn() {
    this.set({ theme: this.theme === "dark" ? "light" : "dark" });
  }

  /** Said to those who hear the page: few words, and never for every token. */
  announce(text) {
    this.status.textContent = text;
  }

  /** Something went wrong that is not one panel's own. Says whether it is dealt with. */
  failed(error) {
    if (error.status === 0) this.models.lost(error);
    else if (error.status === 503) this.models.load();
  }

  /** The server is back: what is said of its absence goes, and what it did not answer is asked again. */
  recover() {
    this.think.recover();
    for (const each of [...this.panels.values(), this.think]) {
      for (const made of each.element.querySelectorAll(".notice.lost")) made.remove();
    }
  }

  panelOf(tab) {
    if (!this.panels.has(tab)) this.panels.set(tab, new PANELS[tab](this));
    return this.panels.get(tab);
  }

  /** The text on the page is another: whoever looks inside wants to know. */
  changed() {
    this.think.show(this.settings);
  }

  show() {
    const { settings, theme } = this;
    const { tab } = settings;
    document.documentElement.dataset.theme = theme;
    this.theming.textContent = theme === "dark" ? "☀" : "☾";
    this.theming.setAttribute("aria-label", theme === "dark" ? "Light theme" : "Dark theme");
    this.theming.title = this.theming.getAttribute("aria-label");
    this.tabs.forEach((button) => {
      const chosen = button.id === `tab-${tab}`;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    });
    this.panel.setAttribute("aria-labelledby", `tab-${tab}`);
    document.title = [TABS[tab][0], this.model?.id, "qkv"].filter(Boolean).join(" · ");
    this.pick();
    const gate = this.told();
    const said = JSON.stringify(gate.map((each) => each.textContent));
    if (this.said !== said) this.gate.replaceChildren(...gate);
    this.said = said;
    const there = this.model !== null;
    this.panel.hidden = !there;
    this.root.dataset.state = this.ready ? "ready" : "waiting";
    if (there) {
      const panel = this.panelOf(tab);
      if (this.panel.firstChild !== panel.element) this.panel.replaceChildren(panel.element);
      const split = panel.element.classList.contains("split");
      const beside = panel.stage ?? (split ? panel.element : this.panel); // so that both are seen
      if (this.think.element.parentNode !== beside) beside.append(this.think.element);
      panel.show(settings);
    }
    this.think.show(settings);
    if (there) this.panelOf(tab).element.classList.toggle("thinking", settings.think && !this.think.element.hidden);
    this.come();
  }

  pick() {
    const able = this.models.of(this.settings.tab);
    const { model } = this;
    const key = JSON.stringify([able.map(({ id, qkv }) => [id, qkv.state]), model?.id]);
    this.picking.hidden = able.length === 0;
    if (this.picked === key) return;
    this.picked = key;
    this.picker.replaceChildren(
      ...able.map(({ id, qkv: { state } }) =>
        element("option", { value: id }, state === "ready" ? id : `${id} (${state})`),
      ),
    );
    if (!model) return;
    this.picker.value = model.id;
    const { layers, heads, context, vocabulary } = model.qkv;
    const counts = { layers, heads, "tokens of context": context, "in the vocabulary": vocabulary };
    const facts = Object.entries(counts).filter(([, count]) => count);
    this.facts.textContent = facts.map(([name, count]) => `${count.toLocaleString("en")} ${name}`).join(" · ");
  }

  /** Above the panel: why nothing can be asked now, and of which models nothing can be asked at all. */
  told() {
    const { models, settings } = this;
    const blocked = this.blocked();
    const list = models.problem ? [] : models.failed.map(failed);
    const asked = !models.problem && (settings.tab === "fill" || !this.model);
    const idle = asked ? unused(models.unused, settings.tab) : [];
    return [...list, ...(blocked ? [blocked] : []), ...idle];
  }

  /** Why nothing can be asked now, or null. */
  blocked() {
    const { models, model, settings } = this;
    if (models.problem?.status === 0) {
      return notice("error", "The server does not answer.", "Trying again by itself. Nothing that you wrote is lost.");
    }
    if (models.problem) return problem(models.problem, () => models.load());
    if (!models.known) return notice("waiting", "Asking the server for its models …");
    if (!model) return noModel(settings.tab);
    if (model.qkv.state === "loading") return notice("waiting", `${model.id} is loading.`, "You may write meanwhile.");
    return null;
  }

  walk(event) {
    const at = this.tabs.indexOf(document.activeElement);
    const count = this.tabs.length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + count, Home: 0, End: count - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.tabs[to % count].click();
    this.tabs[to % count].focus();
  }
}
