"""The page's file: its data can be read back, no block ends early, and no text is markup."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray

from qkv import storage
from qkv.insight.heads.head_names import telling_heads
from qkv.insight.look import Look
from qkv.insight.render import page as pages
from qkv.insight.render.figures import figure_style
from qkv.insight.render.page import page
from qkv.insight.render.page_text import heading, missing_views
from qkv.insight.render.script_bundle import bundle, module, modules
from qkv.insight.render.views import ViewChoice
from support.made_looks import HOSTILE, attention, made_look, recurrent_look, side, weights


class Blocks(HTMLParser):
    """What a browser parses from a file: its elements, and the content of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.inside:
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def block(self, name: str) -> str:
        (block,) = (
            content for attributes, content in self.scripts if attributes.get("id") == f"qkv.{name}"
        )
        return block

    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.block("data")))

    def numbers(self, name: str, kind: str) -> ndarray:
        return np.frombuffer(
            zlib.decompress(base64.b64decode(self.block(name))), dtype=kind
        ).astype(np.float64)


def test_few_weights_are_exact_to_four_digits() -> None:
    look = made_look()
    blocks = Blocks(page(look))
    assert blocks.data()["attention"][0]["code"] == "linear16"
    for layer, expected in look.attention[0].layers.items():
        for head in range(2):
            decoded = blocks.numbers(f"self.{layer}.{head}", "<u2") / 65535
            assert abs(decoded - expected[head].flatten().numpy()).max() < 1e-5
    assert look.attribution is not None
    decoded = blocks.numbers("attribution", "<u2") / 65535
    assert abs(decoded - look.attribution.flatten().numpy()).max() < 1e-5


def test_many_weights_have_8_bits_of_their_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "EXACT", 100)
    look = made_look()
    blocks = Blocks(page(look))
    assert blocks.data()["attention"][0]["code"] == "root8"
    decoded = (blocks.numbers("self.1.1", "u1") / 255) ** 2
    expected = look.attention[0].layers[1][1].flatten().double().numpy()
    assert abs(np.sqrt(decoded) - np.sqrt(expected)).max() <= 0.5 / 255 + 1e-6


def test_the_overview_has_layers_whose_weights_were_not_kept() -> None:
    look = made_look(kept=[1])
    blocks = Blocks(page(look))
    described = blocks.data()["attention"][0]
    assert (described["depth"], described["layers"], described["overview"]) == (3, [1], [8, 8])
    decoded = (blocks.numbers("self.overview", "u1") / 255) ** 2
    expected = look.attention[0].overview.flatten().double().numpy()
    assert abs(np.sqrt(decoded) - np.sqrt(expected)).max() <= 0.5 / 255 + 1e-6
    assert [script.get("id") for script, _ in blocks.scripts if ".1." in str(script.get("id"))] == [
        "qkv.self.1.0",
        "qkv.self.1.1",
    ]


def test_scaled_weights_may_be_larger_than_1() -> None:
    words = side(["a", "b", "c"])
    layers = [3 * weights(1, 3, 3, False)]
    look = replace(
        made_look(["a", "b", "c"]), attention=[attention("self", words, words, layers, False)]
    )
    blocks = Blocks(page(look))
    most = blocks.data()["attention"][0]["most"]
    assert most == pytest.approx(float(layers[0].max()))
    assert (blocks.numbers("self.0.0", "<u2") / 65535 * most) == pytest.approx(
        layers[0].flatten().numpy(), abs=1e-4
    )


def test_a_non_finite_norm_is_null() -> None:
    look = made_look()
    assert look.norms is not None
    assert look.norms.gradient is not None
    norms = Blocks(page(look)).data()["norms"]
    for values, layer in zip(norms["gradient"], look.norms.gradient, strict=True):
        assert values[-1] is None
        assert values[:-1] == pytest.approx(layer[:-1].tolist(), rel=1e-4)
    assert None not in norms["residual"][0]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_what_is_predicted_does_not_depend_on_the_mask(bidirectional: bool) -> None:
    for causal in (True, False):
        look = replace(made_look(causal=causal), bidirectional=bidirectional)
        data = Blocks(page(look)).data()
        assert (data["follows"], data["attention"][0]["causal"]) == (not bidirectional, causal)


