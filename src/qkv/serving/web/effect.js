// @ts-check
// Effect of a change: the next token before and after, and how likely each token of the text became.

import { fillBars } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { fetchJson } from "./api.js";
import { notice, problem } from "./notices.js";
import { SignedTokens, signed, signedLegend } from "./signed_tokens.js";
import { named } from "./tokens.js";
/** @import { App } from "./app.js" */

const SHOWN = 12; // next tokens
const MOST = 512; // tokens of the text that the server reads
const REST = 250; // milliseconds without a change before the request
const FIRST = "the first token, which nothing predicts";
const HINT = "Point at a token, or use the arrow keys, to see its numbers.";

export class Effect {
  /** @type {App} */
  app;
  /** @type {any} */
  ontexts;

  /** Calls `ontexts` with the continuations of a response, or null. */
  constructor(app, ontexts) {
    Object.assign(this, { app, ontexts });
    this.summary = element("p", { class: "effect-summary" });
    this.list = element("ol", { class: "bars change-bars", "aria-label": "Next token before and after" });
    this.text = new SignedTokens("Tokens of the text, by the change of their log-probability", [
      "before",
      "after",
      "change",
    ]);
    this.message = element("div");
    const legend = element(
      "p",
      { class: "change-legend" },
      element("span", { class: "change-before" }, "before"),
      element("span", { class: "change-after" }, "after"),
    );
    const next = element("section", {}, element("h4", {}, "Next token"), legend, this.list);
    const tokens = element(
      "section",
      {},
      element("h4", {}, "Each token of the text"),
      signedLegend("likelier", "less likely"),
      this.text.element,
    );
    this.body = element("div", { class: "effect-parts" }, next, tokens);
    this.element = element(
      "section",
      { class: "effect sheet", "aria-labelledby": "effect-title" },
      element("h3", { id: "effect-title" }, "Effect"),
      this.message,
      this.summary,
      this.body,
    );
    this.element.hidden = true;
  }

  /** Requests the effect of a change on a text; `change` is null without one. */
  show(subject, change) {
    const text = typeof subject?.text === "string" || Number.isInteger(subject?.text?.[0]) ? subject.text : null;
    const model = this.app.model?.id;
    const body = change && text?.length ? { model, text, ...change } : null;
    const key = JSON.stringify(body);
    if (this.key === key) return;
    this.key = key;
    this.wanted = body;
    this.element.hidden = change === null;
    if (body) {
      this.body.setAttribute("aria-busy", "true");
      if (!this.requesting) this.begin();
    } else if (change) this.none("Write a text to measure the effect on it.");
    else this.ontexts(null);
  }

  /** One request at a time; between two of them only the latest wish counts. */
  async begin() {
    this.requesting = true;
    while (this.wanted) {
      await new Promise((resume) => setTimeout(resume, REST));
      const body = this.wanted;
      this.wanted = null;
      if (body) await this.request(body);
    }
    this.requesting = false;
  }

  async request(body) {
    const key = JSON.stringify(body);
    if (this.body.hidden) this.message.replaceChildren(notice("waiting", "Reading the text twice …"));
    const { text } = body;
    const cut = Array.isArray(text) ? Math.max(0, text.length - MOST) : 0;
    const read = cut ? text.slice(cut) : text;
    try {
      const answer = await fetchJson("/v1/effects", { ...body, text: read });
      if (this.key !== key) return;
      this.draw(answer, cut);
      this.ontexts(answer.texts);
    } catch (error) {
      if (this.key !== key) return;
      this.none();
      this.message.replaceChildren(problem(error, () => this.retry(body)));
      this.app.failed(error);
    }
  }

  retry(body) {
    this.wanted = body;
    if (!this.requesting) this.begin();
  }

  /** The server is back: repeats a failed request. */
  recover() {
    if (this.message.querySelector(".lost")) this.key = undefined;
  }

  none(reason) {
    this.body.hidden = true;
    this.summary.textContent = "";
    this.message.replaceChildren(...(reason ? [notice("empty", reason)] : []));
    this.ontexts(null);
  }

  /** Draws a response; `cut` tokens before those that were read are left out. */
  draw({ tokens, next, rest, kl, change }, cut = 0) {
    this.message.replaceChildren();
    this.body.hidden = false;
    this.body.removeAttribute("aria-busy");
    this.element.dataset.shown = this.key;
    this.summary.textContent = summaryOf({ kl, change, count: tokens.length }, cut);
    const shown = next.slice(0, SHOWN);
    const hidden = next.slice(SHOWN);
    const others = ["before", "after"].map((side, at) => hidden.reduce((sum, token) => sum + token[side], rest[at]));
    fillBars(this.list, shown.map(guessRow), { others: others[1], othersBefore: others[0] });
    this.text.show(
      tokens.map((token, at) => changed(token, at, cut)),
      HINT,
    );
    this.app.announce(this.summary.textContent);
  }
}

/** A next token as a row with both probabilities. */
function guessRow(token) {
  const { before, after } = token;
  const text = named(token);
  const name = `${quoted(text)}: ${percent(before)} before, ${percent(after)} after`;
  return { text, value: after, before, beforeShown: percent(before), name };
}

/** How far the next token's distribution moved, what became of the text, and what was not measured. */
export function summaryOf({ kl, change, count }, cut) {
  const moved =
    kl === null
      ? "The next token's distribution has numbers that are not finite."
      : `The next token's distribution moved by ${kl.toFixed(3)} nats (KL divergence).`;
  if (change === null) return moved;
  const text = cut ? `Its last ${count} tokens` : "The text";
  const amount = signed(change);
  const same = Number(amount.replace("−", "-")) === 0;
  const way = `became ${change < 0 ? "less" : "more"} likely: ${amount} nats in all.`;
  const became = same ? `${text} ${cut ? "are" : "is"} as likely as before.` : `${text} ${way}`;
  return cut ? `${moved} The text is long: its first ${cut} tokens are left out. ${became}` : `${moved} ${became}`;
}

/** A token with the change of its log-probability. */
function changed(token, at, cut) {
  const { before, after } = token;
  if (before === null || after === null) {
    const first = cut ? "the first token that is read; those before are left out" : FIRST;
    return { ...token, value: null, facts: at === 0 ? first : "not a finite number", cells: ["", "", ""] };
  }
  const value = after - before;
  const [was, is] = [before, after].map((logprob) => percent(Math.exp(logprob)));
  const facts = `${signed(value)} nats: ${was} before, ${is} after`;
  return { ...token, value, facts, cells: [was, is, `${signed(value)} nats`] };
}
