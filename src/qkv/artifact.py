"""Save and load models: a folder with config, weights and tokenizer; loading executes no code.

The weights' file holds the checksums of its tensors and of the files beside it. Weights are
replaced by replacing one file, and a file that was changed, exchanged or damaged is detected when
the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from qkv import checkpoint, storage
from qkv.artifact_files import TOKENIZER_CONFIG as TOKENIZER_CONFIG
from qkv.artifact_files import (
    checksums_beside,
    finish_replacing,
    is_ours,
    refuse_other_tokenizer,
    replace_files,
    verify_beside,
)
from qkv.model_names import model_path
from qkv.models.consistency import check_consistent, refuse_adapters
from qkv.models.convert import hf_folder, peft, read_folder, read_gguf
from qkv.models.convert.hf_folder import (
    CONFIG,
    SINGLE,
    TENSORS,
    TOKENIZER,
    checksum,
    current,
    verify_checksum,
)
from qkv.models.convert.hf_tokenizer import checked_tokenizer
from qkv.models.convert.peft import read_adapter
from qkv.models.convert.weight_rules import Weights
from qkv.models.model import Model, backbone_of, uncompiled
from qkv.models.registry import Config, check_finite, from_json, to_json, weights_of, with_weights
from qkv.nn.lora import AdapterConfig, attach_adapters, merge_adapters
from qkv.text import Tokenizer
from qkv.text.special_tokens import UnknownKind

TOKENIZER_FILES = (
    (TOKENIZER,),
    ("vocab.json", "merges.txt"),
    ("vocab.json", "source.spm"),
    ("vocab.txt",),
)
"""Each row is a set of files that together are a tokenizer."""

TOKENIZERS: WeakKeyDictionary[Model, Tokenizer] = WeakKeyDictionary()
"""The tokenizer that each model was loaded with, for as long as the model exists."""


class Loaded(NamedTuple):
    """`model, tokenizer = qkv.load(path)`"""

    model: Model
    tokenizer: Tokenizer | None
    """None if there is none, or one of an unknown kind; `tokenizer_of(path)` raises the reason."""


def save(
    model: Model,
    path: Path | str,
    *,
    tokenizer: Tokenizer | Path | str | None = None,
    replace: bool = False,
) -> None:
    """Save a model to a folder: config.json, model.safetensors and the tokenizer's files.

    The folder is written completely or not at all.

    Args:
        model: A GPT, BERT, Transformer, RNN or TaskModel; compiled models are saved as themselves.
        path: The folder. It is created; it must not hold a model yet, unless `replace` is set.
        tokenizer: The model's tokenizer, or the path of one.
        replace: Replace the model that `save` wrote to this folder before. If the process is
            killed meanwhile, either the old or the new model can be loaded.

    Raises:
        ValueError: The folder holds other files, or the config does not describe the model.
        DiskFull: There is not enough space; what was saved before is intact.

    Example:
        >>> import qkv
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=100, context=16, width=32, depth=1, heads=4))
        >>> qkv.save(model, "saved-gpt")
        >>> sorted(file.name for file in Path("saved-gpt").iterdir())
        ['config.json', 'model.safetensors']
    """
    path = Path(path)
    model = uncompiled(model)
    refuse_adapters(model)
    check_consistent(model)
    tensors = weights_of(model)
    with_weights(model.config, tensors, "model")  # refuses what could not be loaded again
    if tokenizer is not None:
        tokenizer = checked_tokenizer(tokenizer, model.config.vocabulary)

    replace = replace and is_ours(path)
    if not replace:
        hf_folder.refuse_taken(current(path))

    # Remove what a killed process left behind.
    finish_replacing(path)
    storage.sweep(path)

    size = sum(tensor.nbytes for tensor in tensors.values())
    with storage.staging(path, size, "the model") as staged:
        hf_folder.write_json(staged / CONFIG, to_json(model.config))
        if tokenizer is not None:
            tokenizer.write(staged)

        if not replace or tokenizer is None:
            refuse_other_tokenizer(staged, path)

        checksums = hf_folder.FORMAT | {TENSORS: checksum(tensors)} | checksums_beside(staged)
        hf_folder.write_tensors(staged / SINGLE, tensors, checksums)
        replace_files(staged, path)


def load(
    path: Path | str, *, base: Path | str | None = None, allow_nonfinite: bool = False
) -> Loaded:
    """Load a model and its tokenizer, ready for use on the CPU (dropout off).

    Args:
        path: A folder that `save` or a run wrote, a folder of `transformers`, a GGUF file, the
            folder of an adapter, or smollm2 or minilm, which are packages. RUN@400 is the
            checkpoint of step 400 of a run, with the weights that were validated: averaged, if the
            run averages them.
        base: For an adapter: the model it was trained on, if it is not where the adapter names it.
            The two become one model.
        allow_nonfinite: Accept weights that are NaN or infinite, to inspect a run that diverged.

    Returns:
        The model and its tokenizer, or None for the tokenizer if there is none.

    Raises:
        ValueError: The path holds no model, or one that was damaged or changed after saving.

    Example:
        >>> import qkv
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=100, context=16, width=32, depth=1, heads=4))
        >>> qkv.save(model, "loaded-gpt")
        >>> loaded, tokenizer = qkv.load("loaded-gpt")
        >>> loaded.config == model.config
        True
    """
    path = model_path(path)
    if is_adapter(path):
        model, tokenizer = load(base_of(path, base), allow_nonfinite=allow_nonfinite)
        model = read_adapter(model, path, allow_nonfinite=allow_nonfinite)
        merge_adapters(model)
    else:
        model = load_model(path, base, allow_nonfinite=allow_nonfinite)
        tokenizer = read_tokenizer(tokenizer_path(path))

    if tokenizer is not None:
        TOKENIZERS[model] = tokenizer

    return Loaded(model.eval(), tokenizer)


def load_model(path: Path, base: Path | str | None, *, allow_nonfinite: bool) -> Model:
    """The model of a checkpoint, a GGUF file, or a folder of `transformers` or of ours."""
    if checkpoint.step_of(path) is not None:
        return load_checkpoint(path, base, allow_nonfinite=allow_nonfinite)
    if base is not None:
        raise ValueError(f"base: {path} is a whole model, not an adapter; leave the base out")
    if path.suffix.lower() == ".gguf":
        return read_gguf(path, allow_nonfinite=allow_nonfinite)

    values = hf_folder.open_config(path)
    if not is_ours(path):
        return read_folder(path, allow_nonfinite=allow_nonfinite)

    path = current(path)
    try:
        config = from_json(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from error

    # The weights, after all checksums were verified.
    weights = hf_folder.open_weights(path, allow_nonfinite=allow_nonfinite)
    metadata = hf_folder.read_metadata(path / SINGLE)
    verify_beside(path, metadata)
    tensors = {name: weights[name].clone() for name in weights}
    model = with_weights(config, tensors, weights.origin)
    verify_checksum(tensors, metadata[TENSORS], weights.origin)

    return model


# Tokenizers


def tokenizer_with(model: Model) -> Tokenizer | None:
    """The tokenizer that this model object was loaded with."""
    return TOKENIZERS.get(uncompiled(model))


def read_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer of a folder or GGUF file; None if there is none, or one of an unknown kind."""
    if not has_tokenizer(path):
        return None

    with suppress(UnknownKind):  # the model can be used without it
        return Tokenizer.read(path)

    return None


