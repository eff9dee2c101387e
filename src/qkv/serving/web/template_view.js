// @ts-check
// What the model reads: a conversation as the chat template writes it, with the template's own tokens marked.

import { element } from "qkv/elements.js";
import { printable, quoted } from "qkv/token_text.js";
import { Latest, fetchJson } from "./api.js";
import { note } from "./notices.js";
import { named } from "./tokens.js";
/** @import { App } from "./app.js" */

const REST = 250; // milliseconds without a change before the request

export class TemplateView {
  /** @type {App} */
  app;
  /** @type {any} */
  messages;

  constructor(app, messages) {
    Object.assign(this, { app, messages });
    this.latest = new Latest();
    this.text = element("p", { class: "template-text", dir: "auto", tabindex: 0, "aria-label": "The rendered prompt" });
    this.note = note();
    const about =
      "A model continues one text. The chat template writes the messages into it; its special tokens are in boxes.";
    this.element = element(
      "details",
      { class: "template", ontoggle: () => this.show() },
      element("summary", {}, "What the model reads"),
      note(about),
      this.text,
      this.note,
    );
    this.text.hidden = true;
  }

  /** Requests the text if it is open, and has changed. */
  show() {
    const { app } = this;
    if (!this.element.open || !app.ready) return;
    const messages = this.messages();
    const key = JSON.stringify([app.model.id, messages]);
    if (this.key === key) return;
    this.key = key;
    clearTimeout(this.timer);
    this.latest.stop();
    if (messages.length) this.timer = setTimeout(() => this.request({ model: app.model.id, messages }), REST);
    else this.empty("Type a message to see it inside the template.");
  }

  empty(text) {
    this.text.hidden = true;
    this.text.replaceChildren();
    this.note.textContent = text;
  }

  async request(body) {
    try {
      const { tokens, count } = await fetchJson("/v1/tokenize", body, this.latest.begin());
      this.text.replaceChildren(...tokens.map(tokenNode));
      this.text.hidden = false;
      this.note.textContent = `${count.toLocaleString("en")} tokens. The answer is generated after the last one.`;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.key = null;
      this.empty(error.message);
    }
  }
}

function tokenNode(token) {
  const { special, text } = token;
  const title = quoted(named(token));
  if (special) return element("span", { class: "special-token", title: `${title}, a special token` }, named(token));
  return element("span", { title }, printable(text).replaceAll("\n", "↵\n"));
}
