// @ts-check
// The colours of weights and of heads, in the light and in the dark theme.

const STEPS = 256;

/** Bytes of red, green and blue; in OKLCH equal steps of lightness look equal. */
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((channel) => {
    const light = Math.min(1, Math.max(0, channel));
    return Math.round(255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055));
  });
}

// Weight 0 has the colour of the background, weight 1 that of text, in the light and in the dark theme.
function ramp(dark) {
  return Array.from({ length: STEPS }, (_, step) => {
    const t = step / (STEPS - 1);
    const chroma = 0.006 + 0.105 * Math.sin(Math.PI * 0.84 * t);
    return dark ? oklch(0.235 + 0.715 * t, chroma, 275 - 85 * t) : oklch(0.985 - 0.725 * t, chroma, 215 + 58 * t);
  });
}

function stepOf(t) {
  return Math.round(Math.min(1, Math.max(0, t)) * (STEPS - 1));
}

const RAMPS = { light: ramp(false), dark: ramp(true) };

/** The relative luminance of bytes of red, green and blue, as WCAG defines it. */
function luminance(colour) {
  const [red, green, blue] = colour.map((byte) => {
    const part = byte / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The contrast of two colours, from 1 to 21; text is readable from 4.5 on. */
export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The colour of text on a colour: black or white, of which one always has a contrast of 4.58 or more. */
function inkOn(colour) {
  return contrast(colour, [255, 255, 255]) > contrast(colour, [0, 0, 0]) ? "#fff" : "#000";
}

const INKS = { light: RAMPS.light.map(inkOn), dark: RAMPS.dark.map(inkOn) };

// Okabe and Ito's palette, which colour-blind readers can tell apart.
const HEADS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"],
  dark: ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#FFFFFF"],
};

/** From a weight to a position on the ramp. A linear scale hides small weights, as those of a long text. */
const SCALES = {
  linear: { rampPosition: (weight) => weight, ticks: [0, 0.25, 0.5, 0.75, 1] },
  root: { rampPosition: Math.sqrt, ticks: [0, 0.01, 0.05, 0.2, 0.5, 1] },
  log: { rampPosition: (weight) => (weight > 1e-4 ? 1 + Math.log10(weight) / 4 : 0), ticks: [1e-4, 0.001, 0.01, 0.1, 1] },
};

export class Colours {
  constructor(theme, scale) {
    this.theme = theme;
    this.scale = scale;
    this.ramp = RAMPS[theme];
    this.heads = HEADS[theme];
    this.rampPosition = SCALES[scale].rampPosition;
    this.ticks = SCALES[scale].ticks; // weights with a number below the legend
    this.tables = new Map();
  }

  /** The colour of each number of a code as a pixel, for drawing many cells. */
  table(code, most) {
    const key = `${code.name} ${most}`;
    if (!this.tables.has(key)) {
      const pixels = new Uint32Array(code.steps + 1);
      for (let number = 0; number <= code.steps; number++) {
        const [red, green, blue] = this.at(this.rampPosition(Math.min(1, most * code.value(number))));
        pixels[number] = (255 << 24) | (blue << 16) | (green << 8) | red;
      }
      this.tables.set(key, pixels);
    }
    return this.tables.get(key);
  }

  at(t) {
    return this.ramp[stepOf(t)];
  }

  /** Sets the background of an element for a weight, and keeps its text readable. */
  shade(element, weight) {
    const t = weight === null ? 0 : this.rampPosition(Math.min(1, weight));
    element.style.backgroundColor = t < 0.004 ? "" : `rgb(${this.at(t)})`;
    element.style.color = t < 0.004 ? "" : this.ink(t);
  }

  /** The colour of text at a position on the ramp: white or black, whichever is easier to read. */
  ink(t) {
    return INKS[this.theme][stepOf(t)];
  }

  gradient() {
    const stops = Array.from({ length: 17 }, (_, stop) => `rgb(${this.at(stop / 16)})`);
    return `linear-gradient(to right, ${stops.join(", ")})`;
  }
}
