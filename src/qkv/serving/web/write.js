// @ts-check
// Generate: a prompt, the generated tokens, and alternatives to each of them.

import { element } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { Alternatives } from "./alternatives.js";
import { Latest, fetchJson, stream } from "./api.js";
import { Builder } from "./builder.js";
import { Distribution } from "./distribution.js";
import { GeneratedText } from "./generated_text.js";
import { offThen } from "./heads_then.js";
import { readLinkedText } from "./linked_text.js";
import { notice, problem } from "./notices.js";
import { readTexts, readTokens } from "./read_tokens.js";
import { Sampling, newSeed } from "./sampling.js";
import { generation, headNames, headsOff } from "./settings.js";
import { Tokens, named, tokenLegend } from "./tokens.js";

const ALTERNATIVES = 10;
const LINKED = 200; // ids that a link may carry
const COMPLETE = ["end", "stop", "length", "context"]; // reasons after which the same request gives the same text

function emptyNotice() {
  const more = "Tokens are coloured by their probability. Open one to see its alternatives.";
  return notice("empty", "The generated text is shown here.", more);
}

export class Write {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.text = GeneratedText.stored();
    this.running = false;
    this.prompt = element("textarea", { id: "prompt", rows: 4, dir: "auto", placeholder: "Once upon a time" });
    this.prompt.addEventListener("input", () => app.set({ prompt: this.prompt.value }));
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate();
    });
    const button = (name, act, kind = "") => element("button", { type: "button", class: kind, onclick: act }, name);
    this.start = button("Generate", () => this.generate(), "primary");
    this.halt = button("Stop", () => this.latest.stop(), "primary");
    this.another = button("Regenerate", () => this.regenerate());
    this.onward = button("Continue", () => this.continueText());
    this.back = button("Undo", () => this.undo());
    this.off = element("p", { class: "note", hidden: true });
    this.builder = new Builder(app, (prompt) => this.use(prompt));
    this.legend = tokenLegend();
    this.tokens = new Tokens("Text", (position, node) => this.pick(position, node));
    this.plain = element("p", { class: "unseen" });
    this.message = element("div");
    this.state = element("p", { class: "note state" });
    this.other = element("p", { class: "note other-heads", hidden: true });
    this.alternatives = new Alternatives();
    this.sampling = new Sampling(app);
    this.distribution = new Distribution(app, { onpick: (token) => this.take(token) });
    this.result = element(
      "section",
      { class: "sheet result", "aria-labelledby": "result-title" },
      element("h2", { id: "result-title" }, "Text"),
      this.legend,
      this.tokens.element,
      this.plain,
      this.state,
      this.other,
      this.message,
    );
    this.stage = element("div", { class: "stage" }, this.result); // also has the view inside the model
    const measure = () => this.stage.style.setProperty("--stuck", `${this.result.offsetHeight}px`);
    new ResizeObserver(measure).observe(this.result);
    this.element = element(
      "div",
      { class: "split" },
      element(
        "div",
        { class: "work" },
        element("div", { class: "labelled" }, element("label", { for: "prompt" }, "Prompt"), this.prompt),
        element("div", { class: "actions" }, this.start, this.halt, this.another, this.onward, this.back, this.off),
        this.builder.element,
      ),
      this.stage,
      element("aside", { class: "aside" }, this.distribution.element, this.sampling.element),
      this.alternatives.element,
    );
    this.draw();
  }

  show(settings) {
    if (this.prompt.value !== settings.prompt) this.prompt.value = settings.prompt;
    this.sampling.show(settings);
    this.builder.show();
    const off = headsOff(this.app.requestSettings);
    this.off.hidden = off.length === 0;
    const which = off.length === 1 ? `Layer${headNames(off).slice(5)} is` : `${off.length} heads are`;
    this.off.textContent = `${which} switched off.`;
    this.update();
    if (!this.running) this.showNext();
  }

  /** Shows whether the text still belongs to the prompt, and to the heads that are switched off. */
  showAge() {
    const { text, running, current } = this;
    this.result.classList.toggle("stale", !running && Boolean(text?.ids.length) && !current);
    const others = !running && current?.generated.length && current.off !== this.app.requestSettings.off;
    this.other.hidden = !others;
    const off = others && headsOff(current);
    this.other.textContent = others ? `Generated with ${off.length ? `${headNames(off)} off` : "all heads on"}.` : "";
  }

  /** The text if it belongs to the model and the prompt of the settings, else null. */
  get current() {
    const { settings, model } = this.app;
    const matches = this.text && this.text.model === model?.id && this.text.prompt === settings.prompt;
    return matches && this.text.ids.length ? this.text : null;
  }

  /** The text for the view inside the model: token ids where they are known. */
  get subject() {
    const { prompt } = this.app.settings;
    if (this.current) return { text: this.current.readable };
    return prompt === "" ? null : { text: prompt };
  }

  showNext() {
    if (!this.app.ready) return;
    const { prompt } = this.app.settings;
    if (this.current?.full) this.distribution.none(`${this.current.fullMessage} No token can follow.`);
    else if (this.current) this.distribution.show(this.current.ids, this.current.text);
    else this.distribution.show(prompt, prompt);
  }

  buttons() {
    const { ready } = this.app;
    this.start.hidden = this.running;
    this.halt.hidden = !this.running;
    this.start.disabled = !ready;
    const full = this.current?.full;
    this.another.disabled = !ready || this.running || !this.current;
    this.onward.disabled = this.another.disabled || Boolean(full);
    this.onward.title = full ? this.current.fullMessage : "";
    this.another.hidden = this.onward.hidden = !this.text?.ids.length;
    this.back.hidden = !this.text?.before;
    this.back.disabled = this.running;
  }

  /** Takes the prompt of the builder: its examples are lines, so the answer ends with its line. */
  use(prompt) {
    this.app.set({ prompt });
    this.sampling.stopAtLine();
    this.builder.element.open = false;
    this.prompt.focus();
    this.prompt.setSelectionRange(prompt.length, prompt.length);
    this.app.announce("The prompt is in its box, and a line break is a stop sequence.");
  }

  generate() {
    if (!this.app.ready || this.running) return;
    const { prompt } = this.app.settings;
    this.run(new GeneratedText({ ...this.newText, recipe: this.recipe }), prompt);
  }

  /** The fields of a new text. */
  get newText() {
    const { settings, model, requestSettings } = this.app;
    const { context } = model.qkv;
    return { prompt: settings.prompt, model: model.id, context, off: requestSettings.off, before: this.text };
  }

  /** Everything that determines the text. */
  get recipe() {
    const { settings, model, requestSettings } = this.app;
    return JSON.stringify([model?.id, settings.prompt, generation(requestSettings)]);
  }

  /** What a link needs besides the settings to restore the text; null if it would be too long. */
  get linked() {
    const text = this.running ? null : this.current;
    if (!text?.generated.length) return {};
    if (text.recipe === this.recipe) return { run: true };
    if (text.ids.length > LINKED || text.full) return null;
    // the probability of a token is that without the heads that were off then
    return { on: text.linkIds, on_off: offThen(text.generated, this.app.requestSettings.off) };
  }

  /** Restores the text of a link: generates it again, or reads its ids if it was edited. */
  async restore(on, heads = "") {
    if (on === "") {
      this.generate();
      return;
    }
    const { app, newText } = this;
    try {
      this.text = await readLinkedText(on, heads, newText, ALTERNATIVES, this.latest.begin());
      this.redraw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error, () => this.restore(on, heads)));
      app.failed(error);
    }
  }

  /** Shows another text without generating. */
  redraw() {
    this.text.store();
    this.draw();
    this.showNext();
    this.app.textChanged();
  }

  /** Adds one token, which was chosen among the likeliest, to the end of the text. */
  async take({ id, text, token, logprob }) {
    const { app } = this;
    if (this.running || !app.ready) return;
    try {
      const now = this.current ?? (await this.readPrompt());
      if (now.full) return;
      const generated = [...now.generated, { id, text, token, logprob, chosen: true, off: app.requestSettings.off }];
      const next = now.with({ generated, reason: "chosen", off: app.requestSettings.off, before: this.text });
      next.setTexts(await readTexts(next.model, next.ids, this.latest.begin()));
      this.text = next;
      this.redraw();
      app.announce(`Added ${quoted(named({ id, text, token }))}.`);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error));
      app.failed(error);
    }
  }

  /** The prompt alone as a text. */
  async readPrompt() {
    const { newText } = this;
    const tokens = await readTokens(newText.model, newText.prompt, { signal: this.latest.begin() });
    return new GeneratedText({ ...newText, promptTokens: tokens.map(({ id, text, token }) => ({ id, text, token })) });
  }

  regenerate() {
    this.app.set({ seed: newSeed() });
    this.generate();
  }

  continueText() {
    const text = this.current.with({});
    this.run(text, text.ids);
  }

  undo() {
    this.text = this.text.before;
    this.app.set({ prompt: this.text.prompt });
    this.redraw();
    this.app.announce("Previous text restored.");
    (this.back.hidden ? this.prompt : this.back).focus();
  }

  /** Generates after `prompt`: a string, or the ids of the whole text so far. */
  async run(text, prompt) {
    const { app } = this;
    const focused = document.activeElement === this.start;
    Object.assign(this, { text, running: true });
    Object.assign(text, { reason: null, off: app.requestSettings.off });
    this.draw();
    if (focused) this.halt.focus();
    app.announce("Generating …");
    const body = {
      model: text.model,
      prompt,
      ...generation(app.requestSettings),
      logprobs: ALTERNATIVES,
      tokens: true,
    };
    try {
      for await (const event of stream("/v1/completions", body, this.latest.begin())) this.append(text, event);
      text.reason ??= "end";
    } catch (error) {
      text.reason = error.name === "AbortError" ? "stopped" : "failed";
      if (text.reason === "failed") {
        this.message.replaceChildren(problem(error, () => this.run(text, text.ids.length ? text.ids : prompt)));
        app.failed(error);
      }
    }
    if (text.reason !== "failed") this.message.replaceChildren();
    if (!COMPLETE.includes(text.reason)) text.recipe = null;
    await this.readSequence(text);
    const halted = document.activeElement === this.halt;
    this.running = false;
    text.store();
    this.update();
    if (halted) this.start.focus();
    app.announce(`${this.state.textContent} ${text.reason === "failed" ? "" : text.generatedText}`);
    app.textChanged();
    this.showNext();
  }

  /** Shows the tokens with the texts that they have after one another, as a link will: the server gives those of a
   * request without what was before it, and that of an alternative without any other. */
  async readSequence(text) {
    try {
      const changed = text.setTexts(await readTexts(text.model, text.ids, this.latest.begin()));
      if (changed && this.text === text) this.tokens.show(text.all);
    } catch {
      // they stay as they came
    }
  }

  append(text, event) {
    const [choice] = event.choices ?? [];
    const first = text.append(event.prompt_tokens, choice);
    for (const token of text.newTokens) token.off ??= text.off;
    if (this.text !== text) return;
    if (text.reason === "stop") this.tokens.show(text.all);
    else this.tokens.add(text.all.slice(first));
    if (text.generated.length) this.message.replaceChildren();
    this.app.textChanged();
  }

  /** Draws the whole text. */
  draw() {
    const { text } = this;
    this.tokens.element.hidden = !text;
    this.tokens.show(text ? text.all : []);
    const waiting = this.running && !text.generated.length ? notice("waiting", "Running the model …") : null;
    this.message.replaceChildren(...(text ? [] : [emptyNotice()]), ...(waiting ? [waiting] : []));
    this.update();
  }

  /** Updates everything that depends on the settings or on the state of generation. */
  update() {
    const { text, running } = this;
    this.tokens.element.classList.toggle("writing", running);
    this.tokens.element.setAttribute("aria-busy", String(running));
    this.plain.textContent = running || !text ? "" : `As plain text: ${text.text}`;
    this.legend.hidden = !text?.generated.length && !running;
    this.state.textContent = running ? "Generating …" : (text?.sentence ?? "");
    this.showAge();
    this.buttons();
  }

  /** Opens the alternatives to a token; generation continues from the chosen one. */
  pick(position, node) {
    if (this.running) return;
    const { text } = this;
    const token = text.all[position];
    const known = token.alternatives?.length ? Promise.resolve(token.alternatives) : this.fetchAlternatives(position);
    this.alternatives.open(node, token, known, ({ id, text: chosenText, token: name, logprob }) => {
      const { alternatives = [], off } = token;
      const next = text.upTo(position, { id, text: chosenText, token: name, logprob, chosen: true, alternatives, off });
      this.app.set({ prompt: next.prompt }); // it changes with a token of the prompt
      if (!next.full) this.run(next, next.ids);
      else {
        this.text = Object.assign(next, { reason: "context" });
        this.readSequence(next).then(() => this.redraw());
      }
    });
  }

  /** The alternatives to a token of the prompt, which come with no response. */
  async fetchAlternatives(position) {
    if (position === 0) throw new Error("The first token has no context, so it has no alternatives.");
    const body = { model: this.text.model, prompt: this.text.ids.slice(0, position), top: ALTERNATIVES };
    const off = headsOff(this.app.requestSettings);
    return (await fetchJson("/v1/next", off.length ? { ...body, heads_off: off } : body)).tokens;
  }
}
