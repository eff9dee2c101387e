// What a panel says when there is nothing to show: it waits, it is empty, it went wrong, it cannot be done here.

import { element } from "qkv/elements.js";

/** A calm box: `kind` is empty, waiting, error or lacking. Texts after the title are notes. */
export function notice(kind, title, ...more) {
  const role = kind === "error" ? { role: "alert" } : {};
  const notes = more.map((each) => (typeof each === "string" ? note(each) : each));
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
  0: "Is it still running? Nothing that you wrote is lost.",
  408: "It took too long. Ask for fewer tokens, or try again.",
  413: "Shorten the text.",
  429: "Too many are asking at once.",
  503: "The model may still be loading.",
};

/** A problem in the server's own sentence, what to do, and a way to do it: what was wrong would be wrong again. */
export function problem(error, again) {
  const made = notice("error", error.message);
  if (error.status === 0) made.classList.add("lost"); // until the server is back
  const body = made.lastChild;
  const advice = ADVICE[error.status];
  if (advice) body.append(note(advice));
  if (error.status === 401) body.append(element("p", {}, element("a", { class: "button", href: "/" }, "Sign in")));
  else if (again && ![400, 413].includes(error.status)) body.append(retry(error, again));
  return made;
}

/** A button that counts the seconds for which the server asked, and then does it itself. */
function retry(error, again) {
  const button = element("button", { type: "button", onclick: () => done() }, "Try again");
  let left = error.after === null ? 0 : Math.ceil(error.after);
  let timer = null;
  const done = () => {
    clearTimeout(timer);
    again();
  };
  const tick = () => {
    if (timer !== null && !button.isConnected) return; // something else is shown by now
    if (left === 0) {
      done();
      return;
    }
    button.textContent = `Try again (by itself in ${left} s)`;
    left -= 1;
    timer = setTimeout(tick, 1000);
  };
  if (left) tick();
  return element("p", {}, button);
}

/** What a tab does, what serves a model that can, and what makes one. */
const MADE_BY = {
  write: ["completes texts", "qkv serve smollm2", "qkv train gpt --data my.txt --out runs/mine"],
  chat: ["chats", "qkv serve smollm2", "qkv finetune smollm2 --task chat --data chats.jsonl --out runs/talker"],
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

/** A model that failed to load: it is offered nowhere. */
export function failed({ id, qkv: { error } }) {
  return notice("error", `${id} could not be loaded.`, element("p", {}, error ?? ""));
}

/** Models that no tab can use, and what they are there for; they are looked for where masks are filled. */
export function unused(models, tab) {
  return models.map(({ id, qkv: { can } }) => {
    const does = can.includes("embed") ? "only embeds texts." : "is for none of these tabs.";
    const why = tab === "fill" ? `${id} cannot fill masks: it ${does}` : `${id} ${does}`;
    const look = can.includes("attention") ? [" Look inside it with ", code(`qkv look ${id} "a text"`)] : [];
    return note(why, ...look);
  });
}

export function noModel(tab) {
  const [does, serve, make] = MADE_BY[tab];
  return notice(
    "lacking",
    `No model of this server ${does}.`,
    element(
      "dl",
      { class: "commands" },
      element("dt", {}, "Serve one"),
      element("dd", {}, code(serve)),
      element("dt", {}, "Make one"),
      element("dd", {}, code(make)),
    ),
    note("One server may have several models: name them all in one command."),
  );
}