def has_tokenizer(path: Path) -> bool:
    if path.is_file():
        return True

    return any(all((path / name).exists() for name in names) for names in TOKENIZER_FILES)


def tokenizer_of(path: Path | str) -> Tokenizer:
    """The tokenizer of a saved model; ValueError with the reason if it has none."""
    path = tokenizer_path(model_path(path))
    if is_adapter(path):
        return tokenizer_of(base_of(path))

    return Tokenizer.read(path)


def tokenizer_path(path: Path) -> Path:
    """The path that a model's tokenizer is read from; for a checkpoint, the folder of its run."""
    if checkpoint.step_of(path) is not None:
        path = checkpoint.run_of(path)

    return current(path)


# Adapters and checkpoints


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter for another model, and no model."""
    return (path / peft.CONFIG).is_file() and not (current(path) / CONFIG).is_file()


def base_of(path: Path, base: Path | str | None = None) -> Path:
    """The path of an adapter's base model: `base`, or the one that the adapter names.

    A relative path in the adapter's config is looked up beside the adapter first.
    """
    name: object = base
    if base is None:
        name = hf_folder.read_json(path / peft.CONFIG).get("base_model_name_or_path")

    if not isinstance(name, str | Path) or not str(name):
        raise ValueError(
            f"{path / peft.CONFIG}: base_model_name_or_path: the adapter does not name its base; "
            f"{give_base(path)}"
        )

    base_path = path / name
    if base is not None or not base_path.exists():
        base_path = model_path(name)

    if not base_path.exists() or base_path.resolve() == path.resolve():
        raise missing_base(path, name)

    return base_path


def give_base(path: Path) -> str:
    return f"give it: qkv.load({str(path)!r}, base=...)"


def missing_base(path: Path, name: Path | str) -> ValueError:
    return ValueError(
        f"{path}: its base, the model {str(name)!r}, is not here; bring it here, or "
        f"{give_base(path)}"
    )


def load_checkpoint(path: Path, base: Path | str | None, *, allow_nonfinite: bool) -> Model:
    """A run's model after one step.

    A checkpoint holds only the weights that are trained. Frozen weights come from the run's model,
    those below adapters from the model that is fine-tuned (`base`, if it was moved).
    """
    run = checkpoint.run_of(path)
    trained = checkpoint.weights_in(path)
    if not allow_nonfinite:
        for name, tensor in trained.items():
            check_finite(tensor, f"{path}: {name}")

    described = checkpoint.description_of(run)
    if any(".adapters." in name for name in trained):
        return load_adapted(path, described, trained, base, allow_nonfinite=allow_nonfinite)
    if base is not None:
        raise ValueError(f"base: {path} is a whole model, not an adapter; leave the base out")

    frozen = Weights({}, str(run))
    if is_ours(run):
        frozen = hf_folder.open_weights(run, allow_nonfinite=allow_nonfinite)

    weights = {name: frozen[name].clone() for name in frozen if name not in trained}

    return with_weights(described.config, weights | trained, str(path))


def load_adapted(
    path: Path,
    described: checkpoint.Described,
    trained: Mapping[str, Tensor],
    base: Path | str | None,
    *,
    allow_nonfinite: bool,
) -> Model:
    """The model of a checkpoint with adapters, which are merged into the base's weights."""
    base_path = model_path(base or described.base)
    if not base_path.exists():
        raise missing_base(path, described.base)

    below = described.frozen_weights(load(base_path, allow_nonfinite=allow_nonfinite).model)
    model = adapted_model(described.config, described.adapters, below | dict(trained))

    # The exported adapter, if there is one, knows the checksum of the base it was trained on.
    adapter = checkpoint.run_of(path) / checkpoint.ADAPTER / peft.WEIGHTS
    header: Mapping[str, str] = {}
    if adapter.is_file():
        header = hf_folder.read_metadata(adapter)

    if header.get(peft.BASE) not in (None, peft.base_checksum(model)):
        raise ValueError(
            f"{path}: its adapters were trained on other weights than {base_path} has now; "
            f"{give_base(path)}"
        )

    merge_adapters(model)

    return model


def adapted_model(config: Config, adapters: AdapterConfig, weights: Mapping[str, Tensor]) -> Model:
    """A model with adapters, from the weights of both."""
    model_weights = {}
    adapter_weights = {}

    for name, tensor in weights.items():
        if ".adapters." in name:
            adapter_weights[name] = tensor
        else:
            model_weights[name] = tensor.detach().cpu().clone()

    model = with_weights(config, model_weights)
    attach_adapters(backbone_of(model), adapters)
    model.load_state_dict(adapter_weights, strict=False)

    return model
