"""The tuned lens: what the model would predict after each layer, through a trained translator.

The logit lens applies the output layer to the residual stream of an earlier layer, which may lie in
another basis. The tuned lens first applies x + A x + b, trained for this layer so that its
prediction comes close to the model's own (Belrose et al. 2023). With A = 0 and b = 0 it is the
logit lens.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from qkv import storage
from qkv.generation.fill import Guess
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.logit_lens import check_lens, residuals, top_tokens
from qkv.insight.inspect.model_input import Reading, hidden
from qkv.models.model import Model, backbone_of
from qkv.models.sites import output_stack
from qkv.text.tokenizer import Tokenizer


class TunedLens(nn.Module):
    """A translator for the embedding and for each layer but the last, which needs none."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(layers, width, width))
        self.bias = nn.Parameter(torch.zeros(layers, width))

    @classmethod
    def of(cls, model: Model) -> TunedLens:
        """The lens of a model before training, which equals the logit lens.

        Raises:
            ValueError: If the model is an RNN or predicts no tokens.
        """
        check_lens(model, 1)
        named_stack = output_stack(model)
        if named_stack is None:
            raise ValueError("lens: an RNN has no residual stream; expected another model")

        return cls(len(named_stack[1].blocks), backbone_of(model).config.width)

    def translate(self, x: Float[Tensor, "*n E"], layer: int) -> Float[Tensor, "*n E"]:
        """The residual stream as the last layer would have it; 0 is the embedding."""
        if layer == len(self.matrix):
            return x

        matrix, bias = self.matrix[layer].to(x), self.bias[layer].to(x)
        return x + x @ matrix.T + bias

    def check_fits(self, model: Model) -> None:
        """Raise if the lens belongs to a model of another size."""
        expected = TunedLens.of(model).matrix.shape[:2]
        if self.matrix.shape[:2] != expected:
            layers, width = self.matrix.shape[:2]
            raise ValueError(
                f"lens: it has {layers} layers of width {width}, the model {expected[0]} of width "
                f"{expected[1]}; expected the lens of this model"
            )

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        tensors = {name: value.cpu().contiguous() for name, value in self.state_dict().items()}
        content = save(tensors, {"tuned_lens": json.dumps(1)})
        with storage.replacing(path, len(content)) as staged:
            staged.write_bytes(content)

    @classmethod
    def load(cls, path: Path | str) -> TunedLens:
        """Read a file that `save` has written.

        Raises:
            ValueError: If it is no such file.
        """
        storage.check_regular(Path(path))
        try:
            with safe_open(path, "pt") as file:
                known = "tuned_lens" in (file.metadata() or {})
                weights = {name: file.get_tensor(name) for name in ("matrix", "bias")}
        except SafetensorError:
            known = False

        if not known:
            raise ValueError(f"{path}: expected a tuned lens that qkv lens has written")

        lens = cls(*weights["bias"].shape)
        lens.load_state_dict(weights)
        return lens


def lens_logits(
    model: Model, lens: TunedLens, x: Float[Tensor, "*n E"], layer: int
) -> Float[Tensor, "*n V"]:
    """The logits of the residual stream after a layer through the lens; 0 is the embedding."""
    return backbone_of(model).logits(last_norm(model, lens.translate(x, layer)))


def last_norm(model: Model, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
    """The final norm of a stack, if it has one."""
    named_stack = output_stack(model)
    assert named_stack is not None
    norm = named_stack[1].norm

    return x if norm is None else norm(x)


def tuned_lens(
    model: Model, tokenizer: Tokenizer, reading: Reading, lens: TunedLens, *, top: int = 5
) -> list[list[list[Guess]]]:
    """The likeliest tokens after every layer, through the lens.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        reading: The text, from `read`.
        lens: The lens of the model, from `train_lens` or a file.
        top: The number of tokens at each position.

    Returns:
        Guesses by layer, position and rank, as from `logit_lens`: first the embedding, last the
        model's own predictions.

    Raises:
        ValueError: If top is below 1, the model is an RNN or predicts no tokens, or the lens
            belongs to another model.

    Example:
        >>> from qkv import insight, models, text
        >>> from qkv.insight.lenses.tuned_lens import TunedLens
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat")
        >>> layers = insight.tuned_lens(model, tokenizer, reading, TunedLens.of(model))
        >>> layers == insight.logit_lens(model, tokenizer, reading)
        True
    """
    check_lens(model, top)
    lens.check_fits(model)
    with torch.no_grad(), without_dropout(model):
        with residuals(model) as captured:
            hidden(model, reading)

        layers = []
        for layer, residual in enumerate(captured.values()):
            vectors = last_norm(model, lens.translate(residual[0], layer))
            layers.append(top_tokens(model, tokenizer, vectors, top))

    return layers
