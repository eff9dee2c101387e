"""A page of 4,096 tokens with the weights of one layer is never blank."""

from __future__ import annotations

from torch import full

from qkv.insight.look import Look
from support.browser_fixtures import Open
from support.look_page import cell_size, near, pixel, ramp, settled, status
from support.made_looks import attention, made_look, side

T = 4096
BLANK = """() => {
  const canvas = document.querySelector("canvas.cells");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.every(value => value === 0);
}"""


def long_look() -> Look:
    """Two layers of one head that attends to the first token; in the second, the last token attends
    to token 2,000.
    """
    layers = []
    for layer in range(2):
        weights = full((1, T, T), 0.2 / (T - 1))
        weights[0, :, 0] = 0.8
        if layer:
            weights[0, -1, 2000] = 0.7
        layers.append(weights)
    words = side([f"word{position}" for position in range(T)], inside=range(1, T, 4))
    small = made_look(["a"])
    reading = small.reading._replace(text=words)
    kinds = [attention("self", words, words, layers, False, [0])]
    return Look("a model", reading, kinds, None, None, None)


def test_4096_tokens_are_never_a_blank_page(open_page: Open) -> None:
    page = open_page(long_look(), "#view=head&layer=0&head=0&scale=root")
    assert not page.evaluate(BLANK)  # as soon as anything is shown, with or without all weights
    page.wait_for_selector(".busy", state="hidden")
    settled(page, layer=0)
    cell = cell_size(page, T)
    assert near(pixel(page, "canvas.cells", 0, 2000 * cell)[:3], ramp(0.8))
    assert near(pixel(page, "canvas.cells", 2000 * cell, 2000 * cell)[:3], ramp(0.2 / (T - 1)))
    page.mouse.move(
        page.locator("canvas.cells").bounding_box()["x"], 500
    )  # the highest weight under the pixel
    assert status(page).endswith("→ “word0”: 79.9%")  # 8 bits
    page.keyboard.press("w")
    settled(page, words=1)
    page.wait_for_selector(".busy", state="hidden")
    assert not page.evaluate(BLANK)
    page.keyboard.press("w")

    page.keyboard.press("ArrowDown")
    settled(page, layer=1)
    assert not page.evaluate(BLANK)
    assert "qkv look … --layer 1" in page.inner_text("#view")
    cell = cell_size(page, T)
    assert near(
        pixel(page, "canvas.cells", 2000 * cell, (T - 1) * cell - 1)[:3], ramp(0.7), 10
    )  # from the overview
    box = page.locator("canvas.cells").bounding_box()
    page.mouse.move(box["x"] + 2000 * cell, box["y"] + box["height"] - 3)
    assert "up to 69.8%" in status(page)  # 8 bits
    page.keyboard.press("5")
    settled(page, view="lines")
    assert page.locator(".words.left .row").count() < 60  # only visible rows
    page.keyboard.press("ArrowUp")
    settled(page, layer=0)
    page.eval_on_selector(".lines", "box => box.scrollTop = box.scrollHeight")
    page.wait_for_function(
        "() => document.querySelector('.words.left').innerText.includes('word4095')"
    )
