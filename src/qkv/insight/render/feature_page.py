"""The features of a sparse autoencoder: a table for the terminal, and a page of its own."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

from qkv.insight.dictionary.dictionary_training import DictionaryMeasures
from qkv.insight.dictionary.feature_texts import Feature, FeatureText
from qkv.insight.render.head_tables import head_table, numbers
from qkv.insight.render.page import hashed
from qkv.tables import Table
from qkv.text.printable import printable

TokenName = Callable[[int], str]
SHADES = 4
EXPLANATION = (
    "A sparse autoencoder writes the vector of a token as a sum of few of many directions, its "
    "features. Each list shows the texts in which one feature is most active; the underlined token "
    "activates it most, and a stronger shade is a larger activity."
)


def measures_line(measures: DictionaryMeasures) -> str:
    """The measures as one sentence."""
    return (
        f"variance explained: {measures.variance_explained:.1%}; active features of a token: "
        f"{measures.active:.1f}; dead features: {measures.dead:.1%}"
    )


def feature_table(features: Sequence[Feature], name: TokenName, count: int) -> Table:
    """The most frequent features with the tokens at which they are most active."""
    table = head_table(False, numbers("feature"), numbers("active"), "strongest at")
    table.caption = "active: the share of tokens; one token of each of its strongest texts"
    for feature in features[:count]:
        tokens = [printable(name(text.ids[text.at])) for text in feature.texts]
        table.add_row(str(feature.number), f"{feature.frequency:.2%}", " · ".join(tokens))

    return table


def feature_page(
    features: Sequence[Feature],
    measures: DictionaryMeasures,
    title: str,
    name: TokenName,
    spaces: Mapping[int, int],
) -> str:
    """A page without scripts that needs no network: every feature with its texts.

    Args:
        features: The features.
        measures: The measures of the autoencoder.
        title: The heading.
        name: The readable text of a token id.
        spaces: The spaces that some tokens begin with; if none does, a space separates tokens.
    """
    style = files("qkv.insight.render").joinpath("web/features.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {hashed(style)}; img-src data:; base-uri 'none'"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:,">',
        f"<style>{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(EXPLANATION)}</p>",
        f'<p class="note">{html.escape(measures_line(measures))}</p>',
    ]
    for feature in features:
        parts.append(feature_section(feature, name, spaces))

    return "\n".join([*parts, "</main>\n</body>\n</html>\n"])


def feature_section(feature: Feature, name: TokenName, spaces: Mapping[int, int]) -> str:
    """One feature with its texts."""
    lines = []
    for text in feature.texts:
        lines.append(f"<li>{text_line(text, feature.largest, name, spaces)}</li>")

    return (
        f'<section id="f{feature.number}"><h2>Feature {feature.number} '
        f"<small>active at {feature.frequency:.2%} of tokens, at most {feature.largest:.2f}"
        f"</small></h2>\n<ol>{''.join(lines)}</ol></section>"
    )


def text_line(text: FeatureText, largest: float, name: TokenName, spaces: Mapping[int, int]) -> str:
    """The tokens of a text, shaded by how active the feature is."""
    spans = []
    for place, (id, value) in enumerate(zip(text.ids, text.activity, strict=True)):
        classes = []
        if value > 0:
            classes.append(f"a{min(SHADES, math.ceil(SHADES * value / largest))}")
        if place == text.at:
            classes.append("top")

        shown = html.escape(printable(name(id)))
        if classes:
            shown = f'<span class="{" ".join(classes)}" title="{value:.2f}">{shown}</span>'

        spans.append(" " * spaces.get(id, 0) + shown)

    return ("" if spaces else " ").join(spans).strip()
