"""The book of the lab: an index of all experiments that were run in a folder."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from qkv import storage
from qkv.lab.experiments import modules
from qkv.lab.paired_intervals import Interval, range_text
from qkv.lab.report.lab_page import PAGE, THUMBNAIL, document, verdict_word
from qkv.lab.report.result_files import read_result

HEADS = ("experiment", "claim", "verdict", "effects with 95% intervals", "minutes", "figure")


def write_book(book: Path) -> Path:
    """Write index.html from the results in the folders of `book`; return its path."""
    results = read_book(book)
    rows = [row_html(folder, result) for folder, result in results.items()]
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    content = (
        f"<header><h1>Claims of the lectures, measured</h1>{counts_html(results)}</header>"
        f'<section id="table" class="book"><h2>Experiments</h2>'
        f'<div class="scroller">{table}</div></section>'
        '<p id="status" hidden></p>'
    )
    noun = "experiment" if len(results) == 1 else "experiments"
    place = f"The lab · {len(results)} {noun}"
    storage.write_text(book / PAGE, document("The lab", place, content, {"marks": []}))
    return book / PAGE


def read_book(book: Path) -> dict[Path, dict[str, Any]]:
    """The results by folder, in the order of the experiments; those of one's own come last."""
    found: dict[Path, dict[str, Any]] = {}
    for folder in sorted(book.iterdir()):
        result = read_result(folder)
        if result is not None:
            found[folder] = result

    order = {name: number for number, name in enumerate(modules())}
    folders = sorted(found, key=lambda folder: order.get(found[folder]["name"], len(order)))
    return {folder: found[folder] for folder in folders}


def counts_html(results: dict[Path, dict[str, Any]]) -> str:
    """How many claims hold, do not hold and cannot be told, and the time."""
    parts = []
    for verdict in ("holds", "does not hold", "cannot be told"):
        count = sum(result["verdict"] == verdict for result in results.values())
        parts.append(f"<span>{count} {verdict_word(verdict)}</span>")

    minutes = sum(float(result.get("minutes", 0)) for result in results.values())
    parts.append(f'<span class="note">{minutes:.0f} minutes in all</span>')
    return f'<p class="counts">{"".join(parts)}</p>'


def row_html(folder: Path, result: dict[str, Any]) -> str:
    """One experiment."""
    link = f"{html.escape(folder.name)}/{PAGE}"
    slides = html.escape(", ".join(result.get("slides", ())))
    effects = []
    for finding in result["findings"]:
        effects.append(f"<p>{html.escape(finding['says'])}: {effect_text(finding['effect'])}</p>")

    claim = f'{html.escape(result["claim"])}<br><span class="note">{slides}</span>'
    cells = (
        f'<td><a href="{link}">{html.escape(folder.name)}</a></td>',
        f'<td class="claim">{claim}</td>',
        f"<td>{verdict_word(result['verdict'])}</td>",
        f'<td class="effects">{"".join(effects)}</td>',
        f'<td class="number">{float(result.get("minutes", 0)):.1f}</td>',
        f'<td><a href="{link}">{thumbnail(folder)}</a></td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def effect_text(effect: dict[str, Any]) -> str:
    """The effect with the ends of its interval, if it has one."""
    infinite = float("inf")
    low, high = effect["low"], effect["high"]
    interval = Interval(
        effect["mean"],
        -infinite if low is None else low,
        infinite if high is None else high,
        effect["units"],
    )
    return html.escape(range_text(interval))


def thumbnail(folder: Path) -> str:
    """The small picture, as a part of the page."""
    try:
        content = base64.b64encode((folder / THUMBNAIL).read_bytes()).decode()
    except OSError:
        return ""

    return f'<img alt="Figure of {html.escape(folder.name)}" src="data:image/png;base64,{content}">'
