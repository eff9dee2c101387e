"""Errors of `transformers` folders: damaged, dangerous or unsupported files never load."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.models import GPT
from qkv.models.convert import read_folder, read_gguf, write_folder
from support.small_hf_folders import edit, edit_tensors, outcome, refused, small

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A readable GPT-2, for tests that damage it."""
    write_folder(small("gpt2"), tmp_path / "model")
    assert read_folder(tmp_path / "model")
    return tmp_path / "model"


# Pickles


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture
def bomb(tmp_path: Path) -> bytes:
    """A pickle that creates a file when it is loaded."""
    return pickle.dumps(Bomb(tmp_path / "exploded"))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "MODEL.BIN"]
)
def test_a_pickle_is_never_opened(name: str, folder: Path, bomb: bytes, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(bomb)
    for read, path in (
        (read_folder, folder),
        (read_folder, folder / name),
        (read_gguf, folder / name),
    ):
        with refused(f"{name}: ... is a pickle, ... save_pretrained()"):
            read(path)

    assert not (tmp_path / "exploded").exists()


def test_a_folder_of_one_pickle(bomb: bytes, tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "pytorch_model.bin").write_bytes(bomb)
    with refused("pytorch_model.bin: ... is a pickle"):
        read_folder(tmp_path / "only")


def test_a_pickle_beside_safetensors_is_left_alone(
    folder: Path, bomb: bytes, tmp_path: Path
) -> None:
    (folder / "pytorch_model.bin").write_bytes(bomb)
    assert isinstance(read_folder(folder), GPT)
    assert not (tmp_path / "exploded").exists()


# Files


def test_no_folder(tmp_path: Path) -> None:
    with refused("there is no such folder"):
        read_folder(tmp_path / "nowhere")


def test_a_file_instead_of_its_folder(folder: Path, tmp_path: Path) -> None:
    with refused("model.safetensors: ... the folder of a model"):
        read_folder(folder / "model.safetensors")

    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with refused("a.gguf: ... the folder of a model"):
        read_folder(tmp_path / "a.gguf")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with refused("model: no weights"):
        read_folder(folder)


@pytest.mark.parametrize("text", ["", "{", '{"n_layer": }', "\xff\xfe", "[" * 100_000])
def test_a_config_that_is_not_json(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with refused("config.json: not valid JSON"):
        read_folder(folder)


def test_a_config_that_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")
    with refused("config.json: ... fields in braces"):
        read_folder(folder)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, 1000, -1])
def test_a_cut_off_weight_file(length: int, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with refused("model.safetensors: ... safetensors file"):
        read_folder(folder)


def test_damaged_bytes_are_refused_or_harmless(folder: Path) -> None:
    """Whatever byte of the header is wrong, reading gives a ValueError or a model."""
    generator = random.Random(0)
    for file in (folder / "model.safetensors", folder / "config.json"):
        whole = file.read_bytes()
        header = len(whole)
        if file.suffix == ".safetensors":
            header = 8 + int.from_bytes(whole[:8], "little")

        for _ in range(150):
            at = generator.randrange(header)
            file.write_bytes(whole[:at] + bytes([generator.randrange(256)]) + whole[at + 1 :])
            result = outcome(read_folder, folder)
            assert isinstance(result, GPT) or str(folder) in result

        file.write_bytes(whole)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_folder(small("gpt2"), tmp_path / "shards", max_shard_bytes=2000)
    return tmp_path / "shards"


def test_a_missing_shard(shards: Path) -> None:
    shard = sorted(shards.glob("model-*"))[1]
    shard.unlink()
    with refused(f"{shard.name}: ... is missing; it holds ... tensors"):
        read_folder(shards)


def test_a_cut_off_shard(shards: Path) -> None:
    shard = sorted(shards.glob("model-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-3])
    with refused(f"{shard.name}: ... safetensors file"):
        read_folder(shards)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "weight_map: ... file of every tensor"),
        ({"a": 3}, "weight_map: ... file of every tensor"),
        (
            {"a": "../../secret.safetensors"},
            "weight_map: ... a file beside it",
        ),
    ],
)
def test_a_wrong_index(weight_map: Any, message: str, shards: Path) -> None:
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with refused(message):
        read_folder(shards)


