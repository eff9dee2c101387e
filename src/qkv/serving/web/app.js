// @ts-check
// The frame of the playground: tabs, model, theme, link, and all settings.

import { element } from "qkv/elements.js";
import { Chat } from "./chat.js";
import { Classify } from "./classify.js";
import { Fill } from "./fill.js";
import { InsideView } from "./inside_view.js";
import { LookTab } from "./look_tab.js";
import { ModelPicker } from "./model_picker.js";
import { Models, TABS } from "./models.js";
import { failed, noModel, notice, problem, unused } from "./notices.js";
import { DEFAULTS, headsOff, read, write } from "./settings.js";
import { Translate } from "./translate.js";
import { Write } from "./write.js";

const PANELS = { look: LookTab, write: Write, chat: Chat, translate: Translate, fill: Fill, classify: Classify };
const REST = 300; // milliseconds before settings are written into the address
const STORED = "qkv.settings";

/** The last settings of this browser tab: signing in leaves the page, and returns without its address. */
function storedSettings() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

export class App {
  constructor(root) {
    this.root = root;
    this.defaults = DEFAULTS;
    this.load(location.hash || storedSettings());
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.models = new Models(
      () => this.show(),
      () => this.recover(),
    );
    this.panels = new Map();
  }

  /** Reads the settings of an address. A result that it asks for is requested once, when its model is ready. */
  load(address) {
    const { run, on, on_off, ...settings } = read(address);
    if (!(settings.tab in TABS)) settings.tab = DEFAULTS.tab;
    this.settings = { ...settings, run: false, on: "", on_off: "" };
    this.pending = run || on ? { tab: settings.tab, on, off: on_off } : null;
  }

  /** Requests the result that a link asks for. */
  runPending() {
    const { pending } = this;
    if (!pending || !this.ready) return;
    this.pending = null;
    this.write();
    if (pending.tab === this.settings.tab) this.panelOf(pending.tab).restore?.(pending.on, pending.off);
  }

