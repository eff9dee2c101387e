// Chat: turns of a talk, streamed; one may stop an answer, ask for another, or change what was said before.

import { element } from "qkv/elements.js";
import { Latest, stream } from "./api.js";
import { Draft } from "./draft.js";
import { note, notice, problem } from "./notices.js";
import { Sampling, newSeed } from "./sampling.js";
import { generation, parsed } from "./settings.js";
import { Tokens, tokenLegend } from "./tokens.js";

export class Chat {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.running = false;
    this.answers = new Map(); // of the place of a message the tokens it was said in
    this.list = element("ol", { class: "talk", "aria-label": "The talk" });
    this.message = element("div");
    const hint = "Optional: how it should behave";
    this.system = element("textarea", { id: "system", rows: 2, dir: "auto", placeholder: hint });
    this.system.addEventListener("input", () => app.set({ system: this.system.value }));
    this.input = element("textarea", { id: "say", rows: 2, dir: "auto", placeholder: "Ask something" });
    this.input.addEventListener("input", () => this.buttons());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    const button = (name, act, kind = "") => element("button", { type: "button", class: kind, onclick: act }, name);
    this.start = button("Send", () => this.send(), "primary");
    this.halt = button("Stop", () => this.latest.stop(), "primary");
    this.again = button("Another answer", () => this.regenerate());
    this.clear = button("Begin anew", () => this.begin());
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
        element("div", { class: "labelled" }, element("label", { for: "say" }, "Your turn"), this.input),
        element(
          "div",
          { class: "actions" },
          this.start,
          this.halt,
          this.again,
          this.clear,
          element("span", { class: "note" }, "Enter sends, Shift and Enter begins a line."),
        ),
      ),
      element("aside", { class: "aside" }, this.sampling.element),
    );
  }

  get messages() {
    const found = parsed(this.app.settings.talk, []);
    const known = ({ role, content } = {}) => ["user", "assistant"].includes(role) && typeof content === "string";
    return Array.isArray(found) ? found.filter(known) : [];
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

  keep(messages) {
    this.shown = JSON.stringify(messages);
    this.app.set({ talk: messages.length ? this.shown : "" });
  }

  draw() {
    const { messages } = this;
    this.shown = this.app.settings.talk;
    this.list.replaceChildren(...messages.map((each, place) => this.turn(each, place)));
    this.list.hidden = messages.length === 0;
    if (messages.length === 0 && !this.message.querySelector(".error")) {
      this.message.replaceChildren(notice("empty", "Say something, and the model answers."));
    } else this.message.replaceChildren();
  }

  turn({ role, content }, place) {
    const own = role === "user";
    const body = new Tokens(own ? "You" : "The model");
    const known = this.answers.get(place);
    body.show(known && known.text === content ? known.tokens : [{ text: content }]);
    const edit = element("button", { type: "button", class: "plain", onclick: () => this.edit(place) }, "Edit");
    return element(
      "li",
      { class: own ? "turn own" : "turn" },
      element("div", { class: "who" }, own ? "You" : "The model", ...(own ? [edit] : [])),
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

  /** What was said from here on is taken back into the box. */
  edit(place) {
    if (this.running) return;
    const { messages } = this;
    this.input.value = messages[place].content;
    this.keep(messages.slice(0, place));
    this.draw();
    this.buttons();
    this.input.focus();
    this.app.announce("Your turn is in its box again; what followed it is gone.");
  }

  begin() {
    this.answers.clear();
    this.said = null;
    this.message.replaceChildren();
    this.keep([]);
    this.draw();
    this.buttons();
    this.input.focus();
  }

  /** What "See it think" looks at. */
  get subject() {
    return this.said?.ids.length ? { text: this.said.readable } : null;
  }

  async run(messages) {
    const { app } = this;
    const { settings } = app;
    this.running = true;
    this.keep(messages);
    this.draw();
    this.buttons();
    const draft = (this.said = new Draft({ prompt: "", model: app.model.id, context: app.model.qkv.context }));
    const body = new Tokens("The model");
    const made = element("li", { class: "turn" }, element("div", { class: "who" }, "The model"), body.element);
    body.element.classList.add("writing");
    this.list.append(made);
    this.message.replaceChildren();
    app.announce("The model answers …");
    const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    let text = "";
    let failed = null;
    const asked = { model: draft.model, messages: [...system, ...messages], ...generation(app.asked), tokens: true };
    try {
      for await (const event of stream("/v1/chat/completions", asked, this.latest.begin())) {
        const [choice] = event.choices ?? [];
        draft.hear(event.prompt_tokens, choice);
        body.add(choice?.tokens ?? []);
        text += choice?.delta?.content ?? "";
        made.scrollIntoView({ block: "nearest" });
        app.changed();
      }
    } catch (error) {
      draft.reason = "stopped";
      if (error.name !== "AbortError") failed = error;
    }
    this.running = false;
    if (text) {
      this.answers.set(messages.length, { text, tokens: draft.said });
      this.keep([...messages, { role: "assistant", content: text }]);
    }
    this.draw();
    if (failed) {
      this.message.replaceChildren(problem(failed, () => this.run(messages)));
      app.failed(failed);
    } else if (draft.reason === "stopped") this.message.replaceChildren(note("You stopped it."));
    else if (draft.full) this.message.replaceChildren(note(`${draft.fullness} Begin anew, or edit what you said.`));
    else if (draft.reason === "length") {
      this.message.replaceChildren(note("The answer has the length you asked for; a greater one lets it go on."));
    }
    if (!this.legend && text) this.list.before((this.legend = tokenLegend()));
    this.buttons();
    if ([document.body, this.halt].includes(document.activeElement)) this.input.focus();
    app.announce(failed ? failed.message : `The model said: ${text}`);
    app.changed();
  }
}
