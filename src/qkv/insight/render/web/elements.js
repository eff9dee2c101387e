// @ts-check
// Creating elements. Texts become text nodes, so that no text of a user or a model is ever markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/**
 * element("button", {class: "key", onclick: open}, "Open")
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} attributes
 * @param {...any} children texts and nodes
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/**
 * The same for SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} attributes
 * @param {...any} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** A group of buttons of which one is pressed. `choices` are pairs of a value and its name. */
export function choice(label, choices, onpick) {
  const buttons = choices.map(([value, name]) =>
    element("button", { type: "button", onclick: () => onpick(value) }, name),
  );
  const group = element("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
  const show = (chosen) =>
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(choices[index][0] === chosen)));
  return { element: group, show };
}

/** Lets the browser draw and handle events before the next piece of work. */
export function pause() {
  return new Promise((resume) => setTimeout(resume));
}

/** Calls `draw` at most once per frame. */
export function oncePerFrame(draw) {
  let requested = 0;
  return () => {
    if (!requested) {
      requested = requestAnimationFrame(() => {
        requested = 0;
        draw();
      });
    }
  };
}

/** How high a drawing may be: to the bottom of the window, or most of a window if it is further down the page. */
export function roomBelow(node, margin) {
  const top = node.getBoundingClientRect().top + window.scrollY;
  const room = window.innerHeight - top - margin;
  return Math.max(260, top > window.innerHeight ? 0.75 * window.innerHeight : room);
}

export function percent(weight) {
  if (weight === 0) return "0%";
  if (weight < 0.00005) return "<0.01%";
  return `${(100 * weight).toFixed(weight < 0.001 ? 2 : 1)}%`;
}
