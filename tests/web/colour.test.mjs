import assert from "node:assert/strict";
import { test } from "node:test";
import { Colours, contrast } from "qkv/colour.js";

const BYTES = { "#fff": [255, 255, 255], "#000": [0, 0, 0] };

test("contrast is that of WCAG", () => {
  assert.equal(contrast([0, 0, 0], [255, 255, 255]), 21);
  assert.equal(contrast([255, 255, 255], [255, 255, 255]), 1);
  assert.ok(Math.abs(contrast([118, 118, 118], [255, 255, 255]) - 4.54) < 0.01);
});

test("text on the shade of any weight has a contrast of 4.5 or more", () => {
  for (const theme of ["light", "dark"]) {
    for (const scale of ["linear", "root", "log"]) {
      const colours = new Colours(theme, scale);
      for (let step = 0; step <= 1000; step++) {
        const t = colours.rampPosition(step / 1000);
        assert.ok(contrast(colours.at(t), BYTES[colours.ink(t)]) >= 4.5, `${theme} ${scale} ${step}`);
      }
    }
  }
});

test("the ramp goes from the page to the ink", () => {
  for (const [theme, ink] of [["light", "#000"], ["dark", "#fff"]]) {
    const colours = new Colours(theme, "linear");
    assert.equal(colours.ink(0), ink);
    assert.ok(contrast(colours.at(0), colours.at(1)) > 10);
  }
});
