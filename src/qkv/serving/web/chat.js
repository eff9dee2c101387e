// @ts-check
// Chat: a streamed conversation with branches. Tokens of an answer have alternatives; nothing is lost by an edit.

import { element } from "qkv/elements.js";
import { Alternatives } from "./alternatives.js";
import { AnswerStream, answerRequest, endNotes, fetchAlternatives, textOf } from "./answer_stream.js";
import { Latest } from "./api.js";
import { ChatControls } from "./chat_controls.js";
import { Conversation, linkedMessages } from "./conversation.js";
import { note, notice } from "./notices.js";
import { Sampling, newSeed } from "./sampling.js";
import { TalkView } from "./talk_view.js";
import { TemplateView } from "./template_view.js";

const STEPS = 50; // of undo
const KEPT = "The old branch is kept: ‹ and › switch.";

export class Chat {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.running = false;
    this.conversation = Conversation.stored();
    this.past = []; // conversations, for undo
    this.editing = null; // the node that the next message replaces in a new branch
    this.message = element("div");
    this.talk = new TalkView({
      known: (index) => this.known(index),
      onswitch: (...change) => this.switchBranch(...change),
      onedit: (index) => this.edit(index),
      onpick: (...token) => this.pick(...token),
    });
    this.alternatives = new Alternatives();
    this.sampling = new Sampling(app);
    this.template = new TemplateView(app, () => this.read);
    this.build();
  }

  build() {
    const { app } = this;
    const hint = "Optional: instructions for the model";
    this.system = element("textarea", { id: "system", rows: 2, dir: "auto", placeholder: hint });
    this.system.addEventListener("input", () => app.set({ system: this.system.value }));
    this.input = element("textarea", { id: "say", rows: 2, dir: "auto", placeholder: "Type a message" });
    this.input.addEventListener("input", () => this.buttons());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.controls = new ChatControls({
      send: () => this.send(),
      stop: () => this.latest.stop(),
      cancel: () => this.stopEditing(),
      regenerate: () => this.regenerate(),
      onward: () => this.continueAnswer(),
      undo: () => this.undo(),
      begin: () => this.begin(),
    });
    const label = element("label", { class: "unseen", for: "system" }, "System message");
    const work = element(
      "div",
      { class: "work" },
      element("details", { class: "system" }, element("summary", {}, "System message"), label, this.system),
      this.talk.legend,
      this.talk.element,
      this.message,
      element("div", { class: "labelled" }, element("label", { for: "say" }, "Message"), this.input),
      this.controls.element,
      this.template.element,
    );
    const aside = element("aside", { class: "aside" }, this.sampling.element);
    this.element = element("div", { class: "split" }, work, aside, this.alternatives.element);
  }

  key(event) {
    if (event.key === "Escape" && this.editing !== null) this.stopEditing();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }

  /** What the model reads before its next answer, or has read before the last one. */
  get read() {
    const draft = this.input.value.trim();
    const { conversation, editing } = this;
    const messages = conversation.messages(editing === null ? undefined : conversation.nodes[editing].parent);
    if (draft) messages.push({ role: "user", content: draft });
    else if (messages.at(-1)?.role === "assistant") messages.pop();
    return messages.length ? [...this.systemMessages, ...messages] : [];
  }

  get systemMessages() {
    const { system } = this.app.settings;
    return system.trim() ? [{ role: "system", content: system }] : [];
  }

  show(settings) {
    if (this.system.value !== settings.system) this.system.value = settings.system;
    this.sampling.show(settings);
    if (!this.running && this.shown !== settings.talk) this.load(settings.talk);
    this.buttons();
  }

  /** Shows the conversation of the address: that of this tab with its branches, or another one. */
  load(talk) {
    const messages = linkedMessages(talk);
    const same = JSON.stringify(this.conversation.messages()) === JSON.stringify(messages);
    if (!same) {
      if (this.shown !== undefined) this.remember();
      this.conversation = Conversation.of(messages);
      this.editing = null;
    }
    this.shown = talk;
    this.draw();
  }

  buttons() {
    const { conversation, running, editing, app } = this;
    this.controls.show({
      running,
      ready: app.ready,
      written: this.input.value.trim() !== "",
      empty: conversation.last < 0,
      editing: editing !== null,
      known: Boolean(this.known(conversation.last)),
      past: this.past.length > 0,
    });
    this.template.show();
  }

  /** The answer of a node if its tokens are known and of this model, else null. */
  known(index) {
    const node = this.conversation.nodes[index];
    return node?.tokens && node.model === this.app.model?.id ? node : null;
  }

  remember() {
    this.past = [...this.past, this.conversation].slice(-STEPS);
  }

  /** Shows another conversation, and stores it in the address and in the browser tab. */
  set(conversation) {
    this.conversation = conversation;
    const messages = conversation.messages();
    this.shown = messages.length ? JSON.stringify(messages) : "";
    conversation.store();
    this.app.set({ talk: this.shown });
    this.draw();
    this.buttons();
  }

  draw() {
    const { conversation, editing, talk } = this;
    const empty = conversation.last < 0;
    talk.show(conversation, editing, this.running);
    this.message.replaceChildren(...(empty ? [notice("empty", "Type a message to start a conversation.")] : []));
    if (editing !== null) this.message.replaceChildren(note("Sending the message starts a new branch. ", KEPT));
  }

  /** Shows the branch before or after the one at a node, and keeps the focus on its button. */
  switchBranch(index, other, step) {
    if (this.running || other === undefined) return;
    const place = this.conversation.path.indexOf(index);
    this.editing = null;
    this.set(this.conversation.choose(other));
    this.talk.focusBranch(place, step);
    const branches = this.conversation.branches(other);
    this.app.announce(`Branch ${branches.indexOf(other) + 1} of ${branches.length}.`);
    this.app.textChanged();
  }

  send() {
    const content = this.input.value.trim();
    if (content === "" || !this.app.ready || this.running) return;
    const { conversation, editing } = this;
    this.input.value = "";
    this.editing = null;
    this.remember();
    const parent = editing === null ? conversation.last : conversation.nodes[editing].parent;
    this.set(conversation.add(parent, { role: "user", content }));
    this.run(this.conversation.last);
  }

  /** Another answer, in a branch of its own. */
  regenerate() {
    const { conversation } = this;
    const { last } = conversation;
    this.app.set({ seed: newSeed() });
    this.remember();
    this.run(conversation.nodes[last].role === "assistant" ? conversation.nodes[last].parent : last);
  }

  /** Puts a message into the box; sending it starts a new branch. */
  edit(index) {
    if (this.running) return;
    this.editing = index;
    this.input.value = this.conversation.nodes[index].content;
    this.draw();
    this.buttons();
    this.input.focus();
    this.app.announce("Your message is in its box. Sending it starts a new branch; the old one is kept.");
  }

  stopEditing() {
    this.editing = null;
    this.input.value = "";
    this.draw();
    this.buttons();
    this.input.focus();
  }

  undo() {
    this.editing = null;
    this.set(this.past.pop());
    this.app.announce("Previous conversation restored.");
    (this.past.length ? this.controls.back : this.input).focus();
    this.app.textChanged();
  }

  begin() {
    this.remember();
    this.editing = null;
    this.set(new Conversation());
    this.input.focus();
    this.app.textChanged();
  }

  /** Goes on with the last answer, even if the model ended it. */
  continueAnswer() {
    const { last, nodes } = this.conversation;
    const { parent, tokens, reason } = nodes[last];
    const ended = reason === "end";
    const begin = ended && tokens.at(-1)?.text === "" ? tokens.slice(0, -1) : tokens; // without the end of text
    this.remember();
    this.run(parent, { begin, extend: last, force: ended });
  }

  /** Opens the alternatives to a token; the answer branches from the chosen one. */
  pick(index, position, node) {
    if (this.running) return;
    const { tokens, prompt, parent } = this.conversation.nodes[index];
    const token = tokens[position];
    const before = tokens.slice(0, position);
    const ids = [...prompt, ...before.map(({ id }) => id)];
    const coming = token.alternatives?.length ? Promise.resolve(token.alternatives) : fetchAlternatives(this.app, ids);
    this.alternatives.open(node, token, coming, ({ id, text, token: name, logprob }) => {
      const { alternatives = [] } = token;
      const begin = [...before, { id, text, token: name, logprob, chosen: true, alternatives }];
      this.remember();
      if (text !== "") this.run(parent, { begin });
      else this.finish(parent, { text: textOf(before), prompt, tokens: before, reason: "end" });
    });
  }

  /** The text for the view inside the model: the last answer with all before it. */
  get subject() {
    if (this.running && this.current?.ids.length) return { text: this.current.readable };
    const node = [...this.conversation.path].reverse().map((index) => this.known(index)).find(Boolean);
    if (!node) return null;
    const ids = [...node.prompt, ...node.tokens.map(({ id }) => id)];
    return { text: ids.slice(0, this.app.model.qkv.context ?? undefined) };
  }

  /** Generates an answer to the message `parent`. It becomes a branch, or with `extend` the rest of that node. */
  async run(parent, how = {}) {
    const { app, conversation: before } = this;
    const { begin = [], extend } = how;
    const messages = [...this.systemMessages, ...before.messages(parent)];
    const body = answerRequest(app, messages, how);
    this.running = true;
    const { [parent]: _, ...chosen } = before.chosen; // the new answer takes the place of the shown one
    this.conversation = new Conversation(before.nodes, chosen);
    this.draw();
    this.buttons();
    this.message.replaceChildren();
    app.announce("Generating …");
    const answer = new AnswerStream(app, body, begin);
    this.current = answer.text;
    this.talk.append(answer.element);
    const failed = await answer.read(this.latest.begin());
    this.running = false;
    this.conversation = before;
    const { content, prompt, text } = answer;
    const longer = text.generated.length > begin.length || (begin.length && extend === undefined && !failed);
    if (content && longer) {
      this.finish(parent, { text: content, prompt, tokens: text.generated, reason: text.reason, extend });
    } else this.set(before);
    this.message.replaceChildren(...endNotes(text, failed, () => this.run(parent, how)));
    if (failed) app.failed(failed);
    if ([document.body, this.controls.halt].includes(document.activeElement)) this.input.focus();
    app.announce(failed ? failed.message : `Assistant: ${content}`);
    app.textChanged();
  }

  /** Adds an answer as a branch, or puts its longer form in the place of the node `extend`. */
  finish(parent, /** @type {any} */ { text, prompt, tokens, reason, extend }) {
    const node = { role: "assistant", content: text, model: this.app.model.id, prompt, tokens, reason };
    const { conversation } = this;
    this.set(extend === undefined ? conversation.add(parent, node) : conversation.replace(extend, node));
  }
}
