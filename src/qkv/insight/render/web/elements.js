// Elements of a page, made from code. Texts become text nodes: nothing that a person or a model wrote is ever markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** element("button", {class: "key", onclick: open}, "Open") */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for a part of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Some buttons of which one is pressed. `choices` are pairs of a value and its name. */
export function choice(label, choices, onpick) {
  const buttons = choices.map(([value, name]) =>
    element("button", { type: "button", onclick: () => onpick(value) }, name),
  );
  const whole = element("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
  const show = (chosen) =>
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(choices[place][0] === chosen)));
  return { element: whole, show };
}

/** Lets the browser draw and hear before the next piece of work. */
export function pause() {
  return new Promise((resume) => setTimeout(resume));
}

/** At most once a frame, however often it is asked for. */
export function oncePerFrame(draw) {
  let asked = 0;
  return () => {
    if (!asked) {
      asked = requestAnimationFrame(() => {
        asked = 0;
        draw();
      });
    }
  };
}

/** How high a drawing may be: down to the end of the window; in a page that goes on below it, most of a window. */
export function roomBelow(made, margin) {
  const top = made.getBoundingClientRect().top + window.scrollY;
  const room = window.innerHeight - top - margin;
  return Math.max(260, top > window.innerHeight ? 0.75 * window.innerHeight : room);
}

export function percent(weight) {
  if (weight === 0) return "0%";
  if (weight < 0.00005) return "under 0.01%";
  return `${(100 * weight).toFixed(weight < 0.001 ? 2 : 1)}%`;
}
