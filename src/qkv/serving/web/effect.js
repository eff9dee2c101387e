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
    const read = Array.isArray(text) && text.length > MOST ? text.slice(-MOST) : text;
    try {
      const answer = await fetchJson("/v1/effects", { ...body, text: read });
      if (this.key !== key) return;
      this.draw(answer);
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

  draw({ tokens, next, rest, kl, change }) {
    this.message.replaceChildren();
    this.body.hidden = false;
    this.body.removeAttribute("aria-busy");
    this.element.dataset.shown = this.key;
    const moved = `The next token's distribution moved by ${kl.toFixed(3)} nats (KL divergence).`;
    const less = change < 0 ? "less" : "more";
    const whole = change === null ? "" : ` The text became ${less} likely: ${signed(change)} nats in all.`;
    this.summary.textContent = moved + whole;
    const shown = next.slice(0, SHOWN);
    const hidden = next.slice(SHOWN);
    const others = ["before", "after"].map((side, at) => hidden.reduce((sum, token) => sum + token[side], rest[at]));
    fillBars(this.list, shown.map(guessRow), { others: others[1], othersBefore: others[0] });
    this.text.show(tokens.map(changed), HINT);
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

/** A token with the change of its log-probability. */
function changed(token) {
  const { before, after } = token;
  if (before === null) {
    return { ...token, value: null, facts: "the first token, which nothing predicts", cells: ["", "", ""] };
  }
  const value = after - before;
  const [was, is] = [before, after].map((logprob) => percent(Math.exp(logprob)));
  const facts = `${signed(value)} nats: ${was} before, ${is} after`;
  return { ...token, value, facts, cells: [was, is, `${signed(value)} nats`] };
}
