// Chat: a streamed conversation; answers can be stopped and regenerated, earlier messages edited.

import { element } from "qkv/elements.js";
import { Latest, stream } from "./api.js";
import { GeneratedText } from "./generated_text.js";
import { note, notice, problem } from "./notices.js";
import { Sampling, newSeed } from "./sampling.js";
import { generation, parsed } from "./settings.js";
import { Tokens, tokenLegend } from "./tokens.js";

export class Chat {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.running = false;
    this.answers = new Map(); // from the index of a message to its tokens
    this.list = element("ol", { class: "talk", "aria-label": "Conversation" });
    this.message = element("div");
    const hint = "Optional: instructions for the model";
    this.system = element("textarea", { id: "system", rows: 2, dir: "auto", placeholder: hint });
    this.system.addEventListener("input", () => app.set({ system: this.system.value }));
    this.input = element("textarea", { id: "say", rows: 2, dir: "auto", placeholder: "Type a message" });
    this.input.addEventListener("input", () => this.buttons());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    const button = (name, act, kind = "") => element("button", { type: "button", class: kind, onclick: act }, name);
    this.start = button("Send", () => this.send(), "primary");
    this.halt = button("Stop", () => this.latest.stop(), "primary");
    this.again = button("Regenerate", () => this.regenerate());
    this.clear = button("New conversation", () => this.begin());
    this.sampling = new Sampling(app);
    this.element = element(
      "div",
      { class: "split" },
      element(
        "div",
        { class: "work" },
        element(
          "details",
          { class: "system" },
          element("summary", {}, "System message"),
          element("label", { class: "unseen", for: "system" }, "System message"),
          this.system,
        ),
        this.list,
        this.message,
        element("div", { class: "labelled" }, element("label", { for: "say" }, "Message"), this.input),
        element(
          "div",
          { class: "actions" },
          this.start,
          this.halt,
          this.again,
          this.clear,
          element("span", { class: "note" }, "Enter sends, Shift+Enter starts a new line."),
        ),
      ),
      element("aside", { class: "aside" }, this.sampling.element),
    );
  }

  get messages() {
    const stored = parsed(this.app.settings.talk, []);
    const known = ({ role, content } = {}) => ["user", "assistant"].includes(role) && typeof content === "string";
    return Array.isArray(stored) ? stored.filter(known) : [];
  }

  show(settings) {
    if (this.system.value !== settings.system) this.system.value = settings.system;
    this.sampling.show(settings);
    if (!this.running && this.shown !== settings.talk) this.draw();
    this.buttons();
  }

  buttons() {
    const { ready } = this.app;
    this.start.hidden = this.running;
    this.halt.hidden = !this.running;
    this.start.disabled = !ready || this.input.value.trim() === "";
    const { messages } = this;
    this.again.hidden = this.clear.hidden = messages.length === 0;
    this.again.disabled = !ready || this.running || !messages.some(({ role }) => role === "user");
    this.clear.disabled = this.running;
  }

  store(messages) {
    this.shown = JSON.stringify(messages);
    this.app.set({ talk: messages.length ? this.shown : "" });
  }

  draw() {
    const { messages } = this;
    this.shown = this.app.settings.talk;
    this.list.replaceChildren(...messages.map((message, index) => this.turn(message, index)));
    this.list.hidden = messages.length === 0;
    if (messages.length === 0 && !this.message.querySelector(".error")) {
      this.message.replaceChildren(notice("empty", "Type a message to start a conversation."));
    } else this.message.replaceChildren();
  }

  turn({ role, content }, index) {
    const isUser = role === "user";
    const body = new Tokens(isUser ? "You" : "Assistant");
    const known = this.answers.get(index);
    body.show(known && known.text === content ? known.tokens : [{ text: content }]);
    const edit = element("button", { type: "button", class: "plain", onclick: () => this.edit(index) }, "Edit");
    return element(
      "li",
      { class: isUser ? "turn own" : "turn" },
      element("div", { class: "who" }, isUser ? "You" : "Assistant", ...(isUser ? [edit] : [])),
      body.element,
    );
  }

  send() {
    const content = this.input.value.trim();
    if (content === "" || !this.app.ready || this.running) return;
    this.input.value = "";
    this.run([...this.messages, { role: "user", content }]);
  }

  regenerate() {
    const { messages } = this;
    while (messages.at(-1)?.role === "assistant") messages.pop();
    this.app.set({ seed: newSeed() });
    this.run(messages);
  }

  /** Puts a message back into the box, and removes it and all that follow. */
  edit(index) {
    if (this.running) return;
    const { messages } = this;
    this.input.value = messages[index].content;
    this.store(messages.slice(0, index));
    this.draw();
    this.buttons();
    this.input.focus();
    this.app.announce("Your message is in its box again; the messages after it are removed.");
  }

  begin() {
    this.answers.clear();
    this.current = null;
    this.message.replaceChildren();
    this.store([]);
    this.draw();
    this.buttons();
    this.input.focus();
  }

  /** The text for the view inside the model. */
  get subject() {
    return this.current?.ids.length ? { text: this.current.readable } : null;
  }

  async run(messages) {
    const { app } = this;
    const { settings } = app;
    this.running = true;
    this.store(messages);
    this.draw();
    this.buttons();
    const answer = new GeneratedText({ prompt: "", model: app.model.id, context: app.model.qkv.context });
    this.current = answer;
    const body = new Tokens("Assistant");
    const turn = element("li", { class: "turn" }, element("div", { class: "who" }, "Assistant"), body.element);
    body.element.classList.add("writing");
    this.list.append(turn);
    this.message.replaceChildren();
    app.announce("Generating …");
    const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    let text = "";
    let failed = null;
    const request = {
      model: answer.model,
      messages: [...system, ...messages],
      ...generation(app.requestSettings),
      tokens: true,
    };
    try {
      for await (const event of stream("/v1/chat/completions", request, this.latest.begin())) {
        const [choice] = event.choices ?? [];
        answer.append(event.prompt_tokens, choice);
        body.add(choice?.tokens ?? []);
        text += choice?.delta?.content ?? "";
        turn.scrollIntoView({ block: "nearest" });
        app.textChanged();
      }
    } catch (error) {
      answer.reason = "stopped";
      if (error.name !== "AbortError") failed = error;
    }
    this.running = false;
    if (text) {
      this.answers.set(messages.length, { text, tokens: answer.generated });
      this.store([...messages, { role: "assistant", content: text }]);
    }
    this.draw();
    if (failed) {
      this.message.replaceChildren(problem(failed, () => this.run(messages)));
      app.failed(failed);
    } else if (answer.reason === "stopped") this.message.replaceChildren(note("Stopped."));
    else if (answer.full) {
      const advice = "Start a new conversation, or edit a message.";
      this.message.replaceChildren(note(`${answer.fullMessage} ${advice}`));
    }
    else if (answer.reason === "length") {
      this.message.replaceChildren(note("Maximum number of tokens reached; increase it for longer answers."));
    }
    if (!this.legend && text) this.list.before((this.legend = tokenLegend()));
    this.buttons();
    if ([document.body, this.halt].includes(document.activeElement)) this.input.focus();
    app.announce(failed ? failed.message : `Assistant: ${text}`);
    app.textChanged();
  }
}
