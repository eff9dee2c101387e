"""The lectures' matrices are the same in the terminal, in a figure and on a page."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from qkv import artifact
from qkv.generation.generate import without_dropout
from qkv.generation.text import prompt_ids
from qkv.lab import board, demo, matrices
from qkv.models import GPT, GPTConfig, RNNConfig, Transformer, TransformerConfig
from qkv.models.registry import build
from qkv.nn.hooks import capture
from qkv.text import train

SENTENCES = ["the quick brown fox", "the brown fox", "quick the brown", "cats chase mice"]


def buffer_console(encoding: str = "utf-8") -> Console:
    return Console(
        file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=100, highlight=False
    )


def text_of(console: Console) -> str:
    console.file.flush()
    assert isinstance(console.file, io.TextIOWrapper)
    return console.file.buffer.getvalue().decode(console.file.encoding)  # type: ignore[attr-defined]


def svg_texts(path: Path) -> list[str]:
    return [
        "".join(element.itertext())
        for element in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.fixture
def gpt(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    tokenizer = train("words", SENTENCES, 64)
    model = build(
        GPTConfig(
            vocabulary=tokenizer.vocabulary,
            context=16,
            width=16,
            depth=2,
            heads=2,
            position="rotary",
        )
    )
    artifact.save(model, tmp_path / "gpt", tokenizer=tokenizer)
    return tmp_path / "gpt"


def test_the_mask_is_the_equation_on_hand_made_vectors(tmp_path: Path) -> None:
    console = buffer_console()
    matrices.mask(tmp_path / "mask.svg", console=console)
    shown, drawn = text_of(console), svg_texts(tmp_path / "mask.svg")
    rows = [board.MEANING[word] for word in matrices.QUICK]
    dots = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in rows] for one in rows]
    for masked in (False, True):
        part = shown.split(matrices.UNMASKED)[1].split(matrices.MASKED)[masked]
        for number, word in enumerate(matrices.QUICK):
            visible = [not masked or at <= number for at in range(3)]
            powers = [
                math.exp(dot) * allowed for dot, allowed in zip(dots[number], visible, strict=True)
            ]
            scores = [
                f"{dot:.1f}" if allowed else "−∞"
                for dot, allowed in zip(dots[number], visible, strict=True)
            ]
            weights = [f"{power / sum(powers):.2f}" for power in powers]
            (line,) = [
                line
                for line in part.splitlines()
                if line.split()[:1] == [word] and line.count(word) == 2 and "." in line
            ]
            assert line.split() == [word, *scores, word, *weights]
            assert set(scores) | set(weights) <= set(drawn)
    assert drawn.count("−∞") == shown.count("−∞") == 6  # three on the slide
    assert set(matrices.QUICK) <= set(drawn)


def test_an_old_terminal_gets_minus_infinity_in_letters() -> None:
    console = buffer_console("ascii")
    matrices.mask(console=console)
    assert text_of(console).count("-inf") == 6


def test_the_mask_begins_with_the_slides_own_numbers(tmp_path: Path) -> None:
    console = buffer_console()
    matrices.mask(tmp_path / "mask.svg", console=console)
    slide, masked = text_of(console).split(matrices.UNMASKED)[0].split(matrices.SLIDE_MASKED)
    lines = {line.split()[0]: line.split() for line in slide.splitlines() if "." in line}
    assert lines["quick"] == ["quick", "−3.5", "−0.3", "−1.5", "quick", "0.03", "0.74", "0.23"]
    lines = {line.split()[0]: line.split() for line in masked.splitlines() if "." in line}
    assert lines["the"][-3:] == ["1.00", "0.00", "0.00"]
    assert lines["quick"][-3:] == ["0.04", "0.96", "0.00"]
    assert lines["brown"][-3:] == ["0.01", "0.41", "0.58"]
    assert {"0.74", "0.96"} <= set(svg_texts(tmp_path / "mask.svg"))


def test_the_mask_of_a_model_is_taken_away_and_put_back(gpt: Path) -> None:
    console = buffer_console()
    matrices.mask(None, str(gpt), layer=1, head=1, console=console)
    free, masked = (
        [
            line.split()
            for line in part.splitlines()
            if re.match(r" *(the|quick|brown) +[−\d]", line)
        ]
        for part in text_of(console).split(matrices.MASKED)
    )
    model, tokenizer = artifact.load(gpt)
    assert isinstance(model, GPT)
    assert tokenizer is not None
    point = "stack.blocks.1.attention.weights"
    with torch.no_grad(), without_dropout(model), capture(model, point) as captured:
        model(torch.tensor([prompt_ids(tokenizer, "the quick brown")]))
    weights = captured[point][0, 1, -3:]  # (3, T)
    T = weights.shape[1]
    for line, row in zip(masked, weights.tolist(), strict=True):
        assert line[-T:] == [f"{weight:.2f}" for weight in row]
    assert [line.count("−∞") for line in masked] == [2, 1, 0]
    assert not any("−∞" in line for line in free)
    assert all(sum(map(float, line[-T:])) == pytest.approx(1, abs=0.02) for line in free)
    assert free != masked


def test_the_pair_of_matrices_is_a_page_too(tmp_path: Path) -> None:
    both = matrices.quick_brown_heads()
    look = matrices.as_look("mask", matrices.quick_brown_side(), both)
    for number, head in enumerate(both.values()):
        assert torch.equal(look.attention[0].layers[0][number], head.weights)
    assert look.attention[0].names == ("without a mask", "with a causal mask")
    matrices.mask(tmp_path / "mask.html", console=buffer_console())
    data = data_of_the_page(tmp_path / "mask.html")
    assert data["heading"] == ["the quick brown"]
    assert data["start"]["view"] == "heads"
    assert data["attention"][0]["names"] == [*matrices.slide_heads(), *both]


def test_cats_trains_a_translator_once_and_draws_its_alignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training is replaced by an untrained translator; the demo's tests cover it."""
    trained: list[Path] = []

    def stand_in(console: Console, out: Path) -> bool:
        trained.append(out)
        tokenizer = train("words", [*SENTENCES, "kediler fareleri kovalar"], 64)
        shape = TransformerConfig(
            vocabulary=tokenizer.vocabulary, context=16, width=16, depth=1, heads=2
        )
        artifact.save(build(shape), out, tokenizer=tokenizer)
        (out / "metrics.jsonl").write_text(json.dumps({"step": 1, "event": "finished"}) + "\n")
        return True

    monkeypatch.setattr(demo, "trained_translator", stand_in)
    monkeypatch.setattr(
        demo, "in_turkish", lambda model, tokenizer, english: ["kediler fareleri kovalar"]
    )
    folder = tmp_path / "turkish"
    matrices.cats(demo=folder, console=buffer_console())
    console = buffer_console()
    matrices.cats(tmp_path / "cats.svg", folder, console)
    assert trained == [folder]  # once
    assert re.search(r"fareleri +0.03 +0.10 +0.87", text_of(console))  # the slide's
    model, tokenizer = artifact.load(folder)
    assert isinstance(model, Transformer)
    assert tokenizer is not None
    result = demo.aligned(model, tokenizer, "cats chase mice")
    drawn = svg_texts(tmp_path / "cats.svg")
    assert result.weights.shape == (3, 4)
    for word, row in zip(("kediler", "fareleri", "kovalar"), result.weights.tolist(), strict=True):
        weights = [f"{weight:.2f}" for weight in row]
        assert re.search(rf"{word} +{' +'.join(weights)}", text_of(console))
        assert {word, *weights} <= set(drawn)
    assert {"cats", "chase", "mice", "(end)", "cats chase mice: kediler fareleri kovalar"} <= set(
        drawn
    )
    matrices.cats(tmp_path / "cats.html", folder, buffer_console())
    rows, weights = rows_of_the_page(tmp_path / "cats.html")
    assert rows[:3] == ["kediler", "fareleri", "kovalar"]
    torch.testing.assert_close(weights[:3], result.weights, rtol=0, atol=1e-4)


