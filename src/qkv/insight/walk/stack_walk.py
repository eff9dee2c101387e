"""Record a stack of blocks in one forward pass: what each part reads and adds to the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.insight.walk.head_lens import norm_placement
from qkv.models.model import Model, backbone_of
from qkv.models.variants.own_gpt import OwnGPT

PARTS = ("attention", "cross_attention", "feed_forward")
"""The modules of a block that add to the residual stream, in their order."""


class AddedPart(NamedTuple):
    """One addition to the residual stream: by attention, cross-attention or feed-forward."""

    name: str
    """A name of PARTS, or `block` for a block of a user's own whose parts do not add up."""
    before: Float[Tensor, "T E"]
    """The residual stream."""
    read: Float[Tensor, "T E"] | None
    """What the part reads: the stream, after the norm of a block that norms before."""
    added: Float[Tensor, "T E"]
    after: Float[Tensor, "T E"]
    """The sum of stream and addition, after the norm of a block that norms after."""
    heads: Float[Tensor, "H T"] | None = None
    """The length of what each head of an attention adds, without the bias."""


class EmbeddingWalk(NamedTuple):
    """How a token became a vector."""

    token: Float[Tensor, "T N"]
    """The token embedding, multiplied by sqrt(E) where the model does so."""
    position: Float[Tensor, "T P"] | None
    """The vector of the position, where one is joined to the token."""
    segment: Float[Tensor, "T E"] | None
    """The vector of a BERT's segment."""
    join: str
    """How token and position become one vector: sum, product or concatenate."""
    normed: bool
    """Whether a norm follows."""
    output: Float[Tensor, "T E"]
    """The residual stream before the first block."""


class StackWalk(NamedTuple):
    """The walk of a text through one stack of blocks."""

    name: str
    """The name of the stack: stack, encoder or decoder."""
    kind: str
    """The kind of its self-attention: self, encoder or decoder."""
    norm: str | None
    """Whether a block norms before its parts or after each addition; None if that is unknown."""
    embedding: EmbeddingWalk
    blocks: list[list[AddedPart]]
    ends_with_norm: bool
    output: Float[Tensor, "T E"]
    """After the last block, and the last norm."""

    @property
    def stream(self) -> list[Float[Tensor, "T E"]]:
        """The residual stream: before the first block, and after each."""
        return [self.embedding.output, *(block[-1].after for block in self.blocks)]


