// @ts-check
// The turns of a conversation: text or tokens, Edit for a message, and ‹ 1/2 › between branches.

import { element } from "qkv/elements.js";
import { Tokens, tokenLegend } from "./tokens.js";

export class TalkView {
  /** `known(index)`: whether the tokens of an answer can be opened. */
  constructor(handlers) {
    this.handlers = handlers;
    this.legend = tokenLegend();
    this.element = element("ol", { class: "talk", "aria-label": "Conversation" });
  }

  /** `editing` is the node that is edited, or null: it and the turns after it are pale. */
  show(conversation, editing, running) {
    const { path, nodes } = conversation;
    const from = editing === null ? path.length : path.indexOf(editing);
    this.element.replaceChildren(...path.map((index, place) => this.turn(conversation, index, place >= from)));
    this.element.hidden = path.length === 0;
    this.legend.hidden = !running && !path.some((index) => nodes[index].tokens);
  }

  turn(conversation, index, later) {
    const { known, onswitch, onedit, onpick } = this.handlers;
    const branches = conversation.branches(index);
    const place = branches.indexOf(index);
    return turnNode(conversation.nodes[index], {
      later,
      branch: [place, branches.length],
      onswitch: (step) => onswitch(index, branches[place + step], step),
      onedit: () => onedit(index),
      onpick: known(index) ? (position, node) => onpick(index, position, node) : null,
    });
  }

  append(turn) {
    this.element.hidden = false;
    this.element.append(turn);
  }

  /** Focuses the button that switched a branch, or the other one at the end. */
  focusBranch(place, step) {
    const buttons = [...this.element.children[place].querySelectorAll(".branch button")];
    const [first, second] = step < 0 ? buttons : buttons.reverse();
    (first.disabled ? second : first).focus();
  }
}

/** `branch` is [place, count]; `later` marks the turns that an edit leaves behind; `onpick` opens a token. */
function turnNode({ role, content, tokens }, { later, branch, onswitch, onedit, onpick }) {
  const isUser = role === "user";
  const name = isUser ? "You" : "Assistant";
  const body = new Tokens(name, onpick);
  body.show(tokens ?? [{ text: content }]);
  const edit = element("button", { type: "button", class: "plain", onclick: onedit }, "Edit");
  const tools = [...(branch[1] > 1 ? [branchSwitch(branch, onswitch)] : []), ...(isUser ? [edit] : [])];
  return element(
    "li",
    { class: ["turn", isUser ? "own" : "", later ? "later" : ""].filter(Boolean).join(" ") },
    element("div", { class: "who" }, element("span", {}, name), element("span", { class: "turn-tools" }, ...tools)),
    body.element,
  );
}

function branchSwitch([place, count], onswitch) {
  const step = (by, sign, name) =>
    element(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": name,
        title: name,
        disabled: place + by < 0 || place + by >= count,
        onclick: () => onswitch(by),
      },
      sign,
    );
  return element(
    "span",
    { class: "branch", role: "group", "aria-label": "Branches" },
    step(-1, "‹", "Previous branch"),
    element("span", { class: "branch-place" }, `${place + 1}/${count}`),
    step(1, "›", "Next branch"),
  );
}
