"""A GPT that a user wrote herself, as a model of the package.

Her class is in a file of her own, and `GPT(vocabulary, context, width, depth, heads)` builds it. It
has `hidden(ids)`, `forward(ids)`, and the modules `token`, `blocks` and `norm`. With the same seed
it starts with the weights that the package's GPT starts with, parameter by parameter, so that both
have the same losses in training as long as they compute the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import GPTConfig, OwnGPTConfig
from qkv.models.gpt import GPT
from qkv.models.input_checks import check_ids, check_padding_mask
from qkv.models.model import Model
from qkv.models.variants.own_gpt_hooks import attach_hook_points
from qkv.models.without_numbers import without_numbers
from qkv.nn.cache import Cache, check_state
from qkv.nn.cache.interface import reorder_optional
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Matrix
from qkv.plugins import load_allowed, place_of

SIZES = ("vocabulary", "context", "width", "depth", "heads")
"""The arguments of her constructor."""
CHECKED = 8
"""Tokens of the text that a new model is checked with."""
TOLERANCE = 1e-4


class TokensSoFar(Cache):
    """The token ids so far: the whole state of a model that has no KV cache."""

    kind = "TokensSoFar"

    def __init__(self) -> None:
        self.ids: Int[Tensor, "B S"] | None = None

    @property
    def length(self) -> int:  # type: ignore[override]
        """Positions seen so far."""
        return 0 if self.ids is None else self.ids.shape[1]

    def followed_by(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B S"]:
        """All tokens, the new ones last; the state stays as it is."""
        return ids if self.ids is None else torch.cat([self.ids, ids], dim=1)

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        self.ids = reorder_optional(self.ids, rows)


class OwnGPT(GPT):
    """A user's own GPT: it is trained, saved, looked at and served as the package's own.

    It has no KV cache. A decode step runs the whole text again, which is slow for a long one and
    gives the same tokens.

    Args:
        config: The sizes, and the file with her class; the user must have allowed the file.

    Raises:
        ValueError: If the file may not run, has no such class, or the class is not a causal GPT
            with a tied output layer.
    """

    def __init__(self, config: OwnGPTConfig) -> None:
        Model.__init__(self)
        self.config = config
        described = torch.empty(0).is_meta  # names and shapes are wanted, and no numbers

        # Her random numbers are her own: the package's GPT draws those that count.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            gpt = own_gpt(config)

        self.stack = gpt
        self.head = None
        self.hooks = HookPoints("logits")
        attach_hook_points(gpt, config.width // config.heads)
        if not described:
            copy_weights(GPT(library_config(config)).state_dict(), gpt)
            check_own_gpt(self)

    @property
    def stacks(self) -> dict[str, Any]:
        return {"stack": self.stack}

    @property
    def uses_kv_cache(self) -> bool:
        return False

    @property
    def reads_on(self) -> bool:
        return False

    @property
    def embedding(self) -> Any:
        """Her token embedding; positions are added to it outside of any module."""
        return self.stack.token

    @property
    def output_matrix(self) -> Matrix:
        """Her token embedding, to which the output layer is tied."""
        return self.stack.token.weight

    def start(self) -> TokensSoFar:  # type: ignore[override]
        """Return the state before the first token."""
        return TokensSoFar()

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        state: Cache | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the hidden states of her GPT, which the output layer turns into logits.

        Args:
            ids: Token ids, (B, T); with a state only the new ones.
            padding_mask: True for tokens, False for padding, for all S positions so far. Her GPT
                never sees padding before a token: the tokens of a row move together first.
            documents: None: her GPT reads a row as one text.
            positions: None: her GPT counts from 0.
            state: The tokens before; it is updated in place.

        Returns:
            Hidden states, (B, T, E).

        Raises:
            ValueError: If ids or masks do not fit, or a row holds several documents.
            TypeError: If the ids are not integers, or the state belongs to another kind of model.
        """
        if documents is not None or positions is not None:
            raise ValueError(
                "documents: your own GPT reads a row as one text from position 0; "
                "leave documents and positions out"
            )

        state = check_state(state, TokensSoFar.kind)
        check_ids(ids, self.config.vocabulary, state.length, self.config.context)
        everything = ids
        if isinstance(state, TokensSoFar):
            everything = state.followed_by(ids)

        if padding_mask is None:
            hidden = self.run(everything)
        else:
            check_padding_mask(padding_mask, (everything.shape[0], everything.shape[1]))
            order = (~padding_mask).long().argsort(dim=1, stable=True)  # tokens first
            hidden = self.run(everything.gather(1, order))
            back = order.argsort(dim=1).unsqueeze(-1)  # (B, S, 1)
            hidden = hidden.gather(1, back.expand(-1, -1, hidden.shape[-1]))

        if isinstance(state, TokensSoFar):
            state.ids = everything

        return hidden[:, everything.shape[1] - ids.shape[1] :]

    def run(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T E"]:
        """Return what her `hidden` returns, a tensor of the right shape."""
        gpt: Any = self.stack
        if ids.shape[1] == 0:
            return gpt.token(ids)

        hidden = gpt.hidden(ids)
        check_shape(hidden, (*ids.shape, self.config.width), "hidden(ids)", "(B, T, E)")
        return hidden

    def decoder_hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        state: Cache,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the hidden states of new tokens, after a pass over all of them."""
        return self.hidden(ids, padding_mask=padding_mask, positions=positions, state=state)


# Her class


def own_gpt(config: OwnGPTConfig) -> Any:
    """Build her GPT from the class that the config names."""
    if config.model is None:
        raise ValueError("model: expected the file of your own GPT, such as mine.py")

    kind: Any = load_allowed(config.model, "model")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"model: {config.model} is not a class; expected a subclass of nn.Module")

    sizes = [getattr(config, name) for name in SIZES]
    expected = f"{kind.__name__}({', '.join(SIZES)})"
    try:
        inspect.signature(kind).bind(*sizes)
    except TypeError as error:
        raise ValueError(
            f"model: {kind.__name__}{inspect.signature(kind)} cannot be built; expected {expected}"
        ) from error

    try:
        gpt = kind(*sizes)
    except Exception as error:
        raise failure(f"model: {expected} cannot be built", error, config) from error

    check_parts(gpt, kind.__name__)
    return gpt


def check_parts(gpt: nn.Module, name: str) -> None:
    """Raise unless her GPT has the modules and methods that others use."""
    for part in ("token", "blocks", "norm"):
        if not isinstance(getattr(gpt, part, None), nn.Module):
            raise ValueError(f"model: {name} has no module self.{part}; the template has it")
    if not callable(getattr(gpt, "hidden", None)):
        raise ValueError(f"model: {name} has no method hidden; expected hidden(ids) -> (B, T, E)")

    parameters = {id(parameter) for parameter in gpt.parameters()}
    for key, tensor in gpt.state_dict(keep_vars=True).items():
        if id(tensor) not in parameters:
            raise ValueError(
                f"model: the buffer {key} of {name} is not a parameter; "
                "register it with persistent=False, so that it is not saved"
            )


def check_own_gpt(model: OwnGPT) -> None:
    """Raise unless her GPT gives finite logits of the right shape, is causal and tied.

    Args:
        model: A new model; it runs over a text of a few random tokens.
    """
    config = model.config
    length = min(config.context, CHECKED)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocabulary, (2, length), generator=generator)
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % config.vocabulary

    gpt: Any = model.stack
    training = gpt.training
    gpt.eval()
    try:
        with torch.no_grad():
            logits = gpt(ids)
            changed = gpt(other)
            hidden = gpt.hidden(ids)
    except Exception as error:
        raise failure("model: your GPT fails on a short text", error, config) from error
    finally:
        gpt.train(training)

    check_shape(logits, (2, length, config.vocabulary), "forward(ids)", "(B, T, V)")
    check_shape(hidden, (2, length, config.width), "hidden(ids)", "(B, T, E)")
    if not torch.isfinite(logits).all():
        raise ValueError("model: forward(ids) of your GPT gives logits that are NaN or infinite")

    difference = (logits - changed)[:, :-1].abs().amax(dim=(0, 2)) > TOLERANCE  # (T - 1,)
    if difference.any():
        position = int(difference.nonzero()[0])
        raise ValueError(
            f"model: your GPT is not causal: another token at position {length - 1} changes the "
            f"logits at position {position}; is the causal mask applied?"
        )
    if not torch.allclose(logits, hidden @ gpt.token.weight.T, atol=TOLERANCE, rtol=TOLERANCE):
        raise ValueError(
            "model: forward(ids) is not hidden(ids) times the token embeddings; expected an "
            "output layer that is tied to self.token.weight"
        )


def check_shape(value: Any, shape: tuple[int, ...], what: str, letters: str) -> None:
    """Raise unless a value of her code is a tensor of this shape."""
    if not isinstance(value, Tensor):
        raise ValueError(f"model: {what} gives {type(value).__name__}, expected a tensor {letters}")
    if tuple(value.shape) != shape:
        raise ValueError(
            f"model: {what} has shape {tuple(value.shape)}, expected {letters} = {shape}"
        )


def failure(what: str, error: Exception, config: OwnGPTConfig) -> ValueError:
    """The error of her code as a sentence, with the line it comes from."""
    file = Path(str(config.model).rpartition(":")[0])
    place, line = place_of(error, file)
    if isinstance(error, NotImplementedError) and not error.args:
        return ValueError(f"{what}: {place.name}, line {line}, is not written yet")

    return ValueError(f"{what}: {place.name}, line {line}: {type(error).__name__}: {error}")


# The weights she starts with


def library_config(config: OwnGPTConfig) -> GPTConfig:
    """The config of the package's GPT of the same sizes."""
    return GPTConfig(**{name: getattr(config, name) for name in SIZES})


def copy_weights(weights: Mapping[str, Tensor], gpt: nn.Module) -> None:
    """Copy weights of the package's GPT to her parameters of the same role and shape."""
    own = dict(gpt.named_parameters())
    with torch.no_grad():
        for name, weight in own_names(weights):
            if name in own and own[name].shape == weight.shape:
                own[name].copy_(weight)


def own_names(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights of the package's GPT under the names that they have in hers."""
    for name, weight in weights.items():
        name = name.removeprefix("embedding.").removeprefix("stack.")
        name = name.replace("attention_residual.norm", "attention_norm")
        name = name.replace("feed_forward_residual.norm", "feed_forward_norm")
        name = name.replace("norm.gain", "norm.weight")
        if ".qkv." not in name:
            yield name, weight
            continue

        for part, rows in zip(("query", "key", "value"), weight.chunk(3), strict=True):
            yield name.replace("qkv", part), rows


def unlike_the_library(model: OwnGPT) -> list[str]:
    """The parameters that only her GPT has, or only the package's: of other names or shapes."""
    with without_numbers():
        library = GPT(library_config(model.config)).state_dict()

    theirs = {(name, tuple(weight.shape)) for name, weight in own_names(library)}
    hers = {(name, tuple(weight.shape)) for name, weight in model.stack.named_parameters()}
    return sorted({name for name, _ in theirs ^ hers})
