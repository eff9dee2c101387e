// @ts-check
// The answer of a chat while it arrives: its tokens, and the turn that shows them.

import { element } from "qkv/elements.js";
import { fetchJson, stream } from "./api.js";
import { GeneratedText } from "./generated_text.js";
import { note, problem } from "./notices.js";
import { generation, headsOff } from "./settings.js";
import { Tokens } from "./tokens.js";
/** @import { App } from "./app.js" */

const ALTERNATIVES = 10;

/** The request of an answer. It begins with the tokens `begin`; with `force` it does not end at once. */
export function answerRequest(app, messages, { begin = [], force = false }) {
  return {
    model: app.model.id,
    messages,
    ...generation(app.requestSettings),
    tokens: true,
    top_logprobs: ALTERNATIVES,
    ...(begin.length ? { answer_ids: begin.map(({ id }) => id) } : {}),
    ...(force ? { min_tokens: 1 } : {}),
  };
}

/** The likeliest tokens after some ids, where no response has brought them. */
export async function fetchAlternatives(app, prompt) {
  const off = headsOff(app.requestSettings);
  const body = { model: app.model.id, prompt, top: ALTERNATIVES, ...(off.length ? { heads_off: off } : {}) };
  return (await fetchJson("/v1/next", body)).tokens;
}

export class AnswerStream {
  /** @type {() => AbortSignal} */
  begin;
  /** @type {object} */
  body;
  /** @type {App} */
  app;

  /** `begin` are the tokens with which the answer begins. */
  constructor(app, body, begin) {
    Object.assign(this, { app, body, begin });
    const { id, qkv } = app.model;
    this.text = new GeneratedText({ prompt: "", model: id, context: qkv.context, generated: [...begin] });
    this.tokens = new Tokens("Assistant");
    this.tokens.show(begin);
    this.tokens.element.classList.add("writing");
    this.element = element("li", { class: "turn" }, element("div", { class: "who" }, "Assistant"), this.tokens.element);
  }

  /** Reads to the end, or until it is stopped. Returns the error, if there is one. */
  async read(signal) {
    const { text, begin } = this;
    try {
      for await (const event of stream("/v1/chat/completions", this.body, signal)) {
        const [choice] = event.choices ?? [];
        const { prompt_tokens: read } = event;
        if (read) text.promptTokens = read.slice(0, read.length - begin.length);
        text.append(null, { ...choice, text: choice?.delta?.content });
        this.tokens.add(choice?.tokens ?? []);
        this.element.scrollIntoView({ block: "nearest" });
        this.app.textChanged();
      }
    } catch (error) {
      text.reason = "stopped";
      if (error.name !== "AbortError") return error;
    }
    return null;
  }

  /** The whole answer. */
  get content() {
    return textOf(this.begin) + this.text.written;
  }

  /** The ids before the answer. */
  get prompt() {
    return this.text.promptTokens.map(({ id }) => id);
  }
}

export function textOf(tokens) {
  return tokens.map(({ text }) => text).join("");
}

/** Why an answer ended, unless the model ended it. */
export function endNotes(text, failed, again) {
  if (failed) return [problem(failed, again)];
  if (text.reason === "stopped") return [note("Stopped.")];
  if (text.full) return [note(`${text.fullMessage} Start a new conversation, or edit a message.`)];
  return text.reason === "length" ? [note("Maximum number of tokens reached; Continue goes on.")] : [];
}
