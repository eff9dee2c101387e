"""Activations equal those of a plain forward pass of each text, however batched and stored."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from qkv import storage
from qkv.insight.probing import activations as module
from qkv.insight.probing.activations import (
    Activations,
    ActivationsInMemory,
    ActivationsOnDisk,
    ProbeData,
    activations,
    block_vectors,
    check_layers,
    layers_of,
)
from qkv.models import TaskModel, TaskModelConfig
from qkv.models.heads import HeadConfig
from qkv.models.model import Model, backbone_of
from qkv.nn.hooks import capture
from support.families import V, bert, gpt, rnn, transformer

HEAD = HeadConfig(task="classify", labels=("a", "b"), delimiter=2, extract=2, padding=0)
MODELS: dict[str, Any] = {
    "gpt": lambda: gpt(),
    "gpt, rotary": lambda: gpt(position="rotary", norm="rms"),
    "bert": lambda: bert(),
    "tuned gpt": lambda: TaskModel(TaskModelConfig(backbone=gpt().config, head=HEAD)).double(),
    "tuned bert": lambda: TaskModel(TaskModelConfig(backbone=bert().config, head=HEAD)).double(),
    "transformer": lambda: transformer(),
    "transformer, no tie": lambda: transformer(tied="none", norm_placement="before"),
    "rnn": lambda: rnn(),
    "rnn, one direction": lambda: rnn(bidirectional=False, cell="lstm"),
}


def some_texts(
    lengths: tuple[int, ...] = (5, 2, 9, 1, 6, 6, 3, 12), *, mean: bool = False
) -> ProbeData:
    random = np.random.default_rng(0)
    ids = [random.integers(V, size=length) for length in lengths]
    positions = []
    for length in lengths:
        count = 1 if mean else max(1, length // 2)
        positions.append(np.sort(random.permutation(length)[:count]))

    return ProbeData(ids, positions, np.arange(sum(map(len, positions))), mean=mean)


def captured_alone(model: Model, texts: ProbeData) -> list[torch.Tensor]:
    """Run each text by itself; return the vectors by layer, (n, E)."""
    backbone = backbone_of(model)
    layers: list[list[torch.Tensor]] = [[] for _ in layers_of(model)]
    for ids, positions in zip(texts.ids, texts.positions, strict=True):
        row = torch.from_numpy(ids).unsqueeze(0)
        with torch.no_grad(), capture(model, "*") as captured:
            if hasattr(backbone, "encoder"):
                backbone(row, row[:, :1])
            else:
                backbone.hidden(row)
        for number, point in enumerate(layers_of(model).values()):
            # The source is read before the target.
            values = captured.every[point][0] if point else backbone.source_embedding(row)
            if texts.mean:
                layers[number].append(values[0].mean(0, keepdim=True))
            else:
                layers[number].append(values[0, torch.from_numpy(positions)])
    return [torch.cat(vectors) for vectors in layers]


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_every_family(
    name: str, mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = MODELS[name]().eval(), some_texts(mean=mean)
    layers = check_layers(model, None)
    expected = captured_alone(model, texts)
    for tokens in (1, 20, 1000):  # one text at a time, some, all together with much padding
        monkeypatch.setattr(module, "TOKENS", tokens)
        result = block_vectors(model, texts, range(len(texts)), layers)
        for actual, other in zip(result, expected, strict=True):
            assert_close(actual, other.float(), rtol=1e-5, atol=1e-5)


def test_the_layers_by_name() -> None:
    """Blocks are counted from 0: layer 1 is the output of block 1."""
    assert list(layers_of(gpt())) == ["embedding", "0", "1", "norm"]
    assert layers_of(gpt())["1"] == "stack.blocks.1.after"
    assert list(layers_of(bert())) == ["embedding", "0", "1"]
    assert list(layers_of(rnn())) == ["embedding", "0"]
    assert list(layers_of(rnn(depth=2))) == ["embedding", "1"]
    assert check_layers(gpt(), ["1", "embedding", "1"]) == ("1", "embedding")
    with pytest.raises(ValueError, match=r"layers: .*not '2'"):
        check_layers(gpt(), ["2"])


def test_dropout_is_off() -> None:
    model, texts = gpt(dropout=0.5).train(), some_texts()
    one, other = (Activations(model, texts, ("0", "1")).read(0, ("0", "1")) for _ in range(2))
    assert_close(one, other, rtol=0, atol=0)
    assert model.training


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_blocks_have_every_text_once(size: int) -> None:
    texts = some_texts()
    blocks = texts.blocks(size)
    assert [text for block in blocks for text in block] == list(range(len(texts)))
    assert all(texts.span(block) for block in blocks)
    shuffled = texts.shuffled()
    assert sorted(map(len, shuffled.ids)) == sorted(map(len, texts.ids))
    count = len(shuffled.positions[0])
    assert shuffled.targets[:count].tolist() != texts.targets[:count].tolist()
    assert sorted(shuffled.targets.tolist()) == texts.targets.tolist()


def test_disk_memory_and_recomputing_agree(tmp_path: Path) -> None:
    model, texts = gpt().float(), some_texts()
    recomputed = Activations(model, texts, ("embedding", "1", "norm"), block=5)
    in_memory = ActivationsInMemory(recomputed)
    stored = ActivationsOnDisk(recomputed, tmp_path, "float32")
    for layers in (("1",), ("norm", "embedding")):
        for block in range(len(recomputed.blocks)):
            expected = recomputed.read(block, layers)
            assert_close(in_memory.read(block, layers), expected, rtol=0, atol=0)
            assert_close(stored.read(block, layers), expected, rtol=0, atol=0)
    (tmp_path / "half").mkdir()
    half = ActivationsOnDisk(recomputed, tmp_path / "half", "float16")
    assert_close(half.read(0, ("1",)), recomputed.read(0, ("1",)), rtol=1e-3, atol=1e-3)
    assert (tmp_path / "half" / "1.bin").stat().st_size * 2 == (tmp_path / "1.bin").stat().st_size


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    return tmp_path / "activations"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_on_the_disk(folder: Path, error: type[BaseException]) -> None:
    with activations(gpt(), [some_texts()]) as parts:
        assert len(list(folder.glob("*/0/*.bin"))) == len(parts[0].layers)
    assert list(folder.iterdir()) == []
    with pytest.raises(error), activations(gpt(), [some_texts()]):
        raise error
    assert list(folder.iterdir()) == []


def test_an_interruption_while_the_model_reads_leaves_nothing(folder: Path) -> None:
    def stop(texts: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), activations(gpt(), [some_texts()], advance=stop):
        pass
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_reported_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free", lambda _: 1000)
    with (
        pytest.raises(storage.DiskFull, match=r"no room .*1 MB"),
        activations(gpt(), [some_texts()]),
    ):
        pass
    assert list(folder.iterdir()) == []


def test_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = gpt().float()
    with torch.no_grad():
        model.embedding.token.weight.mul_(1e6)
    with pytest.raises(ValueError, match=r"store: .*float16"):
        ActivationsOnDisk(Activations(model, some_texts(), ("embedding",)), tmp_path, "float16")


@pytest.mark.usefixtures("without_shape_checks")  # whose memory would count
def test_reading_holds_a_block_and_not_the_file(tmp_path: Path) -> None:
    texts = some_texts(tuple([12] * 2000))
    stored = ActivationsOnDisk(
        Activations(rnn().float(), texts, ("embedding", "0"), block=64),
        tmp_path,
        "float32",
    )
    block = 64 * 16 * 4
    tracemalloc.start()
    for number in range(len(stored.blocks)):
        stored.read(number, ("0",))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "0.bin").stat().st_size > 100 * block
    assert peak < 10 * block + 50_000
