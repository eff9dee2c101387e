"""What a page shows, as numbers and text that a test can compare."""

from __future__ import annotations

import math
import re
from typing import Any

from qkv.insight.render.script_bundle import module
from support.playground_page import painted

PIXEL = """([selector, x, y]) => {
  const canvas = document.querySelector(selector);
  const ratio = canvas.width / canvas.getBoundingClientRect().width;
  const pixels = canvas.getContext("2d");
  return [...pixels.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data];
}"""


def views() -> list[str]:
    """The views of the page in the order of their keys, 1 the first."""
    listed = re.search(r"VIEWS = \[([^\]]+)\]", module("state.js"))
    assert listed is not None

    return re.findall(r'"(\w+)"', listed[1])


def pixel(page: Any, selector: str, x: float, y: float) -> tuple[int, ...]:
    """Red, green, blue and alpha at a point of a canvas."""
    return tuple(page.evaluate(PIXEL, [selector, x, y]))


def ramp(weight: float, *, dark: bool = False, scale: str = "root") -> tuple[int, ...]:
    """The colour that a weight should have, from the definition of OKLCH."""
    logarithm = max(0.0, 1 + math.log10(max(weight, 1e-9)) / 4)
    t = round({"linear": weight, "root": math.sqrt(weight), "log": logarithm}[scale] * 255) / 255
    chroma = 0.006 + 0.105 * math.sin(math.pi * 0.84 * t)
    lightness = 0.985 - 0.725 * t
    hue = 215 + 58 * t
    if dark:
        lightness = 0.235 + 0.715 * t
        hue = 275 - 85 * t

    a = chroma * math.cos(math.radians(hue))
    b = chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    light = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return tuple(round(255 * gamma(min(1.0, max(0.0, value)))) for value in light)


def gamma(light: float) -> float:
    if light <= 0.0031308:
        return 12.92 * light

    return 1.055 * light ** (1 / 2.4) - 0.055


def near(colour: tuple[int, ...], expected: tuple[int, ...], by: int = 6) -> bool:
    return all(abs(one - other) <= by for one, other in zip(colour, expected, strict=True))


def state(page: Any) -> dict[str, str]:
    """The state of the address."""
    return dict(
        part.split("=") for part in page.evaluate("location.hash").removeprefix("#").split("&")
    )


def status(page: Any) -> str:
    return str(page.inner_text(".status"))


def settled(page: Any, **expected: Any) -> None:
    """Wait until a state with these values is drawn."""
    parts = [f"{name}={value}" for name, value in expected.items()]
    page.wait_for_function(
        "parts => parts.every(part => "
        "document.querySelector('#qkv')?.dataset.shown?.split(/[#&]/).includes(part))",
        arg=parts,
    )
    painted(page)


def cell_size(page: Any, rows: int) -> float:
    """The size of a cell of a heat map that is wholly visible."""
    return (
        float(
            page.evaluate("document.querySelector('canvas.cells').getBoundingClientRect().height")
        )
        / rows
    )


def shades(page: Any, selector: str) -> list[str]:
    return list(
        page.eval_on_selector_all(
            selector, "nodes => nodes.map(node => node.style.backgroundColor)"
        )
    )


def percents(text: str) -> list[float]:
    return [float(number) / 100 for number in re.findall(r"([\d.]+)%", text)]
