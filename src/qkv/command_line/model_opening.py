"""Open a model for a command: load it, check its family, move it to its device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from rich.console import Console
from rich.text import Text

from qkv import artifact
from qkv.models import BERT, GPT, RNN, RNNLanguageModel, TaskModel, Transformer
from qkv.models.model import Model
from qkv.models.variants.own_gpt import OwnGPT
from qkv.text import Tokenizer
from qkv.training.systems.distributed import device_named

Precision = Literal["float32", "bf16"]
ModelName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
PURPOSE: dict[type[Model], str] = {
    GPT: "a GPT continues text: use qkv generate, or qkv chat",
    OwnGPT: "a GPT continues text: use qkv generate, or qkv chat",
    BERT: "a BERT fills masks: use qkv fill",
    Transformer: "an encoder-decoder Transformer translates: use qkv translate",
    RNNLanguageModel: "an RNN language model continues text: use qkv generate",
    RNN: "an encoder-decoder RNN translates: use qkv translate",
    TaskModel: "a fine-tuned model answers with its task head: use qkv classify, or qkv tag",
}
NOT_FINETUNED = "it has no task head; qkv finetune puts one on a GPT or a BERT"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The device and the number format that a command computes with."""

    device: str | None = None
    """cpu, cuda, cuda:1 ... (default: the GPU if there is one)"""
    precision: Precision | None = None
    """float32 or bf16 (default: bf16 for a GPT on a GPU, otherwise float32)"""
    int8: bool = False
    """On a CPU: weights of eight bits, which reads a quarter of the memory per token."""
    int4: bool = False
    """On a CPU: weights of four bits in groups of 32, which loses a little quality."""

    @property
    def quantized(self) -> bool:
        """True if the weights have few bits."""
        return self.int8 or self.int4


DEFAULT_MACHINE = Machine()


class Opened(NamedTuple):
    """A model on its device, and its tokenizer."""

    model: Any
    """A model of one of the families that were asked for."""
    tokenizer: Tokenizer


def open_model(name: str, machine: Machine, *families: type[Model]) -> Opened:
    """Load a model of one of these families with its tokenizer, with a status line meanwhile."""
    with Console(stderr=True).status(Text(f"reading {name} ...")):
        return load_on_device(name, machine, *families)


def open_float32(name: str, machine: Machine, *families: type[Model]) -> Opened:
    """As `open_model`, in float32 unless the user chose a precision: for small differences."""
    precise = replace(machine, precision=machine.precision or "float32")
    return open_model(name, precise, *families)


def load_on_device(name: str, machine: Machine, *families: type[Model]) -> Opened:
    """Load a model onto its device without a status line; without `families` any family passes."""
    device = device_of(machine)
    model, tokenizer = artifact.load(name)
    check_family(name, model, families)

    tokenizer = tokenizer or artifact.tokenizer_of(name)
    vocabulary = model.config.vocabulary
    if tokenizer.vocabulary > vocabulary:
        raise ValueError(
            f"{name}: its tokenizer has {tokenizer.vocabulary:,} tokens, the model only "
            f"{vocabulary:,}"
        )

    model = quantize(model, machine)

    return Opened(model.to(device, dtype_of(machine, model, device)), tokenizer)


def quantize(model: Model, machine: Machine) -> Model:
    """The model with the weights that the options ask for."""
    if not machine.quantized:
        return model

    from qkv.models.variants.quantize import int4, int8

    return int4(model) if machine.int4 else int8(model)


def check_family(name: str, model: Model, families: tuple[type[Model], ...]) -> None:
    """Refuse a model of another family, and name the command that takes it."""
    if not families or isinstance(model, families):
        return
    if families == (TaskModel,):
        raise ValueError(f"{name}: {NOT_FINETUNED}")

    purpose = PURPOSE.get(type(model), "its family is for another command")
    raise ValueError(f"{name}: {purpose}")


def dtype_of(machine: Machine, model: Model, device: torch.device) -> torch.dtype:
    """bf16 if the user chooses it, and by default for a GPT on a GPU."""
    on_gpu = device.type == "cuda" and model.predicts == "next"
    if machine.precision == "bf16" or (on_gpu and machine.precision is None):
        return torch.bfloat16

    return torch.float32


def device_of(machine: Machine) -> torch.device:
    """The device; ValueError if it cannot compute in this precision."""
    device = device_named(machine.device)
    if machine.precision == "bf16" and device.type == "cpu":
        raise ValueError("precision: bf16 is for GPUs; expected float32 on a CPU")
    if machine.int8 and machine.int4:
        raise ValueError("int4: weights have eight bits or four; leave out int8 or int4")
    if machine.int8 and device.type != "cpu":
        raise ValueError(
            f"int8: weights of eight bits are for CPUs, not for {device.type}; leave it out"
        )
    if machine.int4 and device.type != "cpu":
        raise ValueError(
            f"int4: weights of four bits are for CPUs, not for {device.type}; leave it out"
        )

    return device
