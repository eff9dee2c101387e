// @ts-check
// Next-token probabilities: of the model, and after the sampling parameters, which are applied in the browser at once.

import { fillBars, left } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { quoted, tokenText } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { note } from "./notices.js";
import { redraw } from "./sampling_math.js";
import { headsOff, penalised, sampling } from "./settings.js";
import { named, probabilityOf } from "./tokens.js";
/** @import { App } from "./app.js" */

const SHOWN = 10;
const KNOWN = 200; // tokens whose probabilities are requested; of the others their sum is known
const PAUSE = 180; // milliseconds without a change before a request

const NEUTRAL = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };
const PENALTIES = "Penalties are applied in addition, while text is generated.";
const ESTIMATED = "All others are estimated.";
const NOTHING = "Write a prompt to see the next-token probabilities.";

/** The last few words of a text. */
function last(text) {
  if (text.length <= 30) return text;
  const end = text.slice(-30);
  return `… ${end.slice(end.search(/\s/) + 1)}`;
}

export class Distribution {
  /** @type {App} */
  app;
  /** @type {(picked: any) => void} */
  onpick;

  /** `onpick(token)` makes the bars buttons; `tools` are shown under the heading. */
  constructor(app, { onpick = null, tools = [] } = {}) {
    Object.assign(this, { app, onpick, rawOnly: false }); // rawOnly: the sampling parameters do not apply
    this.latest = new Latest();
    this.after = element("p", { class: "note" });
    this.list = element("ol", { class: "bars two-bars", "aria-label": "The likeliest next tokens" });
    this.message = element("div");
    this.legend = element(
      "p",
      { class: "two-legend" },
      element("span", { class: "unfiltered" }, "model"),
      element("span", { class: "sampled" }, "after the sampling parameters"),
    );
    this.title = element("h2", { id: "next-title" }, "Next token");
    this.element = element(
      "section",
      { class: "distribution", "aria-labelledby": "next-title" },
      this.title,
      this.after,
      ...tools,
      this.legend,
      this.list,
      this.message,
    );
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.showNote(NOTHING);
  }

  /** Shows what follows a text or ids; nothing follows an empty one. */
  show(prompt, ending) {
    const { model, requestSettings: settings } = this.app;
    const off = headsOff(settings);
    const body = { model: model?.id, prompt, top: KNOWN, ...(off.length ? { heads_off: off } : {}) };
    const key = JSON.stringify(body);
    if (this.asked === key) {
      this.redrawAll(); // the sampling parameters may be others
      return;
    }
    this.asked = key;
    this.raw = null;
    clearTimeout(this.timer);
    this.element.setAttribute("aria-busy", "true");
    if (!model || prompt.length === 0) {
      this.latest.stop();
      this.showNote(NOTHING);
      return;
    }
    this.after.replaceChildren("After ", tokenText(last(ending), { class: "word" }));
    if (this.list.hidden) this.message.replaceChildren(note("Loading …"));
    this.timer = setTimeout(() => this.request(body), PAUSE);
  }

  /** Shows known probabilities: triples of text, id and probability, likeliest first. */
  showGuesses(guesses, ...after) {
    const key = JSON.stringify(guesses);
    this.after.replaceChildren(...after);
    if (this.asked !== key) this.drawnFor = null;
    this.asked = key;
    const tokens = guesses.map(([text, id, probability]) => ({ text, id, logprob: Math.log(probability) }));
    this.raw = { tokens, body: null };
    this.redrawAll();
  }

  /** Shows why nothing can follow. */
  none(reason) {
    clearTimeout(this.timer);
    this.latest.stop();
    this.asked = this.raw = null;
    this.showNote(reason);
  }

  async request(body) {
    try {
      const { tokens } = await fetchJson("/v1/next", body, this.latest.begin());
      this.raw = { tokens, body };
      this.drawnFor = null;
      this.redrawAll();
    } catch (error) {
      this.failed(error);
    }
  }

  failed(error) {
    if (error.name === "AbortError") return;
    this.asked = this.raw = null;
    this.showNote(error.message);
  }

  /** Applies the sampling parameters; asks the server if the result depends on tokens that are not known here. */
  redrawAll() {
    if (!this.raw) return;
    const { requestSettings, model } = this.app;
    const settings = this.rawOnly ? { ...requestSettings, ...NEUTRAL } : requestSettings;
    const { temperature, top_k, top_p, min_p } = settings;
    const filters = JSON.stringify([temperature, top_k, top_p, min_p, penalised(settings), this.rawOnly]);
    this.element.classList.toggle("raw-only", this.rawOnly);
    if (this.drawnFor === filters) return;
    this.drawnFor = filters;
    clearTimeout(this.timer);
    const { tokens, body } = this.raw;
    const known = tokens.map(probabilityOf);
    const rest = Math.max(0, 1 - known.reduce((total, probability) => total + probability, 0));
    const others = Math.max(0, model.qkv.vocabulary - tokens.length);
    const { drawn, exact } = redraw(known, rest, others, settings);
    const waits = !exact && body !== null;
    this.draw(drawn, [penalised(settings) && PENALTIES, !exact && !waits && ESTIMATED]);
    if (!waits) return;
    this.element.setAttribute("aria-busy", "true");
    this.timer = setTimeout(() => this.requestDrawn({ ...body, ...sampling(settings) }, filters), PAUSE);
  }

  /** The server's own probabilities after the sampling parameters. */
  async requestDrawn(body, filters) {
    try {
      const { tokens } = await fetchJson("/v1/next", body, this.latest.begin());
      if (!this.raw || this.drawnFor !== filters) return;
      const byId = new Map(tokens.map(({ id, probability }) => [id, probability]));
      const drawn = this.raw.tokens.map(({ id }) => byId.get(id) ?? 0);
      this.draw(drawn, [penalised(this.app.requestSettings) && PENALTIES]);
    } catch (error) {
      this.failed(error);
    }
  }

  showNote(text) {
    this.element.removeAttribute("aria-busy");
    this.drawnFor = null;
    this.after.replaceChildren();
    this.list.replaceChildren();
    this.list.hidden = this.legend.hidden = true;
    this.message.replaceChildren(note(text));
  }

  /** `drawn`: the probability of each known token after the sampling parameters. */
  draw(drawn, notes) {
    this.element.removeAttribute("aria-busy");
    this.message.replaceChildren(...notes.filter(Boolean).map((text) => note(text)));
    this.list.hidden = this.legend.hidden = false;
    const focused = [...this.list.querySelectorAll("button")].indexOf(document.activeElement);
    const rows = this.raw.tokens.slice(0, SHOWN).map((token, rank) => this.row(token, drawn[rank]));
    fillBars(this.list, rows, {
      others: left(rows.map(({ value }) => value)),
      othersBefore: left(rows.map(({ before }) => before)),
    });
    if (focused >= 0) this.list.querySelectorAll("button")[focused]?.focus();
  }

  /** A token as a row: its probability of the model, and after the sampling parameters; a button if it can be added. */
  row(token, value) {
    const before = probabilityOf(token);
    const out = value < 1e-12;
    const shown = out ? "filtered out" : percent(value);
    const text = named(token);
    const says = `${quoted(text)}: model ${percent(before)}, sampling ${shown}`;
    const row = { text, value, before, beforeShown: percent(before), out, shown, name: says };
    return this.onpick ? { ...row, name: `Add ${says}`, onpick: () => this.onpick(token) } : row;
  }

  /** Arrow keys move between the bars. */
  key(event) {
    const buttons = [...this.list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, to))]?.focus();
  }
}
