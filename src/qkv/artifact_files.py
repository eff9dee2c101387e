"""Files of a saved model: checksums of the files beside the weights, and atomic replacement."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from qkv import storage
from qkv.models.convert import hf_folder
from qkv.models.convert.hf_folder import (
    CHECKSUM,
    CONFIG,
    REPLACEMENT,
    SINGLE,
    TENSORS,
    TOKENIZER,
    current,
)

TOKENIZER_CONFIG = hf_folder.BESIDE_TOKENIZER[0]
WITH_CHECKSUM = (CONFIG, TOKENIZER, TOKENIZER_CONFIG)

# Checksums


def checksums_beside(path: Path) -> dict[str, str]:
    """The checksums of the files beside the weights."""
    checksums = {}
    for name in WITH_CHECKSUM:
        if (path / name).is_file():
            checksums[CHECKSUM + name] = storage.sha256_of(path / name)

    return checksums


def verify_beside(path: Path, metadata: Mapping[str, str]) -> None:
    """Refuse files beside the weights that are not those saved with them."""
    if not {TENSORS, CHECKSUM + CONFIG} <= metadata.keys():
        raise ValueError(
            f"{path / SINGLE}: it has no checksums: something other than qkv.save wrote or "
            "changed it"
        )

    present = checksums_beside(path)

    for name in WITH_CHECKSUM:
        saved = metadata.get(CHECKSUM + name)
        here = present.get(CHECKSUM + name)
        if saved == here:
            continue
        if here is None:
            raise ValueError(f"{path / name}: this file is missing; the model was saved with it")
        if saved is None:
            raise ValueError(
                f"{path / name}: this file was not saved with the model; remove it, or save with it"
            )

        raise ValueError(
            f"{path / name}: this file is not the one that was saved with the model: the checksum "
            f"in {SINGLE} differs; restore the original, or save the model again"
        )


# Files that exist already


def is_ours(path: Path) -> bool:
    """Whether the folder holds a model that `save` wrote, damaged or not."""
    path = current(path)
    with suppress(ValueError):
        if "family" in hf_folder.read_json(path / CONFIG):
            return True

    with suppress(ValueError):
        return TENSORS in hf_folder.read_metadata(path / SINGLE)

    return False


def refuse_other_tokenizer(staged: Path, path: Path) -> None:
    """Refuse a folder whose tokenizer is not the one that is saved now."""
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if (path / name).exists() and not same_file(staged / name, path / name):
            raise ValueError(
                f"{path}: {name} is already here, and the model is not saved with it; choose an "
                "empty folder, or give it as tokenizer="
            )


def same_file(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def replace_files(staged: Path, path: Path) -> None:
    """Move the staged files into the folder as one change.

    A single changed file replaces the old one. If several change, the whole staged folder becomes
    the current one until each file is copied to its name.
    """
    changed = [file for file in staged.iterdir() if not same_file(file, path / file.name)]
    for file in staged.iterdir():
        storage.flush(file)

    storage.flush(staged)
    if len(changed) == 1:
        storage.move(changed[0], path / changed[0].name)
    elif changed:
        storage.move(staged, path / REPLACEMENT)
        finish_replacing(path)


def finish_replacing(path: Path) -> None:
    """Copy the files of a replacement folder to their names, and remove it."""
    replacement = path / REPLACEMENT
    if not replacement.is_dir():
        return

    for file in replacement.iterdir():
        target = path / file.name
        target.unlink(missing_ok=True)
        try:
            os.link(file, target)
        except OSError:  # some file systems have no links
            shutil.copyfile(file, target)
            storage.flush(target)

    storage.flush(path)
    storage.remove(replacement)
