// @ts-check
// The buttons of a chat, and when each of them can be used.

import { element } from "qkv/elements.js";

export class ChatControls {
  constructor({ send, stop, cancel, regenerate, onward, undo, begin }) {
    const button = (name, act, kind = "") => element("button", { type: "button", class: kind, onclick: act }, name);
    this.start = button("Send", send, "primary");
    this.halt = button("Stop", stop, "primary");
    this.cancel = button("Cancel the edit", cancel);
    this.again = button("Regenerate", regenerate);
    this.onward = button("Continue", onward);
    this.back = button("Undo", undo);
    this.clear = button("New conversation", begin);
    this.element = element(
      "div",
      { class: "actions" },
      ...[this.start, this.halt, this.cancel, this.again, this.onward, this.back, this.clear],
      element("span", { class: "note" }, "Enter sends, Shift+Enter starts a new line."),
    );
  }

  /** `written`: there is a message to send; `known`: the tokens of the last answer are; `past`: there is an undo. */
  show({ running, ready, written, empty, editing, known, past }) {
    this.start.hidden = running;
    this.halt.hidden = !running;
    this.start.disabled = !ready || !written;
    this.cancel.hidden = !editing || running;
    this.again.hidden = this.clear.hidden = empty;
    this.onward.hidden = empty || !known;
    this.again.disabled = this.onward.disabled = !ready || running || editing;
    this.back.hidden = !past;
    this.back.disabled = this.clear.disabled = running;
  }
}
