// @ts-check
// The controls above the views: view, kind of attention, layer and head, tokens or words, colours, theme.

import { choice, element } from "qkv/elements.js";
import { HeadControls } from "qkv/head_controls.js";

const SCALES = { linear: "linear", root: "square root", log: "logarithmic" };
const KINDS = { self: "Self", encoder: "Encoder", decoder: "Decoder", cross: "Cross" };

export class Controls {
  constructor(page, views) {
    this.page = page;
    const { data } = page.store;
    this.views = views.map(([view, title]) =>
      element("button", { type: "button", "data-view": view, onclick: () => page.choose(view) }, title),
    );
    for (const button of this.views) this.explain(button);
    this.kinds =
      data.attention.length > 1
        ? choice(
            "Kind of attention",
            data.attention.map(({ kind }) => [kind, KINDS[kind] ?? kind]),
            (kind) => page.set({ kind }),
          )
        : null;
    this.layer = new Stepper("Layer", (layer) => page.set({ layer }));
    this.head = new Stepper("Head", (head) => page.set({ head }));
    this.words = choice(
      "Units",
      [
        [false, "Tokens"],
        [true, "Words"],
      ],
      (words) => page.set({ words }),
    );
    this.scale = element(
      "select",
      { id: "scale", onchange: () => page.set({ scale: this.scale.value }) },
      ...Object.entries(SCALES).map(([value, name]) => element("option", { value }, name)),
    );
    this.legend = element("div", { class: "legend", role: "img" });
    this.theme = element("button", { type: "button", class: "tool", onclick: () => page.host.switchTheme(page) });
    const help = element(
      "button",
      { type: "button", class: "tool", "aria-label": "Help", title: "Help (?)", onclick: () => page.help.show() },
      "?",
    );
    this.shades = element(
      "div",
      { class: "shades" },
      element("label", { class: "name", for: "scale" }, "Colours"),
      this.scale,
      this.legend,
    );
    this.heads = new HeadControls(page);
    this.attention = element(
      "div",
      { class: "controls", role: "region", "aria-label": "Attention" },
      ...(this.kinds ? [this.kinds.element] : []),
      this.layer.element,
      this.head.element,
      ...this.heads.parts,
      this.words.element,
      this.shades,
    );
    this.element = element(
      "div",
      { class: "bar" },
      element(
        "nav",
        { "aria-label": "Views" },
        ...this.views,
        element("span", { class: "tools" }, this.theme, page.menu.opener, help),
      ),
      this.attention,
    );
    this.renew();
  }

  /** Another text may have other views. */
  renew() {
    const { data } = this.page.store;
    this.joinable = data.sides.some(({ words, tokens }) => words.length < tokens.length);
    this.views.forEach((button, number) => {
      const reason = data.lacking[button.dataset.view];
      if (reason) button.setAttribute("aria-disabled", "true");
      else button.removeAttribute("aria-disabled");
      button.title = reason ?? `Key ${number + 1}`;
    });
  }

  /** Shows why a view is missing while its button has the pointer or the focus. */
  explain(button) {
    const { page } = this;
    const reason = () => page.store.data.lacking[button.dataset.view];
    let before = "";
    for (const event of ["pointerenter", "focus"]) {
      button.addEventListener(event, () => {
        if (!reason()) return;
        if (page.status.textContent !== reason()) before = page.status.textContent;
        page.setStatus(reason());
      });
    }
    for (const event of ["pointerleave", "blur"]) {
      button.addEventListener(event, () => page.status.textContent === reason() && page.setStatus(before));
    }
  }

