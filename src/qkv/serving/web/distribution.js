// What may come next: each token as the model says it against as it will be drawn, and the rest as one bar.

import { element, percent } from "qkv/elements.js";
import { quoted, word } from "qkv/words.js";
import { Latest, ask } from "./api.js";
import { note } from "./notices.js";
import { penalised, sampling } from "./settings.js";
import { named, probabilityOf, spaced } from "./tokens.js";

const SHOWN = 10;
const PAUSE = 180; // milliseconds without a change before the server is asked

const PENALTIES = "Penalties come on top of this, as the text grows.";
const NOTHING = "Write something, and the tokens that may follow it stand here.";

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
      element("span", { class: "said" }, "as the model says it"),
      element("span", { class: "drawn" }, "as it will be drawn"),
    );
    this.element = element(
      "section",
      { class: "distribution", "aria-labelledby": "next-title" },
      element("h2", { id: "next-title" }, "The next token"),
      this.after,
      this.legend,
      this.list,
      this.message,
    );
    this.say(NOTHING);
  }

  /** Of a text, or of ids; an empty one has nothing to follow. */
  show(prompt, ending) {
    const { model, asked: settings } = this.app;
    const body = { model: model?.id, prompt, top: SHOWN, ...sampling(settings) };
    this.penalised = penalised(settings);
    const key = JSON.stringify(body);
    if (this.key === key) return; // it is being asked
    this.key = key;
    clearTimeout(this.timer);
    this.element.setAttribute("aria-busy", "true");
    if (!model || prompt.length === 0) {
      this.latest.stop();
      this.say(NOTHING);
      return;
    }
    this.after.replaceChildren("After ", word(last(ending), { class: "word" }));
    if (this.list.hidden) this.message.replaceChildren(note("Asking the model …"));
    this.timer = setTimeout(() => this.ask(body), PAUSE);
  }

  /** Nothing comes next, for a reason. */
  none(reason) {
    clearTimeout(this.timer);
    this.latest.stop();
    this.key = null;
    this.say(reason);
  }

  async ask(body) {
    try {
      const answer = await ask("/v1/next", body, this.latest.begin());
      this.draw(answer.tokens);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.key = null;
      this.say(error.message);
    }
  }

  say(text) {
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
    const shown = tokens.slice(0, SHOWN).map((token) => [token, probabilityOf(token), token.probability]);
    const sum = (of) => shown.reduce((all, each) => all + each[of], 0);
    const rest = [null, Math.max(0, 1 - sum(1)), Math.max(0, 1 - sum(2))];
    this.list.replaceChildren(...[...shown, rest].map((each) => this.row(...each)));
  }

  row(token, said, drawn) {
    const bar = (kind, part) => {
      const made = element("span", { class: `bar ${kind}`, "aria-hidden": "true" });
      made.style.setProperty("--part", part);
      return made;
    };
    const out = drawn < 1e-12;
    const name = token === null ? "all others" : quoted(named(token));
    const drawnAs = out ? "left out" : percent(drawn);
    return element(
      "li",
      { class: out ? "out" : "", "aria-label": `${name}: the model says ${percent(said)}; drawn: ${drawnAs}` },
      token === null ? element("span", { class: "rest" }, "all others") : spaced(token),
      element("span", { class: "number" }, drawnAs),
      element("span", { class: "pairs" }, bar("said", said), bar("drawn", drawn)),
    );
  }
}