def test_the_rows_of_a_translation_are_the_tokens_it_generated() -> None:
    data = Blocks(
        page(made_look(["[start]", "kediler", "kovalar"], source=["cats", "chase"]))
    ).data()
    cross = data["attention"][2]
    chosen = data["sides"][cross["rows"]]["tokens"]
    assert (cross["kind"], chosen) == ("cross", ["kediler", "kovalar", "[end]"])
    assert (data["attribution"]["rows"], data["attribution"]["columns"]) == (
        cross["rows"],
        cross["columns"],
    )
    assert data["sides"][data["text"]]["tokens"] == ["[start]", "kediler", "kovalar"]


@pytest.mark.parametrize(
    ("tokens", "inside", "expected"),
    [
        (
            ["def", "read", "(", "self", ",", "name", ")", ":"],
            {3},
            "def read(self, name):",
        ),  # byte pairs
        (
            ["[CLS]", "read", "(", "self", ")", "!", "[SEP]"],
            {},
            "[CLS] read(self)! [SEP]",
        ),  # word pieces
        (["un", "believ", "able", "it", "'s", "x", "=", "1"], {1, 2}, "unbelievable it's x = 1"),
    ],
)
def test_the_heading_invents_no_spaces(tokens: list[str], inside: set[int], expected: str) -> None:
    assert heading(made_look(tokens, inside=inside)) == [expected]


def test_the_heading_of_a_translation_has_both_texts_without_end_tokens() -> None:
    look = made_look(
        ["[start]", "kedi", "ler", "kovalar"], inside={2}, source=["cats", "chase", "[end]"]
    )
    assert heading(look) == ["cats chase", "kediler kovalar"]


def test_missing_views_have_a_reason() -> None:
    full = made_look()
    assert missing_views(full) == {}
    encoder = replace(full, next=None, lens=None, attribution=None)
    assert missing_views(encoder).keys() == {"next", "lens", "attribution"}
    for reason in missing_views(encoder).values():
        assert reason.startswith("An encoder without a token head predicts no tokens")
    long = replace(
        made_look(["a"] * 1025, depth=1, heads=1), lens=None, norms=None, attribution=None
    )
    assert missing_views(long) == {
        "model": "The text has more than 48 tokens: use qkv look … --view model",
        "walk": ("The text has more than 48 tokens: use qkv look … --view walk --layer 0 --head 0"),
        "lens": "The text has more than 256 tokens: use qkv look … --view lens",
        "norms": "The text has more than 1,024 tokens: use qkv look … --view norms",
        "attribution": (
            "By default, attribution is computed up to 48 tokens of text: "
            "use qkv look … --view attribution"
        ),
    }
    rnn = recurrent_look()
    assert missing_views(rnn) == {"norms": "An RNN has no residual stream"}
    without = missing_views(replace(rnn, attention=[], walks=None))
    assert without.keys() == {"head", "heads", "lines", "norms", "walk"}
    assert missing_views(replace(full, attribution=None))["attribution"].startswith(
        "It was not requested"
    )


def test_hostile_texts_are_data_and_never_markup() -> None:
    look = made_look(HOSTILE, source=HOSTILE[::-1], model="</title><script>alert(1)</script>")
    text = page(look)
    blocks = Blocks(text)
    quiet = Blocks(page(made_look(["a"] * len(HOSTILE), source=["b"] * len(HOSTILE))))
    assert blocks.tags == quiet.tags
    data = blocks.data()
    assert [tuple(side["tokens"]) for side in data["sides"]] == [
        HOSTILE,
        HOSTILE[::-1],
        (*HOSTILE[1:], "[end]"),
    ]
    for attributes, content in blocks.scripts:
        if attributes.get("type") == "application/json":
            assert not set(content) & set("<>&\u2028\u2029")
            assert content.isascii()
    assert text.encode()  # a lone surrogate could not be encoded


def test_the_policy_allows_one_script_and_no_request() -> None:
    text = page(made_look())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]
    running = [
        (a, c) for a, c in Blocks(text).scripts if a.get("type") in ("module", "importmap", None)
    ]
    ((attributes, content),) = running
    assert attributes["type"] == "module"
    assert (
        f"script-src {pages.hashed(content)};" in policy[1]
    )  # and no source beside it, such as data:
    assert not re.search(r"https?://", text.replace("http://www.w3.org/2000/svg", ""))


