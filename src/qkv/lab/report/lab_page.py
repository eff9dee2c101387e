"""The page of an experiment: one HTML file with claim, set-up, figure, table and verdict.

It needs no network, and its content security policy allows its own script and style alone. The
figures are drawn by matplotlib, as those of the PNG and SVG files beside it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from qkv import storage
from qkv.insight.render.figures.figure_style import render, save
from qkv.insight.render.page import content_policy
from qkv.lab.lab_results import Results, x_text
from qkv.lab.paired_intervals import VerdictWord, interval_text, number_text, range_text
from qkv.lab.report.forest_plot import draw_effect
from qkv.lab.report.inline_svg import inline_svg
from qkv.lab.report.lab_figure import (
    Mark,
    colour_of,
    draw_one,
    draw_results,
    legend_arms,
    line_of,
    marks,
)

PAGE = "index.html"
THUMBNAIL = "thumbnail.png"
CLASSES: dict[VerdictWord, str] = {
    "holds": "holds",
    "does not hold": "not",
    "cannot be told": "open",
}
LONG = 14
"""Rows of a table above which it scrolls."""
FEW = 12
"""Numbers of single units that are listed beside a mean."""


def write_page(results: Results, folder: Path) -> Path:
    """Write the figure as PNG and SVG, a thumbnail, and the page; return the page's path."""
    name = results.experiment.name
    for ending in ("png", "svg"):
        save(partial(draw_results, results), folder / f"{name}.{ending}")

    thumbnail = render(partial(draw_one, results, 0), "png", dpi=40)
    with storage.replacing(folder / THUMBNAIL, len(thumbnail)) as staged:
        staged.write_bytes(thumbnail)

    storage.write_text(folder / PAGE, page(results))
    return folder / PAGE


def page(results: Results) -> str:
    """The page as text."""
    experiment = results.experiment
    sections = [
        claim_section(results),
        section("Set-up", items(experiment.setup)),
        figure_section(results),
        table_section(results),
        verdict_section(results),
    ]
    if experiment.remark and not results.changed:
        sections.append(section("Remark", f"<p>{code_text(experiment.remark)}</p>"))
    if experiment.next_steps:
        sections.append(section("What to try next", items(experiment.next_steps)))

    sections.append(section("How it was measured", facts_list(results)))
    slides = ", ".join(experiment.slides)
    place = f"Experiment {experiment.name} · lectures: {slides}"
    if results.changed:
        texts = [f"{key} = {value}" for key, value in results.changed.items()]
        place += f" · changed settings: {', '.join(texts)}"

    return document(f"{experiment.name}: lab", place, "\n".join(sections), page_data(results))


def document(title: str, place: str, content: str, data: Any) -> str:
    """A whole page, with a policy that allows this script and this style alone."""
    script = asset("lab_page.js")
    style = asset("lab_page.css")
    return Template(asset("lab_page.html")).substitute(
        policy=content_policy(script, style),
        title=html.escape(title),
        style=style,
        place=html.escape(place),
        content=content,
        data=json.dumps(data).replace("<", "\\u003c"),
        script=script,
    )


def asset(name: str) -> str:
    """The text of a file in the folder web."""
    return files("qkv.lab.report").joinpath("web", name).read_text(encoding="utf-8")


# Sections


def section(title: str, content: str, name: str = "") -> str:
    """A section with a heading."""
    attribute = f' id="{name}"' if name else ""
    return f"<section{attribute}><h2>{html.escape(title)}</h2>\n{content}</section>"


def items(texts: Iterable[str]) -> str:
    """A list; what begins with qkv is a command."""
    lines = []
    for text in texts:
        command, colon, rest = text.partition(": ")
        if text.startswith("qkv ") and "`" not in command:
            content = f"<code>{html.escape(command)}</code>{colon}{code_text(rest)}"
        else:
            content = code_text(text)

        lines.append(f"<li>{content}</li>")

    return f"<ul>{''.join(lines)}</ul>"