  open() {
    this.status = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.theming = element("button", { type: "button", class: "tool", onclick: () => this.switchTheme() });
    this.link = element("button", { type: "button", onclick: () => this.copy() }, "Copy link");
    this.tabs = Object.entries(TABS).map(([tab, [title]]) =>
      element(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${tab}`,
          "data-title": title, // its bold form has room from the start
          "aria-controls": "panel",
          onclick: () => this.set({ tab }),
        },
        title,
      ),
    );
    const list = element("div", { class: "tabs", role: "tablist", "aria-label": "Tasks" }, ...this.tabs);
    list.addEventListener("keydown", (event) => this.moveTab(event));
    const chosen = (model) => ({ ...this.panels.get("look")?.forAnotherModel, model, look: "" });
    this.picker = new ModelPicker((model) => this.set(chosen(model)));
    this.gate = element("div", { class: "gate" });
    this.panel = element("div", { id: "panel", role: "tabpanel", tabindex: -1 });
    this.inside = new InsideView(this);
    this.root.replaceChildren(
      element("a", { class: "skip", href: "#panel", onclick: (event) => this.skip(event) }, "Skip to the content"),
      element(
        "header",
        { class: "head" },
        element("h1", {}, element("span", { class: "mark" }, "qkv"), " playground"),
        this.picker.element,
        element("span", { class: "tools" }, this.link, this.theming),
      ),
      element("div", { role: "navigation", "aria-label": "Tasks" }, list),
      element("main", {}, this.gate, this.panel),
      this.status,
    );
    addEventListener("hashchange", () => {
      clearTimeout(this.writing); // it belongs to another address
      this.load(location.hash);
      this.show();
    });
    addEventListener("pagehide", () => this.write());
    this.dark.addEventListener("change", () => this.show());
    this.show();
    this.models.load();
  }

  skip(event) {
    event.preventDefault(); // the address holds the settings
    this.panel.focus();
  }

  /** The model of the tab, or null. */
  get model() {
    return this.models.choose(this.settings.tab, this.settings.model);
  }

  get ready() {
    return this.model?.qkv.state === "ready" && !this.models.problem;
  }

  /** The settings for a request: of the heads that are switched off, those that the model has. */
  get requestSettings() {
    const { layers, heads } = this.model?.qkv ?? {};
    const has = (name) => {
      const [layer, head] = name.split(".");
      return layer < layers && head < heads;
    };
    return { ...this.settings, off: headsOff(this.settings).filter(has).join(" ") };
  }

  /** Whether the view inside the model is open: always in Look. */
  get insideOpen() {
    return this.settings.think || this.settings.tab === "look";
  }

  get theme() {
    return this.settings.theme || (this.dark.matches ? "dark" : "light");
  }

  set(changes) {
    if (Object.entries(changes).every(([name, value]) => this.settings[name] === value)) return;
    const switched = "tab" in changes;
    if (switched) this.write(); // the back button returns to the tab as it was left
    this.settings = { ...this.settings, ...changes };
    clearTimeout(this.writing);
    if (switched) this.write("pushState");
    else this.writing = setTimeout(() => this.write(), REST);
    this.show();
  }

  address(more = {}) {
    return write({ ...this.settings, model: this.model?.id ?? this.settings.model, ...more });
  }

  write(method = "replaceState") {
    clearTimeout(this.writing);
    const address = this.address();
    history[method](null, "", address);
    try {
      sessionStorage.setItem(STORED, address);
    } catch {
      // the address has it
    }
  }

  async copy() {
    this.write();
    const { linked = {} } = this.panelOf(this.settings.tab); // null: the text is too long for a link
    const address = new URL(this.address(linked ?? {}), location.href).href;
    try {
      await navigator.clipboard.writeText(address);
      this.link.textContent = linked ? "Link copied" : "Link copied: settings only";
      const text = "The text is not included: it was edited, and is too long for a link.";
      this.announce(linked ? "Link copied." : `Link with the settings copied. ${text}`);
      this.link.title = linked ? "" : text;
    } catch {
      history.replaceState(null, "", address);
      this.link.textContent = "See the address bar";
    }
    setTimeout(() => (this.link.textContent = "Copy link"), 2000);
  }

  switchTheme() {
    this.set({ theme: this.theme === "dark" ? "light" : "dark" });
  }

  /** Announces a text to screen readers: short, and never for every token. */
  announce(text) {
    this.status.textContent = text;
  }

  /** Handles an error that concerns all panels: the server is gone, or a model is still loading. */
  failed(error) {
    if (error.status === 0) this.models.lost(error);
    else if (error.status === 503) this.models.load();
  }

  /** The server is back: removes the notices about its absence, and repeats what failed. */
  recover() {
    this.inside.recover();
    for (const panel of [...this.panels.values(), this.inside]) {
      for (const node of panel.element.querySelectorAll(".notice.lost")) node.remove();
    }
  }

  panelOf(tab) {
    if (!this.panels.has(tab)) this.panels.set(tab, new PANELS[tab](this));
    return this.panels.get(tab);
  }

  /** The text on the page has changed: updates the view inside the model. */
  textChanged() {
    this.inside.show(this.settings);
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
    this.picker.show(this.models.of(tab), this.model);
    const notices = this.notices();
    const texts = JSON.stringify(notices.map(({ textContent }) => textContent));
    if (this.shownNotices !== texts) this.gate.replaceChildren(...notices);
    this.shownNotices = texts;
    const hasModel = this.model !== null;
    this.panel.hidden = !hasModel;
    this.root.dataset.state = this.ready ? "ready" : "waiting";
    if (hasModel) {
      const panel = this.panelOf(tab);
      if (this.panel.firstChild !== panel.element) this.panel.replaceChildren(panel.element);
      const split = panel.element.classList.contains("split");
      const beside = panel.stage ?? (split ? panel.element : this.panel); // so that both are visible
      if (this.inside.element.parentNode !== beside) beside.append(this.inside.element);
      panel.show(settings);
    }
    this.inside.show(settings);
    if (hasModel) {
      const open = this.insideOpen && !this.inside.element.hidden;
      this.panelOf(tab).element.classList.toggle("inside-open", open);
    }
    this.runPending();
  }

  /** The notices above the panel: why nothing can be requested now, and models that no tab can use. */
  notices() {
    const { models, settings } = this;
    const blocked = this.blocked();
    const list = models.problem ? [] : models.failed.map(failed);
    const listed = !models.problem && (settings.tab === "fill" || !this.model);
    const idle = listed ? unused(models.unused, settings.tab) : [];
    return [...list, ...(blocked ? [blocked] : []), ...idle];
  }

  /** Why nothing can be requested now, or null. */
  blocked() {
    const { models, model, settings } = this;
    if (models.problem?.status === 0) {
      return notice("error", "The server does not respond.", "Retrying automatically. Your text is not lost.");
    }
    if (models.problem) return problem(models.problem, () => models.load());
    if (!models.known) return notice("waiting", "Loading the list of models …");
    if (!model) return noModel(settings.tab);
    if (model.qkv.state === "loading") return notice("waiting", `${model.id} is loading.`, "You can write meanwhile.");
    return null;
  }

  moveTab(event) {
    const at = this.tabs.indexOf(document.activeElement);
    const count = this.tabs.length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + count, Home: 0, End: count - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.tabs[to % count].click();
    this.tabs[to % count].focus();
  }
}