def test_the_script_has_every_module_after_those_it_imports() -> None:
    script = bundle("standalone.js")
    names = re.findall(r"^const qkv_(\w+) = ", script, re.MULTILINE)
    assert {f"{name}.js" for name in names} == {*modules(), "standalone.js"}
    assert len(names) == len(set(names))
    for index, name in enumerate(names):
        imported = re.findall(
            r'^import .* from "qkv/(\w+)\.js"', module(f"{name}.js"), re.MULTILINE
        )
        assert set(imported) <= set(names[:index])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('import x from "qkv/page.js";\n', "import x from"),
        ('import { Page as Other } from "./page.js";\n', "import { Page as Other }"),
        ("export default 1;\n", "export default 1;"),
        ("export { a };\n", "export { a };"),
        ('const a = await import("qkv/page.js");\n', "import("),
        ('const a = "</script>";\n', "</script>"),
        ('import { a } from "qkv/broken.js";\n', "broken.js: it imports itself"),
    ],
)
def test_unsupported_code_is_refused(
    monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    monkeypatch.setattr("qkv.insight.render.script_bundle.module", lambda name: code)
    with pytest.raises(ValueError, match=re.escape(message)):
        bundle("broken.js")


def test_the_drawing_code_has_the_colours_of_the_figures() -> None:
    code = {name: module(name) for name in modules()}
    assert "standalone.js" not in code
    for name, text in code.items():
        assert "</script" not in text
        assert "<!--" not in text
        assert "innerHTML" not in text
        for imported in re.findall(r'from "([^"]+)"', text):
            assert imported.removeprefix("qkv/") in code, (name, imported)
        assert "getElementById" not in text or name == "store.js"
    assert all(colour in code["colour.js"] for colour in figure_style.COLOURS)


def test_the_opening_state() -> None:
    def start(look: Look, **how: Any) -> dict[str, Any]:
        return dict(Blocks(page(look, ViewChoice(**how))).data()["start"])

    look = made_look(["a", "b"], source=["c", "d", "e"], heads=4)
    layer, head = telling_heads(look.of())[0]
    assert start(look) == {
        "view": "heads",
        "kind": "cross",
        "layer": layer,
        "head": head,
        "words": False,
        "without": False,
        "kept": [],
    }
    assert start(look, kind="encoder", layer=-1)["layer"] == 2
    several = start(look, head=(3, 1), view="lines")
    assert (several["head"], several["kept"]) == (3, [[several["layer"], 1]])
    assert start(look, layer=1, head=2)["layer"] == 1
    assert start(look, view="numbers")["glance"] == "entropy"
    assert start(made_look(kept=[2]))["layer"] == 2
    for how, message in (
        ({"layer": 3}, "layer: expected 0 to 2"),
        ({"head": 4}, "head: expected 0 to 3"),
        ({"kind": "self"}, "kind: this model has encoder, decoder, cross"),
    ):
        with pytest.raises(ValueError, match=message):
            page(look, ViewChoice(**how))
    bare = replace(look, lens=None, attention=[])
    for view in ("lens", "head", "numbers"):
        with pytest.raises(ValueError, match=f"^view: there is no {view} in this look at a model$"):
            page(bare, ViewChoice(view=view))
    assert start(bare, view="norms") == {"view": "norms"}


def test_a_look_without_an_overview_is_refused() -> None:
    look = made_look()
    bare = look.attention[0]._replace(overview=torch.empty(0, 2, 0, 0))
    with pytest.raises(ValueError, match=r"overview: .*layers"):
        page(replace(look, attention=[bare]))


def test_the_file_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = made_look()
    out = tmp_path / "new" / "page.html"
    assert look.save(out, layer=1) == out
    assert out.read_text(encoding="utf-8") == page(look, ViewChoice(layer=1))
    before = out.read_bytes()
    monkeypatch.setattr(storage, "free", lambda folder: 10)
    with pytest.raises(storage.DiskFull, match="no room on the disk"):
        made_look(HOSTILE).save(out)
    assert out.read_bytes() == before
    assert list(out.parent.iterdir()) == [out]
