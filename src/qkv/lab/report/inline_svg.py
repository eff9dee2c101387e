"""An SVG of matplotlib as a part of a page.

A strict content security policy refuses `style` attributes and style sheets without a hash, so
styles become attributes. Colours are kept: the page's style sheet selects elements by them and
replaces them by those of its theme.
"""

from __future__ import annotations

import html
import re

STYLE = re.compile(r' style="([^"]*)"')
ID = re.compile(r' id="([^"]*)"')
REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
FONT = re.compile(r"(?:(?P<style>italic|oblique) )?(?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px")
KEPT = "mark-"
"""The prefix of the ids that the page's script looks for."""


def inline_svg(svg: str, label: str) -> str:
    """The element <svg> without styles, metadata and ids that nothing refers to.

    Args:
        svg: The content of the file.
        label: What the picture shows, for those who cannot see it.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = STYLE.sub(lambda match: attributes(html.unescape(match[1])), svg)

    referred = set(REFERENCE.findall(svg))
    svg = ID.sub(lambda match: keep_id(match, referred), svg)

    opening, closing, rest = svg.partition(">")
    opening = re.sub(r' (?:width|height|version|xmlns(?::\w+)?)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{html.escape(label)}"{closing}{rest.strip()}'


def attributes(style: str) -> str:
    """The declarations of a style as attributes of SVG; a font becomes its size and weight."""
    words = []
    for declaration in style.split(";"):
        name, _, value = declaration.partition(":")
        name, value = name.strip(), value.strip()
        if name == "font":
            words += font_attributes(value)
        elif name and name != "font-family":
            words.append(f' {name}="{html.escape(value)}"')

    return "".join(words)


def font_attributes(font: str) -> list[str]:
    """The size, weight and style of the shorthand `bold 11px 'DejaVu Sans'`."""
    match = FONT.match(font)
    if match is None:
        return []

    words = [f' font-size="{match["size"]}"']
    if match["weight"]:
        words.append(f' font-weight="{match["weight"]}"')
    if match["style"]:
        words.append(f' font-style="{match["style"]}"')

    return words


def keep_id(match: re.Match[str], referred: set[str]) -> str:
    """An id that is needed, or nothing."""
    if match[1] in referred or match[1].startswith(KEPT):
        return match[0]

    return ""
