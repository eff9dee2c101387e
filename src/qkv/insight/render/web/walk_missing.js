// @ts-check
// What the walk shows for a head whose numbers a file does not have.

import { element } from "qkv/elements.js";

/** The command that writes a page with the head, and buttons for the heads that are there. */
export function missingHead(heads, layer, head, onpick) {
  const text = `This file has no numbers of layer ${layer}, head ${head}. To write a page with them: `;
  const command = element("code", {}, `qkv look … --layer ${layer} --head ${head} --view walk --out look.html`);
  const buttons = heads.map(([one, other]) =>
    element("button", { type: "button", onclick: () => onpick(one, other) }, `${one}.${other}`),
  );
  const list = element("p", { class: "there" }, "Heads that are here (layer.head): ", ...buttons);
  return [element("p", {}, text, command), ...(buttons.length ? [list] : [])];
}
