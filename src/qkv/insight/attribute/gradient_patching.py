"""Attribution patching: all cells of activation patching from one backward pass.

Patching one activation changes the answer by about (clean - corrupted) x gradient, to first order.
The gradient of the answer in the corrupted run is known for every activation after one backward
pass, so that one forward pass for each cell becomes two forward and one backward pass in all
(Nanda 2023). It is an estimate: `patch` is exact.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.activation_patching import (
    PatchResult,
    PatchRun,
    PatchSite,
    answer_position,
    check_kind,
    check_lengths,
    logits_at,
)
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading
from qkv.insight.inspect.residual_norms import as_leaf
from qkv.models.model import Model
from qkv.models.sites import stack_with
from qkv.nn.hooks import CapturedValues, add_hook


def attribution_patch(
    model: Model,
    clean: Reading,
    corrupted: Reading,
    answer: int | None = None,
    against: int | None = None,
    at: PatchSite = "residual",
    *,
    place: int | None = None,
    kind: str | None = None,
) -> PatchResult:
    """Estimate what `patch` measures with one backward pass instead of one forward pass a cell.

    Args:
        model: A GPT, BERT or translator.
        clean: The clean prompt, from `read`.
        corrupted: A prompt with as many tokens and another answer.
        answer: The token id of the clean answer; default the likeliest token.
        against: A token id whose logit is subtracted; without it the measure is a probability.
        at: The residual stream, the feed-forward hidden layer, or the output of a head.
        place: The position of the answer; default the last. A BERT needs it.
        kind: For a translator encoder (default), decoder, or with heads cross.

    Returns:
        The estimated share of the answer by layer and token, or by layer and head.

    Raises:
        ValueError: If the prompts do not fit each other or the model, or have the same answer.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> clean = insight.read(model, tokenizer, "the cat")
        >>> corrupted = insight.read(model, tokenizer, "on cat")
        >>> insight.attribution_patch(model, clean, corrupted, at="heads").restored.shape
        torch.Size([1, 2])
    """
    kind = check_kind(model, at, kind)
    check_lengths(clean, corrupted)
    position = answer_position(model, clean, place)

    with without_dropout(model):
        run = PatchRun(model, kind, at, position, against)
        with torch.no_grad():
            run.read(clean, corrupted, answer)

        values, gradients = corrupted_gradients(run, run.names)

    layers = []
    for name in run.names:
        change = run.clean_values[name] - values[name]
        effect = (change * gradients[name])[0].double()  # (T, E), (H, T, D) or (T, F)
        layers.append(effect.flatten(1).sum(1).cpu())

    return run.result([run.corrupted + effect for effect in layers])


def corrupted_gradients(
    run: PatchRun, names: list[str]
) -> tuple[CapturedValues, dict[str, Float[Tensor, "..."]]]:
    """The values at these points in the corrupted run, and the gradients of the measure there.

    A value that the measure does not depend on has the gradient 0.
    """
    stack = stack_with(run.model, run.kind)
    with (
        torch.enable_grad(),
        add_hook(stack, "blocks.0.before", as_leaf),
        capture_required(stack, names) as values,
    ):
        logits = logits_at(run.model, run.arguments, run.position)
        tensors = [values[name] for name in names]
        found = torch.autograd.grad(run.measure(logits).sum(), tensors, materialize_grads=True)

    detached = CapturedValues()
    for name in names:
        detached[name] = values[name].detach()

    return detached, dict(zip(names, found, strict=True))
