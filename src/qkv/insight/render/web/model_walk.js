// @ts-check
// The whole model: one token on its way from its id to the draw of the next token, block by block.

import { element } from "qkv/elements.js";
import { Chain } from "qkv/model_walk_chain.js";
import { Detail } from "qkv/model_walk_detail.js";
import { PARTS, decodeModelWalk, level, ofSource } from "qkv/model_walk_places.js";
import { placeName, placeOf, placesInside, within } from "qkv/model_walk_places.js";
import { placeText } from "qkv/model_walk_text.js";
import { TokenStrip } from "qkv/token_strip.js";

const HINT = "← → step, ↑ ↓ token, Enter opens a block, Esc closes it";

export class WholeModel {
  /** @type {any} */
  store;
  /** @type {any} */
  walk;

  constructor(page) {
    this.page = page;
    this.title = "Whole model";
    this.sourceToken = 0;
    this.strip = new TokenStrip("The text; choose the token that is followed", (token) => this.choose(token));
    this.crumbs = element("nav", { class: "crumbs", "aria-label": "Level" });
    this.chain = new Chain((place) => this.pick(place));
    this.detail = new Detail(page, (token) => this.choose(token));
    this.heading = element("h2", { class: "place-title" });
    this.back = element("button", { type: "button", class: "back", onclick: () => this.move(-1) }, "← Back");
    this.next = element("button", { type: "button", class: "next", onclick: () => this.move(1) }, "Next →");
    this.number = element("span", { class: "place-number number" });
    this.width = element("span", { class: "key-band" });
    const legend = element(
      "p",
      { class: "model-legend note" },
      this.width,
      ...["attention", "cross_attention", "feed_forward"].map((name) =>
        element("span", { class: `key-added is-${name}`, "data-part": name }, `${PARTS[name]} adds`),
      ),
      element("span", { class: "key-none" }, "drawn as square roots"),
    );
    this.legend = legend;
    const steps = element("div", { class: "place-steps" }, this.back, this.number, this.next);
    const hint = element("p", { class: "note model-hint" }, HINT);
    const panel = element("div", { class: "place-panel" }, this.heading, this.detail.element, steps, hint);
    const left = element("div", { class: "model-chain" }, legend, this.chain.element);
    this.element = element(
      "section",
      { class: "view whole-model" },
      element("div", { class: "model-top" }, this.crumbs, this.strip.element),
      element("div", { class: "model-body" }, left, panel),
    );
  }

  async show(state) {
    const { store } = this.page;
    if (this.store !== store) {
      const walk = decodeModelWalk(await store.part("model_walk"));
      if (this.page.store !== store) return;
      Object.assign(this, { store, walk });
      this.sourceToken = 0;
    }
    if (this.page.state === state) await this.draw();
  }

  /** The token whose vectors a place shows. */
  tokenAt(place) {
    const { walk, page } = this;
    if (ofSource(walk, place)) return Math.min(this.sourceToken, walk.sides[1].tokens.length - 1);
    return Math.min(page.state.token ?? walk.position, walk.sides[0].tokens.length - 1);
  }

  async draw() {
    const { walk, page, store } = this;
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    const place = within(walk, page.state.place);
    this.place = place;
    const places = level(walk, place);
    const token = this.tokenAt(place);
    const side = walk.sides[ofSource(walk, place) ? 1 : 0];
    const tokenAt = (at) => this.tokenAt(at);
    const { part, stack, layer } = placeOf(walk, place);
    const inside = part ? `${stack.kind}.${layer}` : "";
    const theme = page.colours.theme;
    this.strip.show(side);
    this.strip.mark(token);
    this.showCrumbs(place);
    const tokens = `${this.tokenAt("tokens")} ${this.sourceToken}`;
    this.chain.show(walk, places, tokenAt, `${store.number} ${inside} ${tokens}`);
    this.chain.mark(place);
    const number = places.indexOf(place);
    this.back.disabled = number === 0;
    this.next.disabled = number === places.length - 1;
    this.number.textContent = `${number + 1} of ${places.length}`;
    this.heading.textContent = placeName(walk, place).replace(/^./, (letter) => letter.toUpperCase());
    const used = new Set(walk.stacks.flatMap(({ blocks }) => blocks.flat().map(({ name }) => name)));
    this.width.textContent = `width: length of the ${walk.stacks.length ? "residual stream" : "vector"}`;
    for (const key of this.legend.querySelectorAll("[data-part]")) key.hidden = !used.has(key.dataset.part);
    const told = { walk, place, token, theme, name: side.tokens[token], sourceToken: this.sourceToken };
    page.setStatus(placeText({ ...told, follows: store.data.follows }));
    await this.detail.show(told);
    if (focused && !this.element.contains(document.activeElement)) this.focus(place, focused);
    this.element.dataset.place = place;
    this.element.dataset.token = String(token);
  }

  /** A button that had the focus is gone: the same token has it, or else the current place, so that keys work on. */
  focus(place, gone) {
    const chip = gone.matches(".chip") ? this.element.querySelector(".chip[aria-pressed=true]") : null;
    (chip ?? this.chain.rows.get(place)).focus({ preventScroll: true });
  }

  /** Model, block and step; each but the last leads back. */
  showCrumbs(place) {
    const { walk } = this;
    const { stack, layer, part } = placeOf(walk, place);
    const parts = [["Model", part ? `${stack.kind}.${layer}` : null]];
    if (part) {
      parts.push([placeName(walk, `${stack.kind}.${layer}`).replace(/^./, (letter) => letter.toUpperCase()), null]);
    }
    const nodes = parts.flatMap(([name, to], index) => [
      ...(index ? [element("span", { "aria-hidden": "true" }, "›")] : []),
      to === null
        ? element("span", { "aria-current": "true" }, name)
        : element("button", { type: "button", class: "crumb", onclick: () => this.page.set({ place: to }) }, name),
    ]);
    this.crumbs.replaceChildren(...nodes);
  }

  /** A click on a block opens it; any other place becomes the current one. */
  pick(place) {
    const { stack, part } = placeOf(this.walk, place);
    if (stack && !part) this.open(place);
    else this.page.set({ place });
  }

  open(place) {
    const { stack, layer } = placeOf(this.walk, place);
    const [first] = placesInside(stack, layer);
    this.page.set({ place: first });
  }

  move(by) {
    const places = level(this.walk, this.place);
    const to = places[places.indexOf(this.place) + by];
    if (to !== undefined) this.page.set({ place: to });
  }

  /** Follows another token: of the source, if the current place belongs to it. */
  choose(token) {
    const source = ofSource(this.walk, this.place);
    const last = this.walk.sides[source ? 1 : 0].tokens.length - 1;
    const chosen = Math.min(last, Math.max(0, token));
    if (!source) {
      this.page.set({ token: chosen });
      return;
    }
    this.sourceToken = chosen;
    this.draw();
  }

  key(event) {
    if (!this.walk || event.shiftKey) return false;
    const token = this.tokenAt(this.place);
    const { stack, layer, part } = placeOf(this.walk, this.place);
    const button = event.target.closest("button, a");
    const actions = {
      ArrowRight: () => this.move(1),
      ArrowLeft: () => this.move(-1),
      ArrowDown: () => this.choose(token + 1),
      ArrowUp: () => this.choose(token - 1),
    };
    if (stack && !part && !button) actions.Enter = () => this.open(this.place);
    if (part) actions.Escape = () => this.page.set({ place: `${stack.kind}.${layer}` });
    if (!actions[event.key]) return false;
    actions[event.key]();
    return true;
  }
}
