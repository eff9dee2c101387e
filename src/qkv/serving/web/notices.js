// @ts-check
// Notices in place of a result: waiting, empty, error, or not available.

import { element } from "qkv/elements.js";

/** A box: `kind` is empty, waiting, error or lacking. Texts after the title are notes. */
export function notice(kind, title, ...more) {
  const role = kind === "error" ? { role: "alert" } : {};
  const notes = more.map((part) => (typeof part === "string" ? note(part) : part));
  return element(
    "div",
    { class: `notice ${kind}`, ...role },
    ...(kind === "waiting" ? [element("span", { class: "spinner", "aria-hidden": "true" })] : []),
    element("div", {}, element("p", { class: "notice-title" }, title), ...notes),
  );
}

export function note(...parts) {
  return element("p", { class: "note" }, ...parts);
}

export function code(text) {
  return element("code", {}, text);
}

const ADVICE = {
  0: "Is it still running? Your text is not lost.",
  408: "The request timed out. Reduce the number of tokens, or try again.",
  413: "Shorten the text.",
  429: "Too many requests at once.",
  503: "The model may still be loading.",
};

/** An error with the server's message, advice, and a button to try again unless the request itself is invalid. */
export function problem(error, again) {
  const box = notice("error", error.message);
  if (error.status === 0) box.classList.add("lost"); // until the server is back
  const body = box.lastChild;
  const advice = ADVICE[error.status];
  if (advice) body.append(note(advice));
  if (error.status === 401) body.append(element("p", {}, element("a", { class: "button", href: "/" }, "Sign in")));
  else if (again && ![400, 413].includes(error.status)) body.append(retry(error, again));
  return box;
}

/** A button that counts down the server's Retry-After, and then tries again by itself. */
function retry(error, again) {
  const button = element("button", { type: "button", onclick: () => done() }, "Try again");
  let left = error.after === null ? 0 : Math.ceil(error.after);
  let timer = null;
  const done = () => {
    clearTimeout(timer);
    again();
  };
  const tick = () => {
    if (timer !== null && !button.isConnected) return; // another notice has replaced it
    if (left === 0) {
      done();
      return;
    }
    button.textContent = `Try again (automatically in ${left} s)`;
    left -= 1;
    timer = setTimeout(tick, 1000);
  };
  if (left) tick();
  return element("p", {}, button);
}

/** What a tab does, and the commands that serve and train a model for it. */
const COMMANDS = {
  look: ["has attention", "qkv serve smollm2", "qkv train gpt --data my.txt --out runs/mine"],
  write: ["generates text", "qkv serve smollm2", "qkv train gpt --data my.txt --out runs/mine"],
  chat: ["chats", "qkv serve smollm2", "qkv finetune smollm2 --task chat --data chats.jsonl --out runs/assistant"],
  translate: [
    "translates",
    "qkv serve runs/translator",
    "qkv train transformer --data turkish --tokenizer words --out runs/translator",
  ],
  fill: [
    "fills masks",
    "qkv serve runs/encoder",
    "qkv train bert --data books/ --tokenizer word-piece --out runs/encoder",
  ],
  classify: [
    "classifies",
    "qkv serve runs/sst-2",
    "qkv finetune minilm --task classify --data train.tsv --out runs/sst-2",
  ],
};

/** A model that failed to load; it is not offered. */
export function failed({ id, qkv: { error } }) {
  return notice("error", `${id} could not be loaded.`, element("p", {}, error ?? ""));
}

/** Models that no tab can use, and what they can do instead. */
export function unused(models, tab) {
  return models.map(({ id, qkv: { can } }) => {
    const does = can.includes("embed") ? "only embeds texts." : "fits none of these tabs.";
    const why = tab === "fill" ? `${id} cannot fill masks: it ${does}` : `${id} ${does}`;
    return note(why, can.includes("attention") ? " See its attention in the Look tab." : "");
  });
}

export function noModel(tab) {
  const [does, serve, make] = COMMANDS[tab];
  return notice(
    "lacking",
    `No model of this server ${does}.`,
    element(
      "dl",
      { class: "commands" },
      element("dt", {}, "Serve one"),
      element("dd", {}, code(serve)),
      element("dt", {}, "Train one"),
      element("dd", {}, code(make)),
    ),
    note("A server can have several models: name them all in one command."),
  );
}
