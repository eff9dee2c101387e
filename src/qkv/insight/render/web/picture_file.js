// @ts-check
// A picture of the view as a file: SVG, or PNG drawn from it. The name tells the model, the view, layer and head.

import { pictureOf } from "qkv/picture.js";

const WITH_HEADS = ["walk", "head", "lines"];
const SHARP = 2; // pixels of a PNG for each of the page
const LARGEST = 8192; // pixels of a side that every browser can draw

/** A text as part of a file name. */
export function fileName(text) {
  return text
    .normalize("NFKC")
    .replace(/[^\p{L}\p{N}.]+/gu, "-")
    .replace(/^[-.]+|[-.]+$/g, "")
    .slice(0, 60);
}

/** Such as smollm2-head-layer13-head8.svg */
export function pictureName(data, state, kind) {
  const parts = [data.model, state.view];
  if (WITH_HEADS.includes(state.view)) {
    if (data.attention.length > 1) parts.push(state.kind);
    const head = state.mean ? "mean" : `head${state.head}`;
    parts.push(...(state.mean === "all" ? [head] : [`layer${state.layer}`, head]));
  }
  if (state.view === "walk") parts.push(`step${state.step}`);
  return `${fileName(parts.join("-"))}.${kind}`;
}

/** Lets the browser save a file. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser may still be reading it
}

/** Saves what is seen of the view, and returns the file's name. */
export async function savePicture(page, kind) {
  const { data } = page.store;
  const name = pictureName(data, page.state, kind);
  const caption = page.story.told === null ? "" : page.story.steps[page.story.told].caption;
  const lines = [data.model, page.status.textContent, caption].filter(Boolean);
  const { text, width, height } = pictureOf(page.main, lines);
  const blob = kind === "svg" ? new Blob([text], { type: "image/svg+xml" }) : await asPng(text, width, height);
  save(blob, name);
  return name;
}

/** Draws an SVG; a data URL taints no canvas, because it has neither links nor foreign elements. */
async function asPng(text, width, height) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(SHARP, LARGEST / width, LARGEST / height);
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return /** @type {Promise<Blob>} */ (
    new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("it is too large")))))
  );
}
