// Write: a prompt, what the model makes of it token by token, and other ways it could have gone.

import { element } from "qkv/elements.js";
import { Alternatives } from "./alternatives.js";
import { Latest, ask, stream } from "./api.js";
import { Builder } from "./builder.js";
import { Distribution } from "./distribution.js";
import { Draft, readSpelled } from "./draft.js";
import { notice, problem } from "./notices.js";
import { Sampling, newSeed } from "./sampling.js";
import { generation, headNames, headsOff } from "./settings.js";
import { Tokens, tokenLegend } from "./tokens.js";

const ALTERNATIVES = 10;
const LINKED = 200; // ids that a link may carry
const WHOLE = ["end", "stop", "length", "context"]; // reasons for which the same question has the same answer

function nothing() {
  const more = "Each is coloured by how likely the model found it. Open one to see what else could have stood there.";
  return notice("empty", "The text comes here, token by token.", more);
}

export class Write {
  constructor(app) {
    this.app = app;
    this.latest = new Latest();
    this.draft = Draft.kept();
    this.running = false;
    this.prompt = element("textarea", { id: "prompt", rows: 4, dir: "auto", placeholder: "Once upon a time" });
    this.prompt.addEventListener("input", () => app.set({ prompt: this.prompt.value }));
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate();
    });
    const button = (name, act, kind = "") => element("button", { type: "button", class: kind, onclick: act }, name);
    this.start = button("Generate", () => this.generate(), "primary");
    this.halt = button("Stop", () => this.latest.stop(), "primary");
    this.another = button("Another text", () => this.anew());
    this.onward = button("Go on", () => this.goOn());
    this.back = button("Undo", () => this.undo());
    this.off = element("p", { class: "note", hidden: true });
    this.builder = new Builder(app, (prompt) => this.use(prompt));
    this.legend = tokenLegend();
    this.tokens = new Tokens("The text", (place, made) => this.pick(place, made));
    this.plain = element("p", { class: "unseen" });
    this.message = element("div");
    this.state = element("p", { class: "note state" });
    this.other = element("p", { class: "note other-heads", hidden: true });
    this.alternatives = new Alternatives();
    this.sampling = new Sampling(app);
    this.distribution = new Distribution(app);
    this.result = element(
      "section",
      { class: "sheet result", "aria-labelledby": "result-title" },
      element("h2", { id: "result-title" }, "The text"),
      this.legend,
      this.tokens.element,
      this.plain,
      this.state,
      this.other,
      this.message,
    );
    this.stage = element("div", { class: "stage" }, this.result); // where it thinks, the text stays in sight
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
    const off = headsOff(this.app.asked);
    this.off.hidden = off.length === 0;
    const which = off.length === 1 ? `Layer${headNames(off).slice(5)} is` : `${off.length} heads are`;
    this.off.textContent = `${which} switched off.`;
    this.settle();
    if (!this.running) this.follow();
  }

  /** Whether the text is that of the prompt and of the heads that are chosen by now. */
  age() {
    const { draft, running, current } = this;
    this.result.classList.toggle("stale", !running && Boolean(draft?.ids.length) && !current);
    const others = !running && current?.said.length && current.off !== this.app.asked.off;
    this.other.hidden = !others;
    const off = others && headsOff(current);
    this.other.textContent = others ? `Written with ${off.length ? `${headNames(off)} off` : "all heads on"}.` : "";
  }

  /** The draft as long as the prompt is still its own, else what is in the box. */
  get current() {
    const { settings, model } = this.app;
    const own = this.draft && this.draft.model === model?.id && this.draft.prompt === settings.prompt;
    return own && this.draft.ids.length ? this.draft : null;
  }

  /** What "See it think" looks at: ids where the text has been read, so that it is seen token for token. */
  get subject() {
    const { prompt } = this.app.settings;
    if (this.current) return { text: this.current.readable };
    return prompt === "" ? null : { text: prompt };
  }

  follow() {
    if (!this.app.ready) return;
    const { prompt } = this.app.settings;
    if (this.current?.full) this.distribution.none(`${this.current.fullness} So nothing comes next.`);
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
    this.onward.title = full ? this.current.fullness : "";
    this.another.hidden = this.onward.hidden = !this.draft?.ids.length;
    this.back.hidden = !this.draft?.before;
    this.back.disabled = this.running;
  }

  /** The prompt of the builder: examples stand on lines, so the answer ends with its line. */
  use(prompt) {
    this.app.set({ prompt });
    this.sampling.stopAtLine();
    this.builder.element.open = false;
    this.prompt.focus();
    this.prompt.setSelectionRange(prompt.length, prompt.length);
    this.app.announce("The prompt is in its box, and a line break is a stop text.");
  }

  generate() {
    if (!this.app.ready || this.running) return;
    const { prompt } = this.app.settings;
    this.run(new Draft({ ...this.fresh, made: this.recipe }), prompt);
  }

  /** A text that begins. */
  get fresh() {
    const { settings, model, asked } = this.app;
    const { context } = model.qkv;
    return { prompt: settings.prompt, model: model.id, context, off: asked.off, before: this.draft };
  }

  /** All that a text follows from. */
  get recipe() {
    const { settings, model, asked } = this.app;
    return JSON.stringify([model?.id, settings.prompt, generation(asked)]);
  }

  /** What a link needs besides the settings to show the same text again; null where it would be too long. */
  get linked() {
    const draft = this.running ? null : this.current;
    if (!draft?.said.length) return {};
    if (draft.made === this.recipe) return { run: true };
    return draft.ids.length <= LINKED && !draft.full ? { on: draft.spelled } : null;
  }

  /** A link was opened that had a text: it is written again, or read again where it was chosen by hand. */
  async arrive(on) {
    if (on === "") {
      this.generate();
      return;
    }
    const { app, fresh } = this;
    const prompt = readSpelled(on).flat().map((each) => parseInt(each, 10));
    const off = headsOff(app.asked);
    const read = { prompt, max_tokens: 0, echo: true, logprobs: ALTERNATIVES, tokens: true };
    try {
      const body = { model: fresh.model, ...read, ...(off.length ? { heads_off: off } : {}) };
      const { choices } = await ask("/v1/completions", body, this.latest.begin());
      this.draft = Draft.linked(on, choices[0].tokens, fresh);
      this.redraw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.replaceChildren(problem(error, () => this.arrive(on)));
      app.failed(error);
    }
  }

  /** Another draft, about which nothing is asked. */
  redraw() {
    this.draft.keep();
    this.draw();
    this.follow();
    this.app.changed();
  }

  anew() {
    this.app.set({ seed: newSeed() });
    this.generate();
  }

  goOn() {
    const draft = this.current.with({});
    this.run(draft, draft.ids);
  }

  undo() {
    this.draft = this.draft.before;
    this.app.set({ prompt: this.draft.prompt });
    this.redraw();
    this.app.announce("Back to the text before.");
    (this.back.hidden ? this.prompt : this.back).focus();
  }

  /** Lets the model write on after `prompt`, a text or the ids of all that stands in the draft. */
  async run(draft, prompt) {
    const { app } = this;
    const focused = document.activeElement === this.start;
    Object.assign(this, { draft, running: true });
    Object.assign(draft, { reason: null, off: app.asked.off });
    this.draw();
    if (focused) this.halt.focus();
    app.announce("Writing …");
    const body = { model: draft.model, prompt, ...generation(app.asked), logprobs: ALTERNATIVES, tokens: true };
    try {
      for await (const event of stream("/v1/completions", body, this.latest.begin())) this.hear(draft, event);
      draft.reason ??= "end";
    } catch (error) {
      draft.reason = error.name === "AbortError" ? "stopped" : "failed";
      if (draft.reason === "failed") {
        this.message.replaceChildren(problem(error, () => this.run(draft, draft.ids.length ? draft.ids : prompt)));
        app.failed(error);
      }
    }
    if (draft.reason !== "failed") this.message.replaceChildren();
    if (!WHOLE.includes(draft.reason)) draft.made = null;
    const halted = document.activeElement === this.halt;
    this.running = false;
    draft.keep();
    this.settle();
    if (halted) this.start.focus();
    app.announce(`${this.state.textContent} ${draft.reason === "failed" ? "" : draft.saidText}`);
    app.changed();
    this.follow();
  }

  hear(draft, event) {
    const [choice] = event.choices ?? [];
    const first = draft.hear(event.prompt_tokens, choice);
    if (this.draft !== draft) return;
    if (draft.reason === "stop") this.tokens.show(draft.all);
    else this.tokens.add(draft.all.slice(first));
    if (draft.said.length) this.message.replaceChildren();
    this.app.changed();
  }

  /** All of the draft anew. */
  draw() {
    const { draft } = this;
    this.tokens.element.hidden = !draft;
    this.tokens.show(draft ? draft.all : []);
    const waiting = this.running && !draft.said.length ? notice("waiting", "The model reads …") : null;
    this.message.replaceChildren(...(draft ? [] : [nothing()]), ...(waiting ? [waiting] : []));
    this.settle();
  }

  settle() {
    const { draft, running } = this;
    this.tokens.element.classList.toggle("writing", running);
    this.tokens.element.setAttribute("aria-busy", String(running));
    this.plain.textContent = running || !draft ? "" : `As plain text: ${draft.text}`;
    this.legend.hidden = !draft?.said.length && !running;
    this.state.textContent = running ? "Writing …" : (draft?.sentence ?? "");
    this.age();
    this.buttons();
  }

  /** Another token at this place: what stood before it stays, and the model goes on from the chosen one. */
  pick(place, made) {
    if (this.running) return;
    const { draft } = this;
    const token = draft.all[place];
    const known = token.alternatives?.length ? Promise.resolve(token.alternatives) : this.asked(place);
    this.alternatives.open(made, token, known, ({ id, text, token: name, logprob }) => {
      const chosen = { id, text, token: name, logprob, chosen: true, alternatives: token.alternatives ?? [] };
      const next = draft.upTo(place, chosen);
      this.app.set({ prompt: next.prompt }); // another, where a token of the prompt is another
      if (!next.full) this.run(next, next.ids);
      else {
        this.draft = Object.assign(next, { reason: "context" });
        this.redraw();
      }
    });
  }

  /** Of a token of the prompt nothing is known yet. */
  async asked(place) {
    if (place === 0) throw new Error("Nothing stands before the first token, so nothing says what it could be.");
    const body = { model: this.draft.model, prompt: this.draft.ids.slice(0, place), top: ALTERNATIVES };
    const off = headsOff(this.app.asked);
    return (await ask("/v1/next", off.length ? { ...body, heads_off: off } : body)).tokens;
  }
}