class ModuleRecorder:
    """Keeps the inputs and outputs of modules while they run, by PyTorch's hooks."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.inputs: dict[nn.Module, list[Any]] = {}
        self.outputs: dict[nn.Module, list[Any]] = {}

    def add(self, module: Any) -> None:
        """Record a module; anything else is ignored."""
        if isinstance(module, nn.Module) and module not in self.inputs:
            self.modules.append(module)
            self.inputs[module] = []
            self.outputs[module] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward pass that runs while the context is open."""
        handles = [module.register_forward_hook(self.keep) for module in self.modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.inputs[module].append(inputs[0] if inputs else None)
        self.outputs[module].append(output[0] if isinstance(output, tuple) else output)

    def read(self, module: Any) -> Tensor | None:
        """What the module read in its last call."""
        values = self.inputs.get(module) or [None]
        return None if values[-1] is None else values[-1][0]

    def made(self, module: Any, call: int = -1) -> Tensor | None:
        """What the module returned, by default in its last call."""
        values = self.outputs.get(module)
        return values[call][0] if values else None


class StackRecorder:
    """Records one stack of a model, with the embedding below it."""

    def __init__(self, model: Model, name: str, recorder: ModuleRecorder) -> None:
        self.model = model
        self.name = name
        self.stack: Any = model.stacks[name]
        self.recorder = recorder
        self.embedding = self.embedding_module()

        recorder.add(self.stack.norm)
        for part in ("token", "position", "segment"):
            recorder.add(getattr(self.embedding, part, None))

        for block in self.stack.blocks:
            recorder.add(block)
            for part in PARTS:
                module = getattr(block, part, None)
                recorder.add(module)
                recorder.add(getattr(block, f"{part}_residual", None))
                recorder.add(getattr(module, "output", None))

    def embedding_module(self) -> Any:
        """The module with the modules token and position; for a source perhaps one of its own."""
        backbone: Any = backbone_of(self.model)
        if isinstance(backbone, OwnGPT):
            return backbone.stack

        own = getattr(backbone, "source_embedding", None)
        if self.name == "encoder" and own is not None:
            return own

        return backbone.embedding

    def walk(self, call: int) -> StackWalk:
        """The walk after the forward pass; `call` is that of the embedding: 0, or 1 if shared."""
        blocks = [self.parts_of(block) for block in self.stack.blocks]
        norm: str | None = norm_placement(self.model)
        if any(parts[0].name == "block" for parts in blocks):
            norm = None

        output = blocks[-1][-1].after
        if self.stack.norm is not None:
            output = required(self.recorder.made(self.stack.norm))

        return StackWalk(
            self.name,
            self.name if self.model.has_source else "self",
            norm,
            self.embedding_walk(call, blocks[0][0].before),
            blocks,
            self.stack.norm is not None,
            output,
        )

    def embedding_walk(self, call: int, output: Tensor) -> EmbeddingWalk:
        """The parts of the embedding that modules return."""
        recorder = self.recorder
        embedding = self.embedding
        token = required(recorder.made(embedding.token, call)) * getattr(embedding, "scale", 1.0)
        position = recorder.made(getattr(embedding, "position", None), call)
        if position is not None and position.dim() == 1:
            position = recorder.outputs[embedding.position][call]  # (T, E) of a user's own GPT

        own = isinstance(backbone_of(self.model), OwnGPT)  # its norm follows the last block
        return EmbeddingWalk(
            token,
            position,
            recorder.made(getattr(embedding, "segment", None), call),
            getattr(embedding, "join", "sum"),
            not own and embedding.norm is not None,
            output,
        )

    def parts_of(self, block: Any) -> list[AddedPart]:
        """What the parts of a block read and added."""
        if getattr(block, "attention_residual", None) is None:
            return self.own_parts(block)

        parts = []
        for name in PARTS:
            module = getattr(block, name, None)
            if module is None:
                continue

            residual = getattr(block, f"{name}_residual")
            parts.append(
                AddedPart(
                    name,
                    required(self.recorder.read(residual)),
                    self.recorder.read(module),
                    required(self.recorder.made(module)),
                    required(self.recorder.made(residual)),
                    self.head_lengths(module),
                )
            )

        return parts

    def own_parts(self, block: Any) -> list[AddedPart]:
        """The parts of a block of a user's own, if they add up; else the block as one part."""
        recorder = self.recorder
        before = stream = required(recorder.read(block))
        after = required(recorder.made(block))
        parts = []
        for name in PARTS:
            module = getattr(block, name, None)
            added = recorder.made(module)
            if added is None or added.shape != stream.shape:
                continue

            heads = self.head_lengths(module)
            parts.append(
                AddedPart(name, stream, recorder.read(module), added, stream + added, heads)
            )
            stream = stream + added

        if len(parts) == 2 and torch.allclose(stream, after, rtol=1e-3, atol=1e-3):
            parts[-1] = parts[-1]._replace(after=after)
            return parts

        return [AddedPart("block", before, None, after - before, after)]

    def head_lengths(self, module: Any) -> Float[Tensor, "H T"] | None:
        """The length of what each head adds: its output through its slice of W_O."""
        projection = getattr(module, "output", None)
        merged = self.recorder.read(projection)  # (T, H D)
        if merged is None or not isinstance(projection, nn.Linear):
            return None

        heads = backbone_of(self.model).config.heads
        width = merged.shape[-1] // heads
        alone = merged.new_zeros(heads + 1, *merged.shape)  # the last one is of no head: the bias
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            alone[head, :, own] = merged[:, own]

        written = projection(alone)
        return (written[:-1] - written[-1]).float().norm(dim=-1)


def required(value: Tensor | None) -> Tensor:
    """The value; an error if a module of a user's own did not run or hides it."""
    if value is None:
        raise ValueError(
            "model_walk: a block of this model does not call the modules that it consists of"
        )

    return value


def recorded_stacks(
    model: Model, recorder: ModuleRecorder
) -> tuple[Sequence[StackRecorder], Sequence[int]]:
    """A recorder for each stack, and the number of the embedding's call for it."""
    stacks = [StackRecorder(model, name, recorder) for name in model.stacks]
    calls = []
    for number, stack in enumerate(stacks):
        earlier = [other for other in stacks[:number] if other.embedding is stack.embedding]
        calls.append(len(earlier))

    return stacks, calls
