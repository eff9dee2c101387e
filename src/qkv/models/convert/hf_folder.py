"""Folders of `transformers`: config.json, safetensors in one file or shards, tokenizer.json.

Nothing here unpickles: a .bin, .pt or .ckpt file can run any code on the machine that loads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv import storage
from qkv.models.convert.weight_rules import Weights

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
REPLACEMENT = ".replacement"
BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
FORMAT = {"format": "pt"}
SHARD_BYTES = 5_000_000_000
CHECKSUM = "sha256 of "
TENSORS = CHECKSUM + "tensors"
LARGEST_JSON = 256 << 20
"""Largest JSON file that is read, in bytes; the largest index of a model has a few MiB."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def refuse_pickle(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise ValueError(
            f"{path}: this file is a pickle, which can run any code when it is loaded, so it is "
            "never opened here. Convert it to safetensors: in an environment you trust, load it "
            "with transformers and call save_pretrained()"
        )


def refuse_pickles_in(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        refuse_pickle(path)


def current(folder: Path) -> Path:
    """Return the folder that holds the newest complete files.

    A process that was killed while it replaced them leaves them in a folder inside.
    """
    replacement = folder / REPLACEMENT
    if replacement.is_dir():
        return replacement

    return folder


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; every failure is a ValueError that names the file."""
    try:
        values = json.loads(storage.read_file(path, LARGEST_JSON).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if path.name == CONFIG and not path.parent.exists():
            raise ValueError(
                f"{path.parent}: there is no such folder (nothing is downloaded)"
            ) from None

        raise ValueError(
            f"{path}: there is no such file; expected a folder with {CONFIG} and {SINGLE} "
            "(nothing is downloaded)"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}); the file may be cut off") from error

    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected fields in braces, not a {type(values).__name__}")

    return values


def open_config(folder: Path) -> dict[str, Any]:
    """Read config.json, after checking that this is a folder that can be read at all."""
    refuse_pickle(folder)
    if folder.is_file():
        hint = f"; it holds {CONFIG} and {SINGLE}"
        if folder.suffix.lower() == ".gguf":
            hint = "; read_gguf reads it"

        raise ValueError(f"{folder}: expected the folder of a model, not a file{hint}")

    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        refuse_pickles_in(folder)

    return read_json(current(folder) / CONFIG)


def open_weights(folder: Path, *, allow_nonfinite: bool = False) -> Weights:
    """Open the tensors of a folder, from one file or from the shards that an index lists."""
    folder = current(folder)
    single = folder / SINGLE
    index = folder / INDEX
    if single.exists():
        return Weights(open_file(single), str(single), allow_nonfinite=allow_nonfinite)
    if index.exists():
        return Weights(open_shards(index), str(index), allow_nonfinite=allow_nonfinite)

    refuse_pickles_in(folder)
    raise ValueError(f"{folder}: no weights; expected {SINGLE}, or {INDEX} and the files it lists")


def open_file(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each tensor of a safetensors file that reads it."""
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
    """Return a function for each tensor of the shards that an index file lists."""
    weight_map = read_json(index).get("weight_map")
    if not is_weight_map(weight_map):
        raise ValueError(f"{index}: weight_map: expected the file of every tensor")

    shards: dict[str, dict[str, Callable[[], Tensor]]] = {}
    for shard, count in sorted(Counter(weight_map.values()).items()):
        if Path(shard).name != shard:
            raise ValueError(
                f"{index}: weight_map: expected the name of a file beside it, not {shard!r}"
            )

        path = index.parent / shard
        if not path.is_file():
            raise ValueError(
                f"{path}: this shard is missing; it holds {count} tensors of the model"
            )

        shards[shard] = open_file(path)

    tensors = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise ValueError(
                f"{index.parent / shard}: {name} is not in this shard, although the index lists it"
            )

        tensors[name] = shards[shard][name]

    return tensors


def is_weight_map(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(shard, str) for shard in value.values())


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    write_tokenizer: Callable[[Path], None] | None = None,
    max_shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a model into a staging folder and move it into place, config.json last.

    A reader never sees a half-written model. `write_tokenizer` writes the tokenizer's files into
    the folder that it gets.
    """
    refuse_taken(folder)
    size = sum(tensor.nbytes for tensor in tensors.values())

    with storage.staging(folder, size, "the model") as staged:
        write_json(staged / CONFIG, config)
        write_shards(staged, tensors, max_shard_bytes)
        if write_tokenizer is not None:
            write_tokenizer(staged)

        move_files(staged, folder, CONFIG)


def move_files(staged: Path, folder: Path, config: str) -> None:
    """Move staged files into a folder, the config last."""
    files = sorted(staged.iterdir(), key=lambda path: path.name == config)
    for file in files:
        storage.flush(file)

    # An old config must not be read with the new weights.
    old = folder / config
    if old.exists() and old.read_bytes() != (staged / config).read_bytes():
        old.unlink()

    for file in files:
        storage.move(file, folder / file.name)


def refuse_taken(folder: Path) -> None:
    """Raise if the folder holds a model already."""
    if not folder.is_dir():
        return

    for path in sorted(folder.iterdir()):
        if path.name in (CONFIG, INDEX) or path.suffix == ".safetensors":
            raise ValueError(f"{folder}: {path.name} is already here; choose an empty folder")


def write_shards(folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int) -> None:
    shards = shard(tensors, max_shard_bytes)
    if len(shards) == 1:
        write_tensors(folder / SINGLE, tensors)
        return

    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map.update(dict.fromkeys(names, file))
        write_tensors(folder / file, {name: tensors[name] for name in names})

    size = sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] = FORMAT
) -> None:
    """Write one safetensors file from tensors on any device; shared memory is written twice."""
    if "__metadata__" in tensors:
        raise ValueError(
            "__metadata__: safetensors reserves this name; give the tensor another one"
        )

    # safetensors refuses two tensors in one memory.
    separate: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        if address in addresses:
            tensor = tensor.clone()

        separate[name] = tensor
        addresses.add(address)

    path.touch()
    mode = path.stat().st_mode
    save_file(separate, path, metadata=dict(metadata))
    path.chmod(mode)  # safetensors makes files that only their owner can read
    sort_metadata(path)


def sort_metadata(path: Path) -> None:
    """Sort a file's metadata, which the library orders randomly: equal models are equal files."""
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
    """Group names so that each group fits into a file; a larger tensor gets a file of its own."""
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
    """Return the files to copy: tokenizer.json, given by itself or by its folder, and its configs.

    Empty if there is no tokenizer.json: tokenizers from other files are written anew.
    """
    file = path
    if path.is_dir():
        file = path / TOKENIZER

    if file.suffix != ".json" or file.name == "vocab.json" or not file.is_file():
        return {}

    files = {TOKENIZER: file}
    for name in BESIDE_TOKENIZER:
        if (file.parent / name).is_file():
            files[name] = file.parent / name

    return files


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def verify_checksum(tensors: Mapping[str, Tensor], saved: str, origin: str) -> None:
    """Raise if tensors are not those that were saved."""
    if saved != checksum(tensors):
        raise ValueError(
            f"{origin}: checksum mismatch: the file was damaged or changed after saving; "
            "restore it from a copy"
        )


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Hash names, dtypes, shapes and numbers, in an order that does not depend on the file."""

    def chunks() -> Iterator[Any]:
        for name, tensor in sorted(tensors.items()):
            yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

    return storage.sha256(chunks())