  show(state) {
    const { page } = this;
    for (const button of this.views) {
      if (button.dataset.view === state.view) {
        button.setAttribute("aria-current", "page");
        const nav = button.parentNode; // which may be wider than the window
        nav.scrollLeft = Math.min(nav.scrollLeft, button.offsetLeft - nav.offsetLeft);
        nav.scrollLeft = Math.max(
          nav.scrollLeft,
          button.offsetLeft + button.offsetWidth - nav.offsetLeft - nav.clientWidth + 126, // the tools at the end
        );
      } else button.removeAttribute("aria-current");
    }
    const attention = page.store.attention(state.kind);
    const of = (...views) => views.includes(state.view);
    this.kinds?.show(state.kind);
    if (this.kinds) this.kinds.element.hidden = !of("walk", "head", "heads", "lines");
    for (const [stepper, count] of [
      [this.layer, attention?.depth ?? 0],
      [this.head, attention?.heads ?? 0],
    ]) {
      const all = page.named && of("heads"); // all heads are then side by side
      stepper.element.hidden = count < 2 || all || !of("walk", "head", "heads", "lines", "attribution");
    }
    this.layer.show(state.layer, attention?.depth ?? 0);
    this.head.show(state.head, attention?.heads ?? 0, attention?.names);
    this.words.element.hidden = !this.joinable || !of("head", "lines", "attribution");
    this.words.show(state.words);
    this.heads.show(state);
    this.scale.value = state.scale;
    this.scale.hidden = this.scale.previousSibling.hidden = of("next", "lens");
    this.shades.hidden = of("walk", "model", "lines", "norms") || (of("heads") && state.glance !== "pattern");
    this.attention.hidden = [...this.attention.children].every((control) => control.hidden);
    this.legendOf(page.colours);
    const { theme } = page.colours;
    this.theme.textContent = theme === "dark" ? "☀" : "☾";
    this.theme.setAttribute("aria-label", theme === "dark" ? "Light theme" : "Dark theme");
    this.theme.title = `${this.theme.getAttribute("aria-label")} (t)`;
  }

  legendOf(colours) {
    const key = `${colours.theme} ${colours.scale}`;
    if (this.drawn === key) return;
    this.drawn = key;
    const ramp = element("span", { class: "ramp" });
    ramp.style.backgroundImage = colours.gradient();
    const ticks = colours.ticks.map((weight) => {
      const tick = element(
        "span",
        { class: "at" },
        `${Number((100 * weight).toPrecision(2))}${weight === 1 ? "%" : ""}`,
      );
      tick.style.left = `${100 * colours.rampPosition(weight)}%`;
      return tick;
    });
    this.legend.setAttribute("aria-label", `Colours from 0% to 100%, ${SCALES[colours.scale]} scale`);
    this.legend.replaceChildren(ramp, ...ticks);
  }

  nextKind() {
    const kinds = this.page.store.data.attention.map(({ kind }) => kind);
    if (kinds.length > 1) this.page.set({ kind: kinds[(kinds.indexOf(this.page.state.kind) + 1) % kinds.length] });
  }
}

/** A number that is chosen from a list, increased or decreased. */
class Stepper {
  constructor(name, onpick) {
    const id = `choose-${name.toLowerCase()}`;
    this.count = 0;
    this.list = element("select", { id, onchange: () => onpick(this.list.selectedIndex) });
    this.less = element(
      "button",
      {
        type: "button",
        "aria-label": `Previous ${name.toLowerCase()}`,
        onclick: () => onpick(this.list.selectedIndex - 1),
      },
      "‹",
    );
    this.more = element(
      "button",
      {
        type: "button",
        "aria-label": `Next ${name.toLowerCase()}`,
        onclick: () => onpick(this.list.selectedIndex + 1),
      },
      "›",
    );
    this.element = element(
      "div",
      { class: "stepper" },
      element("label", { class: "name", for: id }, name),
      this.less,
      this.list,
      this.more,
    );
  }

  show(chosen, count, names = null) {
    if (this.count !== count) {
      this.count = count;
      this.list.replaceChildren(
        ...Array.from({ length: count }, (_, number) =>
          element("option", { value: number }, names?.[number] ?? number),
        ),
      );
    }
    this.list.selectedIndex = chosen;
    this.less.disabled = chosen === 0;
    this.more.disabled = chosen >= count - 1;
  }
}
