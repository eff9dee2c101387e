"""The folder format of `transformers`: config.json, safetensors in one file or several,
tokenizer.json.

Nothing here unpickles: a .bin, .pt or .ckpt file can run any code on the machine that loads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv import storage
from qkv.models.convert.weight_rules import Weights

CONFIG, SINGLE, INDEX, TOKENIZER = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
)
REPLACEMENT = ".replacement"
BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
FORMAT = {"format": "pt"}
SHARD_BYTES = 5_000_000_000
CHECKSUM = "sha256 of "
TENSORS = CHECKSUM + "tensors"
LARGEST_JSON = 256 << 20
"""Bytes of a JSON file; the largest index of a model's tensors has a few MiB."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def refuse_pickle(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise ValueError(
            f"{path}: this file is a pickle, which can run any code when it is loaded, so it is never opened here. "
            "Convert it to safetensors: in an environment you trust, load it with transformers and call "
            "save_pretrained()"
        )


def refuse_pickles_in(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        refuse_pickle(path)


def current(folder: Path) -> Path:
    """Where the files are: here, or in the folder that was about to replace them when its process
    was killed.
    """
    return folder / REPLACEMENT if (folder / REPLACEMENT).is_dir() else folder


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(storage.read_file(path, LARGEST_JSON).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if path.name == CONFIG and not path.parent.exists():
            raise ValueError(
                f"{path.parent}: there is no such folder (nothing is downloaded)"
            ) from None

        raise ValueError(
            f"{path}: there is no such file; expected a folder with {CONFIG} and {SINGLE} (nothing is downloaded)"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}); the file may be cut off") from error

    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected fields in braces, not a {type(values).__name__}")

    return values


def open_config(folder: Path) -> dict[str, Any]:
    """What config.json says, after a look whether this is a folder that we can read at all."""
    refuse_pickle(folder)
    if folder.is_file():
        hint = (
            "; read_gguf reads it"
            if folder.suffix.lower() == ".gguf"
            else f"; it holds {CONFIG} and {SINGLE}"
        )
        raise ValueError(f"{folder}: expected the folder of a model, not a file{hint}")

    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        refuse_pickles_in(folder)

    return read_json(current(folder) / CONFIG)


def open_weights(folder: Path, *, allow_nonfinite: bool = False) -> Weights:
    """The tensors of a folder, from one file or from the shards that an index lists."""
    folder = current(folder)
    if (folder / SINGLE).exists():
        return Weights(
            open_file(folder / SINGLE), str(folder / SINGLE), allow_nonfinite=allow_nonfinite
        )
    if (folder / INDEX).exists():
        return Weights(
            open_shards(folder / INDEX), str(folder / INDEX), allow_nonfinite=allow_nonfinite
        )

    refuse_pickles_in(folder)
    raise ValueError(f"{folder}: no weights; expected {SINGLE}, or {INDEX} and the files it lists")


def open_file(path: Path) -> dict[str, Callable[[], Tensor]]:
    file = open_safetensors(path)
    return {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118 - no mapping


def read_metadata(path: Path) -> dict[str, str]:
    return open_safetensors(path).metadata() or {}


def open_safetensors(path: Path) -> safe_open:
    storage.check_regular(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}); copy or download it again"
        ) from error


def open_shards(index: Path) -> dict[str, Callable[[], Tensor]]:
    target_positions = read_json(index).get("weight_map")
    if not isinstance(target_positions, dict) or not all(
        isinstance(name, str) for name in target_positions.values()
    ):
        raise ValueError(f"{index}: weight_map: expected the file of every tensor")

    shards: dict[str, dict[str, Callable[[], Tensor]]] = {}

    for name in sorted(set(target_positions.values())):
        if Path(name).name != name:
            raise ValueError(
                f"{index}: weight_map: expected the name of a file beside it, not {name!r}"
            )

        if not (index.parent / name).is_file():
            count = sum(place == name for place in target_positions.values())
            raise ValueError(
                f"{index.parent / name}: this shard is missing; it holds {count} tensors of the model"
            )

        shards[name] = open_file(index.parent / name)

    for tensor, name in target_positions.items():
        if tensor not in shards[name]:
            raise ValueError(
                f"{index.parent / name}: {tensor} is not in this shard, although the index says so"
            )

    return {tensor: shards[name][tensor] for tensor, name in target_positions.items()}


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    tokenizer: Callable[[Path], None] = lambda made: None,
    max_shard_bytes: int = SHARD_BYTES,
) -> None:
    """Everything is made beside its place and moved at the end, the config last: no half-written
    model is ever seen.

    `tokenizer` writes the tokenizer's files into the folder that it is given.
    """
    refuse_taken(folder)
    size = sum(tensor.nbytes for tensor in tensors.values())

    with storage.staging(folder, size, "the model") as made:
        write_json(made / CONFIG, config)
        write_shards(made, tensors, max_shard_bytes)
        tokenizer(made)
        for path in sorted(made.iterdir(), key=lambda path: path.name == CONFIG):
            storage.flush(path)
            storage.move(path, folder / path.name)


def refuse_taken(folder: Path) -> None:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in (CONFIG, INDEX) or path.suffix == ".safetensors":
            raise ValueError(f"{folder}: {path.name} is already here; choose an empty folder")


def write_shards(folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int) -> None:
    shards = shard(tensors, max_shard_bytes)
    target_positions: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        target_positions.update(dict.fromkeys(names, file))
        write_tensors(folder / file, {name: tensors[name] for name in names})

    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        write_json(
            folder / INDEX, {"metadata": {"total_size": size}, "weight_map": target_positions}
        )


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] = FORMAT
) -> None:
    """One safetensors file, of tensors on any device; two names of one tensor are written twice."""
    if "__metadata__" in tensors:
        raise ValueError(
            "__metadata__: a safetensors file keeps this name for itself; give the tensor another one"
        )

    own: dict[str, Tensor] = {}
    seen: set[int] = set()

    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)

    path.touch()
    mode = path.stat().st_mode
    save_file(own, path, metadata=dict(metadata))
    path.chmod(mode)  # safetensors lets only its owner read a file
    sort_metadata(path)


def sort_metadata(path: Path) -> None:
    """The library writes metadata in an order that differs from time to time; sorted, equal models
    are equal files.
    """
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))

        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def shard(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[list[str]]:
    """Names in groups that fit a file each; a tensor larger than a file is allowed to be has one of
    its own.
    """
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes: expected 1 or more, not {max_shard_bytes}")

    groups: list[list[str]] = [[]]
    size = 0

    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > max_shard_bytes:
            groups.append([])
            size = 0

        groups[-1].append(name)
        size += tensor.nbytes

    return groups


def tokenizer_files(path: Path) -> dict[str, Path]:
    """The files to copy: tokenizer.json, given itself or by its folder, and what lies beside it.
    None where it is not there: tokenizers of other files are written anew."""
    file = path / TOKENIZER if path.is_dir() else path
    if file.suffix != ".json" or file.name == "vocab.json" or not file.is_file():
        return {}

    beside = {
        name: file.parent / name for name in BESIDE_TOKENIZER if (file.parent / name).is_file()
    }

    return {TOKENIZER: file, **beside}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of names, dtypes, shapes and numbers, whatever their order in the file."""

    def chunks() -> Iterator[Any]:
        for name, tensor in sorted(tensors.items()):
            yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

    return storage.sha256(chunks())
