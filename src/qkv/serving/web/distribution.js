// Next-token probabilities: of the model, and after the sampling parameters; the remaining tokens as one bar.

import { fillBars, left } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { quoted, tokenText } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { note } from "./notices.js";
import { penalised, sampling } from "./settings.js";
import { named, probabilityOf } from "./tokens.js";

const SHOWN = 10;
const PAUSE = 180; // milliseconds without a change before a request

const PENALTIES = "Penalties are applied in addition, while text is generated.";
const NOTHING = "Write a prompt to see the next-token probabilities.";

/** The last few words of a text. */
function last(text) {
  if (text.length <= 30) return text;
  const end = text.slice(-30);
  return `… ${end.slice(end.search(/\s/) + 1)}`;
}

export class Distribution {
  constructor(app) {
    this.app = app;
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
    this.element = element(
      "section",
      { class: "distribution", "aria-labelledby": "next-title" },
      element("h2", { id: "next-title" }, "Next token"),
      this.after,
      this.legend,
      this.list,
      this.message,
    );
    this.showNote(NOTHING);
  }

  /** Shows what follows a text or ids; nothing follows an empty one. */
  show(prompt, ending) {
    const { model, requestSettings: settings } = this.app;
    const body = { model: model?.id, prompt, top: SHOWN, ...sampling(settings) };
    this.penalised = penalised(settings);
    const key = JSON.stringify(body);
    if (this.key === key) return; // it is already requested
    this.key = key;
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

  /** Shows why nothing can follow. */
  none(reason) {
    clearTimeout(this.timer);
    this.latest.stop();
    this.key = null;
    this.showNote(reason);
  }

  async request(body) {
    try {
      const answer = await fetchJson("/v1/next", body, this.latest.begin());
      this.draw(answer.tokens);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.key = null;
      this.showNote(error.message);
    }
  }

  showNote(text) {
    this.element.removeAttribute("aria-busy");
    this.after.replaceChildren();
    this.list.replaceChildren();
    this.list.hidden = this.legend.hidden = true;
    this.message.replaceChildren(note(text));
  }

  draw(tokens) {
    this.element.removeAttribute("aria-busy");
    this.message.replaceChildren(...(this.penalised ? [note(PENALTIES)] : []));
    this.list.hidden = this.legend.hidden = false;
    const rows = tokens.slice(0, SHOWN).map((token) => this.row(token));
    fillBars(this.list, rows, {
      others: left(rows.map(({ value }) => value)),
      othersBefore: left(rows.map(({ before }) => before)),
    });
  }

  /** A token as a row: its probability of the model, and after the sampling parameters. */
  row(token) {
    const before = probabilityOf(token);
    const value = token.probability;
    const out = value < 1e-12;
    const shown = out ? "filtered out" : percent(value);
    const text = named(token);
    return { text, value, before, out, shown, name: `${quoted(text)}: model ${percent(before)}, sampling ${shown}` };
  }
}
