// @ts-check
// One listener for everything that is laid out anew when the window changes its size. What is no longer on the page is
// not called, and nothing keeps it alive.

const KEY = "resizes"; // data-resizes

export function onResize(node, arrange) {
  node.dataset[KEY] = "";
  node.arrange = arrange;
}

addEventListener("resize", () => {
  for (const node of document.querySelectorAll(`[data-${KEY}]`)) node.arrange?.();
});