def code_text(text: str) -> str:
    """Escaped text, in which `this` becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def verdict_word(verdict: VerdictWord) -> str:
    """The verdict in its colour."""
    return f'<span class="word {CLASSES[verdict]}">{verdict}</span>'


def claim_section(results: Results) -> str:
    """The claim as the title of the page, and the verdict below it."""
    facts = results.facts
    size = f"{facts.get('size', '')} size, {results.caption.lower()}".strip(" ,")
    if results.verdict == "cannot be told":
        size += " More of them, or a larger size, may tell."

    return (
        f"<header><h1>{html.escape(results.experiment.claim)}</h1>"
        f'<p class="verdict">{verdict_word(results.verdict)}'
        f'<span class="note">{html.escape(size)}</span></p></header>'
    )


def figure_section(results: Results) -> str:
    """The legend and the panels."""
    buttons = []
    for arm in legend_arms(results):
        colour = colour_of(results, arm).lower()
        path = "M0 6h18" if line_of(results, arm) == "-" else "M0 6h7m4 0h7"
        swatch = (
            f'<svg class="swatch" viewBox="0 0 18 12" aria-hidden="true">'
            f'<path d="{path}" stroke="{colour}" stroke-width="3"/></svg>'
        )
        name = html.escape(arm)
        buttons.append(
            f'<button type="button" aria-pressed="false" data-arm="{name}">{swatch}{name}</button>'
        )

    pictures = []
    for number, panel in enumerate(results.experiment.panels):
        label = f"{panel.title or panel.measure}: {panel.y}"
        if panel.x:
            label += f" over {panel.x}"

        svg = render(partial(draw_one, results, number), "svg").decode()
        pictures.append(f"<figure>{inline_svg(svg, label)}</figure>")

    single = " single" if len(pictures) == 1 else ""
    content = (
        f'<div class="legend" role="group" aria-label="Legend">{"".join(buttons)}</div>'
        f'<div class="panels{single}">{"".join(pictures)}</div>'
        f'<p id="status" class="status note" role="status" aria-live="polite">'
        f"Point at a mean, or press an arrow key, for its numbers.</p>"
    )
    return section("Figure", content)


def table_section(results: Results) -> str:
    """All means with their intervals."""
    rows = list(results.lines())
    long = " long" if len(rows) > LONG else ""
    content = (
        f'<div class="scroller{long}" tabindex="0" role="region" aria-label="Table">'
        f"{html_table(results.heads(), rows)}</div>"
        f'<p class="note">{html.escape(results.caption)}</p>'
    )
    return section("Table", content, "table")


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = []
    for row in rows:
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in row)
        body.append(f"<tr>{cells}</tr>")

    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def verdict_section(results: Results) -> str:
    """Each part of the claim with its effect, its picture and the test."""
    parts = []
    for finding in results.findings:
        svg = render(partial(draw_effect, finding), "svg").decode()
        label = f"effect {range_text(finding.effect)}, relevant from {finding.relevant:g}"
        parts.append(
            f'<div class="finding"><div><h3>{verdict_word(finding.verdict)}: '
            f"{html.escape(finding.says)}</h3>"
            f'<p class="note">{html.escape(finding.test)}</p></div>'
            f"<div>{inline_svg(svg, label)}</div></div>"
        )

    meaning = (
        '<p class="note">Diamond: mean effect; bar: its 95% interval; solid line: no effect; '
        "dashed: the smallest effect that matters; green: where the claim puts the effect. The "
        "claim holds if all parts hold, and does not hold if one does not.</p>"
    )
    return section(f"Verdict: {results.verdict}", "".join(parts) + meaning, "verdict")


def facts_list(results: Results) -> str:
    """The command, the settings, the versions and the machine."""
    facts = dict(results.facts)
    settings = [f"{key} = {value}" for key, value in results.size.settings.items()]
    if settings:
        facts["settings"] = ", ".join(settings)

    lines = []
    for name, value in facts.items():
        text = html.escape(str(value))
        if name == "command":
            text = f"<code>{text}</code>"

        lines.append(f"<dt>{html.escape(name)}</dt><dd>{text}</dd>")

    return f'<dl class="facts">{"".join(lines)}</dl>'


# What the script reads


def page_data(results: Results) -> dict[str, Any]:
    """The numbers of each mark of the figure, as texts."""
    found = []
    for number, panel in enumerate(results.experiment.panels):
        for mark in marks(results, number):
            found.append(described(mark, number, panel.x, results.experiment.unit))

    colours = {arm: colour_of(results, arm).lower() for arm in results.experiment.arms}
    return {"marks": found, "colours": colours}


def described(mark: Mark, panel: int, x_label: str, unit: str) -> dict[str, Any]:
    """A mark as the script needs it."""
    title = mark.arm
    if mark.x is not None:
        title = f"{mark.arm}, {x_label or 'x'} {x_text(mark.x)}"

    units = ""
    if 1 < len(mark.values) <= FEW:
        units = f"{unit}s: " + ", ".join(number_text(value, 3) for value in mark.values)

    return {
        "id": mark.gid,
        "panel": panel,
        "arm": mark.arm,
        "x": mark.x,
        "title": title,
        "text": interval_text(mark.interval),
        "units": units,
    }