def blocks_of_the_page(path: Path) -> dict[str, str]:
    return dict(
        re.findall(
            r'<script type="[^"]+" id="qkv\.([^"]+)">(.*?)</script>', path.read_text("utf-8"), re.S
        )
    )


def data_of_the_page(path: Path) -> Any:
    return json.loads(blocks_of_the_page(path)["data"])


def rows_of_the_page(path: Path) -> tuple[list[str], torch.Tensor]:
    """The row tokens of cross-attention, and the mean of all heads."""
    data, blocks = data_of_the_page(path), blocks_of_the_page(path)
    cross = next(entry for entry in data["attention"] if entry["kind"] == "cross")
    heads = [
        torch.tensor(
            list(
                memoryview(zlib.decompress(base64.b64decode(blocks[f"cross.{layer}.{head}"]))).cast(
                    "H"
                )
            )
        )
        for layer in cross["layers"]
        for head in range(cross["heads"])
    ]
    return data["sides"][cross["rows"]]["tokens"], (torch.stack(heads) / 65535).mean(0).reshape(
        cross["shape"]
    )


def test_a_stopped_run_is_not_finished(tmp_path: Path) -> None:
    assert not matrices.demonstration.finished(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    assert not matrices.demonstration.finished(tmp_path)
    rows = [{"step": 1}, {"step": 1, "event": "finished"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert matrices.demonstration.finished(tmp_path)


def test_invalid_requests_are_refused(tmp_path: Path, gpt: Path) -> None:
    for command in (matrices.cats, matrices.mask):
        with pytest.raises(ValueError, match=r"out: .*\.svg.*gif"):
            command(out=tmp_path / "matrix.gif", console=buffer_console())
    with pytest.raises(ValueError, match=r"layer: .*not 7"):
        matrices.mask(model=str(gpt), layer=7, console=buffer_console())
    tokenizer = train("words", SENTENCES, 64)
    rnn = build(RNNConfig(vocabulary=tokenizer.vocabulary, width=8))
    artifact.save(rnn, tmp_path / "rnn", tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"model: .*GPT.* RNN"):
        matrices.mask(model=str(tmp_path / "rnn"), console=buffer_console())
