// What the pictures of the Learn pages are made of: controls, heat maps, bars and lines as SVG.
"use strict";

const drawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function add(parent, tag, attributes = {}, text = null) {
    const svg = tag === "svg" || parent instanceof SVGElement;
    const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    parent.append(element);
    return element;
  }

  // A canvas in the units of its viewBox; the width of the page scales it.
  function canvas(box, width, height, label) {
    return add(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  }

  function slider(box, label, [least, most, step, value], changed) {
    const line = add(box, "label", {}, label);
    const input = add(line, "input", { type: "range", min: least, max: most, step, value });
    const shown = add(line, "output", {}, value);
    input.addEventListener("input", () => {
      shown.textContent = input.value;
      changed();
    });
    return { get value() { return Number(input.value); }, input, shown };
  }

  function choice(box, label, options, changed) {
    const line = add(box, "label", {}, label);
    const input = add(line, "select");
    for (const option of options) add(input, "option", { value: option }, option);
    input.addEventListener("change", changed);
    return { get value() { return input.value; } };
  }

  function button(box, label, pressed) {
    add(box, "button", { type: "button" }, label).addEventListener("click", pressed);
  }

  function field(box, label, value, changed) {
    const line = add(box, "label", {}, label);
    const input = add(line, "input", { type: "text", value, maxlength: 80 });
    input.addEventListener("input", changed);
    return input;
  }

  function says(box) {
    return add(box, "p", { class: "says", "aria-live": "polite" });
  }

  function label(svg, x, y, text, attributes = {}) {
    return add(svg, "text", { x, y, ...attributes }, text);
  }

  // Rows of numbers from 0 to 1 as shades; null is a cell that is not there.
  function heat(svg, rows, { x = 60, y = 24, cell = 26, across = [], down = [], sign = false } = {}) {
    rows.forEach((row, i) => {
      if (down[i] !== undefined) {
        label(svg, x - 6, y + i * cell + cell * 0.65, down[i], { "text-anchor": "end" });
      }
      row.forEach((value, j) => {
        const place = { x: x + j * cell, y: y + i * cell, width: cell - 1, height: cell - 1 };
        add(svg, "rect", { ...place, class: "frame" });
        if (value === null) return;
        const kind = sign && value < 0 ? "second" : "fill";
        const shade = add(svg, "rect", { ...place, class: kind, "fill-opacity": Math.abs(value) });
        add(shade, "title", {}, value.toFixed(3));
      });
    });
    across.forEach((text, j) => {
      label(svg, x + (j + 0.5) * cell, y - 6, text, { "text-anchor": "middle" });
    });
  }

  // Bars from 0 to 1, one below the other, with their names and numbers.
  function bars(svg, values, names, { x = 90, y = 6, width = 240, step = 22, kinds = [] } = {}) {
    values.forEach((value, i) => {
      const top = y + i * step;
      label(svg, x - 6, top + step * 0.65, names[i], { "text-anchor": "end" });
      add(svg, "rect", { x, y: top, width, height: step - 6, class: "frame" });
      const size = Math.max(0, Math.min(1, value)) * width;
      add(svg, "rect", { x, y: top, width: size, height: step - 6, class: kinds[i] || "fill" });
      label(svg, x + width + 6, top + step * 0.65, value.toFixed(3));
    });
  }

  function curve(svg, points, kind = "strong") {
    const path = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`);
    add(svg, "path", { d: path.join(" "), class: kind });
  }

  function softmax(scores) {
    const most = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - most));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => power / sum);
  }

  // Numbers that are the same at every visit: a small linear congruential generator.
  function random(seed) {
    let state = seed >>> 0;
    return () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return (state + 0.5) / 4294967296;
    };
  }

  function normal(uniform) {
    return Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

  return {
    add, canvas, slider, choice, button, field, says, label, heat, bars, curve, softmax, random,
    normal, dot,
  };
})();
