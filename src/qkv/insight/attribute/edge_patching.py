"""Edge attribution patching: which part of the model informs which later part?

A node writes to the residual stream (the embedding, a head, a feed-forward layer), a later node
reads from it (a head's query, key or value, a feed-forward layer, the logits). The score of an edge
is the change of what the writer writes, clean less corrupted, times the gradient of the answer with
respect to what the reader alone reads (Syed et al. 2023). All edges come from one backward pass.
The scores of all edges that leave a node sum to the node's own score in attribution patching.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.attribute.residual_writers import pre_norm_stack, written_by_heads
from qkv.insight.inspect.activation_patching import (
    PatchRun,
    answer_position,
    check_kind,
    check_lengths,
    logits_at,
)
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading, ids_of
from qkv.insight.inspect.residual_norms import as_leaf
from qkv.models.model import Model
from qkv.nn.hooks import add_hook

HEAD_INPUTS = ("query", "key", "value")


class Node(NamedTuple):
    """A part of the model that writes to the residual stream or reads from it."""

    part: str
    """embedding, head or feed-forward; as a reader query, key, value, feed-forward or logits."""
    layer: int
    """-1 for the embedding; the number of layers for the logits."""
    head: int | None = None
    """The head; of keys and values that several heads share, the key head."""

    def __str__(self) -> str:
        if self.head is not None:
            return f"{self.part} {self.layer}.{self.head}"
        if self.part == "feed-forward":
            return f"{self.part} {self.layer}"

        return self.part

    @property
    def depth(self) -> int:
        """When it is computed: attention before the feed-forward layer of its block."""
        return 2 * self.layer + (self.part == "feed-forward")


class EdgeScores(NamedTuple):
    """The estimated effect of patching each edge."""

    writers: list[Node]
    readers: list[Node]
    scores: Float[Tensor, "W R"]
    """Share of the clean answer that patching the edge restores, to first order; 0 where a reader
    is not after the writer."""
    clean: float
    corrupted: float
    answer: int
    against: int | None

    def strongest(self, count: int) -> list[tuple[Node, Node, float]]:
        """The edges with the largest absolute scores."""
        flat = self.scores.flatten()
        order = flat.abs().topk(min(count, flat.numel())).indices.tolist()
        edges = []
        for index in order:
            writer, reader = divmod(index, len(self.readers))
            edges.append((self.writers[writer], self.readers[reader], float(flat[index])))

        return edges


def edge_attribution(
    model: Model,
    clean: Reading,
    corrupted: Reading,
    answer: int | None = None,
    against: int | None = None,
    *,
    place: int | None = None,
) -> EdgeScores:
    """Score every edge between two parts of a model by attribution patching.

    Args:
        model: A GPT or BERT with norms before its sublayers.
        clean: The clean prompt, from `read`.
        corrupted: A prompt with as many tokens and another answer.
        answer: The token id of the clean answer; default the likeliest token.
        against: A token id whose logit is subtracted; without it the measure is a probability.
        place: The position of the answer; default the last. A BERT needs it.

    Returns:
        The scores of all edges, and the nodes in the order of the forward pass.

    Raises:
        ValueError: If the prompts do not fit each other or the model, or the model is post-norm or
            an encoder-decoder.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> clean = insight.read(model, tokenizer, "the cat")
        >>> corrupted = insight.read(model, tokenizer, "on cat")
        >>> edges = insight.edge_attribution(model, clean, corrupted)
        >>> [str(node) for node in edges.writers]
        ['embedding', 'head 0.0', 'head 0.1', 'feed-forward 0']
    """
    if model.has_source:
        raise ValueError(
            "edges: an encoder-decoder has two residual streams; expected a GPT or a BERT"
        )

    kind = check_kind(model, "residual", None)
    pre_norm_stack(model, "edges")
    check_lengths(clean, corrupted)
    position = answer_position(model, clean, place)

    with without_dropout(model):
        run = PatchRun(model, kind, "residual", position, against)
        with torch.no_grad():
            run.read(clean, corrupted, answer)
            clean_written = written_vectors(model, ids_of(model, clean), position)

        with torch.enable_grad():
            corrupted_pass = EdgePass(run)
            gradients = corrupted_pass.read_gradients()  # (R, T, E)

    writers, readers = nodes_of(model)
    change = (clean_written - corrupted_pass.written).flatten(1).double()  # (W, T * E)
    scores = change @ gradients.flatten(1).double().T  # (W, R)
    scores = scores / (run.clean - run.corrupted)
    scores = scores.masked_fill(~later(writers, readers).to(scores.device), 0.0)

    return EdgeScores(
        writers,
        readers,
        scores.float().cpu(),
        run.clean,
        run.corrupted,
        run.answer,
        against,
    )


def nodes_of(model: Any) -> tuple[list[Node], list[Node]]:
    """The writers and the readers, in the order of the forward pass."""
    writers = [Node("embedding", -1)]
    readers = []
    blocks = model.stack.blocks
    for layer, block in enumerate(blocks):
        attention = block.attention
        writers += [Node("head", layer, head) for head in range(attention.heads)]
        writers.append(Node("feed-forward", layer))
        for part in HEAD_INPUTS:
            count = attention.heads if part == "query" else attention.kv_heads
            readers += [Node(part, layer, head) for head in range(count)]

        readers.append(Node("feed-forward", layer))

    return writers, [*readers, Node("logits", len(blocks))]


def later(writers: list[Node], readers: list[Node]) -> Bool[Tensor, "W R"]:
    """Where a reader comes after a writer; the heads of a layer do not read each other."""
    written = torch.tensor([writer.depth for writer in writers])
    read = torch.tensor([reader.depth for reader in readers])
    return written.unsqueeze(1) < read


def written_vectors(
    model: Any, arguments: dict[str, Tensor], position: int
) -> Float[Tensor, "W T E"]:
    """What each writer adds to the residual stream of one prompt."""
    names = write_points(model)
    with capture_required(model.stack, names) as values:
        logits_at(model, arguments, position)

    return stack_writers(model, values)


def write_points(model: Any) -> list[str]:
    """The hook points from which the vectors of all writers are known."""
    names = []
    for layer in range(len(model.stack.blocks)):
        for point in ("before", "attention.heads", "between", "after"):
            names.append(f"blocks.{layer}.{point}")

    return names


def stack_writers(model: Any, values: dict[str, Tensor]) -> Float[Tensor, "W T E"]:
    """The vectors of all writers from the captured values; biases are the same in both prompts."""
    vectors = [values["blocks.0.before"][0].detach()]
    for layer, block in enumerate(model.stack.blocks):
        name = f"blocks.{layer}"
        heads = values[f"{name}.attention.heads"][0].detach()  # (H, T, D)
        written, _ = written_by_heads(block.attention, heads)
        vectors += list(written.detach())
        vectors.append((values[f"{name}.after"] - values[f"{name}.between"])[0].detach())

    return torch.stack(vectors)


class EdgePass:
    """The corrupted prompt with the gradients of the measure at the inputs of all readers."""

    def __init__(self, run: PatchRun) -> None:
        self.model: Any = run.model
        blocks = self.model.stack.blocks
        self.projections: dict[int, Tensor] = {}
        handles = []
        for layer, block in enumerate(blocks):
            keep = partial(self.keep_projection, layer)
            handles.append(block.attention.qkv.register_forward_hook(keep))

        try:
            with (
                add_hook(self.model.stack, "blocks.0.before", as_leaf),
                capture_required(self.model.stack, write_points(self.model)) as values,
            ):
                logits = logits_at(self.model, run.arguments, run.position)
        finally:
            for handle in handles:
                handle.remove()

        self.values = values
        with torch.no_grad():
            self.written = stack_writers(self.model, values)

        afters = [values[f"blocks.{layer}.after"] for layer in range(len(blocks))]
        projected = [self.projections[layer] for layer in range(len(blocks))]
        found = torch.autograd.grad(
            run.measure(logits).sum(), [*afters, *projected], materialize_grads=True
        )
        self.after_gradients = found[: len(blocks)]
        self.projection_gradients = found[len(blocks) :]

    def keep_projection(self, layer: int, module: Any, inputs: Any, output: Tensor) -> None:
        """Module hook: keep the queries, keys and values of a layer before rotary positions."""
        self.projections[layer] = output

    def read_gradients(self) -> Float[Tensor, "R T E"]:
        """The gradient of the measure with respect to what each reader reads."""
        parts = []
        for layer, block in enumerate(self.model.stack.blocks):
            parts.append(self.attention_inputs(layer, block))
            parts.append(self.feed_forward_input(layer, block))

        parts.append(self.after_gradients[-1].detach())

        return torch.cat(parts)

    def attention_inputs(self, layer: int, block: Any) -> Float[Tensor, "N T E"]:
        """Backward through the projections and the norm, one copy of the input for each reader."""
        x = self.values[f"blocks.{layer}.before"][0].detach()  # (T, E)
        gradient = self.projection_gradients[layer][0]  # (T, (H + 2K) * D)
        readers = gradient.shape[-1] // block.attention.head_width
        copies = x.expand(readers, -1, -1).clone().requires_grad_()
        projected = block.attention.qkv(block.attention_residual.norm(copies))
        alone = gradient.unflatten(-1, (readers, -1)).transpose(0, 1)  # (N, T, D)
        chosen = projected.unflatten(-1, (readers, -1))  # (N, T, N, D)
        own = torch.arange(readers, device=x.device)
        (found,) = torch.autograd.grad(chosen[own, :, own], copies, alone)

        return found

    def feed_forward_input(self, layer: int, block: Any) -> Float[Tensor, "1 T E"]:
        """Backward through a feed-forward layer and its norm."""
        x = self.values[f"blocks.{layer}.between"].detach().requires_grad_()
        y = block.feed_forward(block.feed_forward_residual.norm(x))
        (found,) = torch.autograd.grad(y, x, self.after_gradients[layer])

        return found