def test_an_index_that_lists_the_wrong_shard(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first = next(iter(weight_map.values()))
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weight_map, first)}))
    with refused(f"{first}: ... is not in this shard"):
        read_folder(shards)


# Tensors


def test_a_missing_tensor(folder: Path) -> None:
    edit_tensors(folder, drop="transformer.h.0.attn.c_attn.weight")
    with refused("1 tensors are missing, the first is transformer.h.0.attn.c_attn.weight"):
        read_folder(folder)


def test_a_tensor_too_many(folder: Path) -> None:
    edit_tensors(folder, **{"transformer.h.0.crossattention.c_attn.weight": torch.zeros(2)})
    with refused("1 tensors have no place ... the first is transformer.h.0.cross"):
        read_folder(folder)


def test_a_tensor_of_another_shape(folder: Path) -> None:
    edit(folder, n_inner=24)
    with refused(
        "model.safetensors: transformer.h.0.mlp.c_fc.weight has shape (8, 32), expected (8, 24)"
    ):
        read_folder(folder)


def test_a_tensor_of_whole_numbers(folder: Path) -> None:
    edit_tensors(folder, **{"transformer.wte.weight": torch.zeros(13, 8, dtype=torch.int8)})
    with refused(
        "transformer.wte.weight holds torch.int8, expected numbers that are not quantised"
    ):
        read_folder(folder)


def test_a_tied_output_that_differs(folder: Path) -> None:
    edit_tensors(folder, **{"lm_head.weight": torch.zeros(13, 8)})
    with refused(
        "lm_head.weight differs from transformer.wte.weight, but the config says they are tied"
    ):
        read_folder(folder)


def test_the_same_tensor_under_two_names(folder: Path) -> None:
    edit_tensors(folder, **{"wte.weight": torch.zeros(13, 8)})
    with refused("two tensors mean transformer.wte.weight; expected one"):
        read_folder(folder)


def test_a_context_that_fits_no_memory(tmp_path: Path) -> None:
    write_folder(small("marian"), tmp_path)
    edit(tmp_path, max_position_embeddings=10**12)
    with refused("embed_positions: ... sinusoids"):
        read_folder(tmp_path)


def test_positions_that_are_no_sinusoids(tmp_path: Path) -> None:
    write_folder(small("marian"), tmp_path)
    edit_tensors(tmp_path, **{"model.encoder.embed_positions.weight": torch.randn(8, 8)})
    with refused("embed_positions: ... sinusoids"):
        read_folder(tmp_path)


# Writing


def test_a_folder_that_holds_a_model_already(folder: Path) -> None:
    before = (folder / "config.json").read_bytes()
    with refused("config.json is already here; choose an empty folder"):
        write_folder(small("bert"), folder)

    assert (folder / "config.json").read_bytes() == before


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    with refused("words.json: ... no such file"):
        write_folder(small("gpt2"), tmp_path / "model", tokenizer=tmp_path / "words.json")

    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("name", "value"), [("begin_id", 13), ("end_id", -1), ("pad_id", 99)])
def test_ids_outside_the_vocabulary(name: str, value: int, tmp_path: Path) -> None:
    with refused(f"{name}: expected 0 to 12, not {value}"):
        write_folder(small("gpt2"), tmp_path, **{name: value})


def test_shards_of_nothing(tmp_path: Path) -> None:
    with refused("max_shard_bytes: ... 1 or more"):
        write_folder(small("gpt2"), tmp_path, max_shard_bytes=0)

    assert not list(tmp_path.iterdir())


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("qkv.models.convert.hf_folder.save_file", full)
    with refused("no space left on device", OSError):
        write_folder(small("gpt2"), tmp_path)

    assert not list(tmp_path.iterdir())


def test_reading_needs_no_other_library(folder: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['transformers'] = sys.modules['gguf'] = None\n"
        "from qkv.models.convert import read_folder\n"
        f"print(type(read_folder({str(folder)!r})).__name__)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "GPT"
