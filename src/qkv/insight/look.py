"""`look`: attention of every layer and head, next tokens, logit lens and norms for one text."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from qkv import artifact, storage
from qkv.generation.fill import Guess
from qkv.insight.attribute.logit_attribution import LogitParts, can_split_logits, split_logits
from qkv.insight.inspect import look_data
from qkv.insight.inspect.attribution import attribution as compute_attribution
from qkv.insight.inspect.capture import CapturedAttention, capture_attention
from qkv.insight.inspect.logit_lens import logit_lens, makes_predictions, next_tokens
from qkv.insight.inspect.look_data import LookData
from qkv.insight.inspect.model_input import Reading, leading_spaces, read
from qkv.insight.inspect.residual_norms import Norms, residual_norms
from qkv.insight.render.page import page
from qkv.insight.render.story_file import Story, read_story
from qkv.insight.render.views import ENDINGS, Heads, View, ViewChoice
from qkv.insight.walk.attention_record import site_named
from qkv.insight.walk.head_walk import HeadSite, HeadWalk, counted, walk_heads
from qkv.insight.walk.model_walk import (
    MODEL_WALK_MAX_TOKENS,
    LayerGuesses,
    ModelWalk,
    walk_model,
)
from qkv.insight.walk.walk_choice import WALK_MAX_TOKENS, affordable, walks_first
from qkv.models.model import Model, backbone_of
from qkv.models.sites import attends, attention_sites, predicts_tokens
from qkv.text.tokenizer import Tokenizer

FORMATS = (".html", *ENDINGS, ".safetensors")


class Look(LookData):
    """What a model does with a text. A notebook displays it; `save` writes a page or a picture.

    The fields are those of `LookData`: attention, next, lens, norms, attribution, walks ...

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> insight.look(model, "the cat sat", tokenizer=tokenizer)
        Look('GPT', 3 tokens, self (1 layers of 2 heads))
    """

    def save(
        self,
        path: Path | str,
        *,
        view: View | None = None,
        kind: str | None = None,
        layer: int | None = None,
        head: Heads = None,
        words: bool = False,
        token: int | None = None,
        without_first: bool = False,
        against: LookData | None = None,
        story: Story | Path | str | None = None,
    ) -> Path:
        """Write a page (.html), one view as a picture (.png, .svg, .pdf), or the weights.

        Args:
            path: The file; its ending determines the format (.safetensors for the weights).
            view: The view to draw (default head), or the one a page opens with.
            kind: encoder, decoder or cross attention of a translator.
            layer: The layer, counted from 0 (default 0).
            head: One head or several, counted from 0; default the mean of all.
            words: Join the tokens of a word.
            token: The token that is chosen when a page opens, counted from 0.
            without_first: Leave out the first token and special tokens, and rescale the rest.
            against: A look of another model at the same tokens, for a page with both.
            story: A file with states and captions, which a page walks through.

        Returns:
            The path.

        Raises:
            ValueError: If the ending is unknown, or the look has no such view, layer or head.
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending not in FORMATS:
            raise ValueError(f"out: expected the name of a {', '.join(FORMATS)} file, not {path}")
        if ending == ".safetensors":
            return self.write_weights(path)

        choice = ViewChoice(
            view=view,
            kind=kind,
            layer=layer,
            head=head,
            words=words,
            token=token,
            without_first=without_first,
        )
        if isinstance(story, str | Path):
            story = read_story(story)
        if ending == ".html":
            storage.write_text(path, page(self, choice, against, story))
            return path
        if against is not None:
            raise ValueError("against: two models are shown on a page; expected a .html file")
        if story is not None:
            raise ValueError("story: a page tells a story; expected a .html file")

        # Imports matplotlib, which takes long.
        from qkv.insight.render.figures import figure_style, look_figure

        return figure_style.save(lambda: look_figure.draw(self, choice), path, "out")

    def write_weights(self, path: Path) -> Path:
        """Write the attention weights as safetensors: `self.3` is (H, T, S) of layer 3.

        The metadata of the file has the tokens as JSON lists.
        """
        tensors = {}
        for attention in self.attention:
            for layer, weights in attention.layers.items():
                tensors[f"{attention.kind}.{layer}"] = weights.contiguous()

        reading = self.reading
        tokens = {"text": json.dumps(reading.text.tokens)}
        if reading.source is not None:
            tokens["source"] = json.dumps(reading.source.tokens)
        if reading.chosen is not None:
            tokens["chosen"] = json.dumps(reading.chosen.tokens)

        size = sum(tensor.nbytes for tensor in tensors.values())
        with storage.replacing(path, size) as staged:
            save_file(tensors, staged, tokens)

        return path

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(page(self))}" title="attention" '
            'style="width: 100%; height: 720px; border: 0"></iframe>'
        )


def look(
    model: Model | artifact.Loaded | str | Path,
    *texts: str,
    tokenizer: Tokenizer | None = None,
    source: str | None = None,
    target: str | None = None,
    reading: Reading | None = None,
    layers: Collection[int] | None = None,
    at_least: Collection[int] = (),
    name: str | None = None,
    attention: bool = True,
    lens: bool | None = None,
    norms: bool | None = None,
    attribution: bool | None = False,
    walks: bool | None = None,
    walked: Sequence[HeadSite] = (),
    model_walk: bool | None = None,
) -> Look:
    """Run a text through a model, and capture what happens inside.

    Args:
        model: What `qkv.load` returns, a model alone, or a name or path that `qkv.load` accepts.
        texts: One text; a BERT takes one or two, a translator its source.
        tokenizer: The tokenizer of a model that was not loaded with `qkv.load`.
        source: The source of a translator.
        target: The target of a translator; by default its own translation.
        reading: The tokens, from `qkv.insight.read`, instead of texts.
        layers: The layers whose attention is kept; default all, or `at_least` for a long text.
        at_least: The layers that are kept for a long text; default the first.
        name: The name of the model in titles.
        attention: False captures no weights, for attention without the usual hook points.
        lens: Compute the logit lens; None does so for a text of up to 256 tokens.
        norms: Compute the norms; None does so for a text of up to 1,024 tokens.
        attribution: Compute gradient x input; None does so for a text of up to 48 tokens.
        walks: Walk the most telling heads; None does so for a text of up to 48 tokens.
        walked: Heads to walk in any case: kind (or None), layer and head of each.
        model_walk: Walk through the whole model; None does so for a text of up to 48 tokens.

    Returns:
        A `Look`; a notebook displays it, and `save` writes it to a file.

    Raises:
        ValueError: If the tokenizer or the text is missing, or the text is too long.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> insight.look(model, "the cat sat", tokenizer=tokenizer).of("self").layers[0].shape
        torch.Size([2, 3, 3])
    """
    title, model, tokenizer = opened(model, tokenizer)
    if reading is None:
        reading = read(model, tokenizer, *texts, source=source, target=target)

    check_memory(model, reading)
    captured = []
    if attention and attends(model):  # an RNN may have no attention
        kept = kept_layers(model, reading, layers, at_least)
        captured = capture_attention(model, reading, layers=kept)

    by_layer, predictions = predictions_of(model, tokenizer, reading, lens)
    gradients = gradients_of(model, reading, norms, attribution)
    bidirectional = not (model.is_causal or model.has_source)
    heads = heads_to_walk(model, reading, captured, walks, walked)

    return Look(
        name or title,
        reading,
        captured,
        predictions,
        by_layer,
        *gradients,
        bidirectional,
        walks=walks_of(model, tokenizer, reading, heads, required=bool(walks or walked)),
        parts=parts_of(model, reading, explained=gradients[1] is not None),
        texts=given_texts(tokenizer, reading, texts, source, target),
        leading_spaces=leading_spaces(tokenizer, shown_ids(reading, by_layer or [predictions])),
        model_walk=model_walk_of(model, tokenizer, reading, by_layer, model_walk),
    )


def opened(
    model: Model | artifact.Loaded | str | Path, tokenizer: Tokenizer | None
) -> tuple[str, Model, Tokenizer]:
    """The title of a model (its name or class), the model, loaded if need be, and its tokenizer."""
    name = None
    if isinstance(model, str | Path):
        name = storage.last_part(str(model))
        model = artifact.load(model)

    if isinstance(model, tuple):
        model, loaded = model
        tokenizer = tokenizer or loaded

    tokenizer = tokenizer or artifact.tokenizer_with(model)
    if tokenizer is None:
        raise ValueError(
            "tokenizer: expected the one that belongs to the model; qkv.load gives both"
        )

    return name or type(model).__name__, model, tokenizer


# The text as it was given


def given_texts(
    tokenizer: Tokenizer,
    reading: Reading,
    texts: tuple[str, ...],
    source: str | None,
    target: str | None,
) -> tuple[str, ...]:
    """The texts as given, with the translation that the model made if no target is given."""
    if reading.source is None or not (source or texts):
        return texts
    if target is None:
        target = tokenizer.decode(reading.text.ids[1:])

    return source or texts[0], target


def shown_ids(reading: Reading, predictions: Sequence[list[list[Guess]] | None]) -> set[int]:
    """The ids of all tokens that a look shows: those of its texts, and all guesses."""
    ids: set[int] = set()
    for side in (reading.text, reading.source, reading.chosen):
        if side is not None:
            ids.update(side.ids)

    for layer in predictions:
        for guesses in layer or ():
            ids.update(guess.id for guess in guesses)

    return ids


# The parts of a look


def predictions_of(
    model: Model, tokenizer: Tokenizer, reading: Reading, lens: bool | None
) -> tuple[list[list[list[Guess]]] | None, list[list[Guess]] | None]:
    """The logit lens, if it is wanted, and the likeliest tokens at each position."""
    if not predicts_tokens(model):
        return None, None
    if not is_wanted(lens, reading, look_data.LENS_MAX_TOKENS):
        return None, next_tokens(model, tokenizer, reading)

    by_layer = logit_lens(model, tokenizer, reading)
    return by_layer, by_layer[-1]


def gradients_of(
    model: Model, reading: Reading, norms: bool | None, attribution: bool | None
) -> tuple[Norms | None, Float[Tensor, "T S"] | None]:
    """Norms and attribution, if they are wanted."""
    norm_values = shares = None
    if model.stacks and is_wanted(norms, reading, look_data.NORMS_MAX_TOKENS):
        norm_values = residual_norms(model, reading)

    # Requested for a model without predictions, attribution is an error.
    most = look_data.ATTRIBUTION_MAX_TOKENS if makes_predictions(model) else 0
    if is_wanted(attribution, reading, most):
        shares = compute_attribution(model, reading)

    return norm_values, shares


def parts_of(model: Model, reading: Reading, explained: bool) -> list[LogitParts] | None:
    """The parts of each position's logit, beside an attribution, if the model is such a sum."""
    if not explained or not can_split_logits(model):
        return None

    return split_logits(model, reading, range(len(reading.text.ids)))


def heads_to_walk(
    model: Model,
    reading: Reading,
    attention: Sequence[CapturedAttention],
    walks: bool | None,
    walked: Sequence[HeadSite],
) -> list[HeadSite]:
    """The heads whose walks a look has: those that are asked for, then the most telling ones."""
    names: dict[HeadSite, None] = {}
    for kind, layer, head in walked:
        site = site_named(model, kind)
        name = (site.kind, counted("layer", layer, site.depth), counted("head", head, site.heads))
        names[name] = None

    if attention and is_wanted(walks, reading, WALK_MAX_TOKENS):
        ranked = list(map(walks_first, attention))
        # One head of each kind in turn, so that a page has some of all
        turns = [name for several in zip_longest(*ranked) for name in several if name is not None]
        names |= dict.fromkeys(affordable(model, turns, attention))

    return list(names)


def walks_of(
    model: Model,
    tokenizer: Tokenizer,
    reading: Reading,
    names: Sequence[HeadSite],
    *,
    required: bool,
) -> dict[HeadSite, HeadWalk] | None:
    """The walks; None for attention that hides its query, key or value, unless it is required."""
    if not names:
        return None

    try:
        walks = walk_heads(model, reading, tokenizer, names)
    except ValueError:
        if required:
            raise
        return None

    return {name: walks[name] for name in names}


def model_walk_of(
    model: Model,
    tokenizer: Tokenizer,
    reading: Reading,
    lens: LayerGuesses | None,
    wanted: bool | None,
) -> ModelWalk | None:
    """The walk through the model; None if it is not wanted, or by default if parts are hidden."""
    if (wanted is None and longest_side(reading) > MODEL_WALK_MAX_TOKENS) or wanted is False:
        return None

    try:
        return walk_model(model, reading, tokenizer, lens=lens if model.stacks else None)
    except ValueError:
        if wanted:
            raise
        return None


def is_wanted(choice: bool | None, reading: Reading, most: int) -> bool:
    """The choice; by default (None) whether the text has at most this number of tokens."""
    if choice is None:
        return len(reading.text.ids) <= most

    return choice


def kept_layers(
    model: Model, reading: Reading, layers: Collection[int] | None, at_least: Collection[int] = ()
) -> Collection[int] | None:
    """The layers whose weights are kept; None for all.

    Without `layers` all are kept, or if they are too large `at_least`, by default the first.
    """
    if layers is not None:
        return layers

    size = longest_side(reading) ** 2
    weights = sum(site.depth * site.heads * size for site in attention_sites(model))
    if weights <= look_data.ALL_LAYERS_MAX_WEIGHTS:
        return None

    return at_least or [0]


# Memory


def check_memory(model: Model, reading: Reading) -> None:
    """Raise if the attention of one layer with its scores does not fit into the free memory."""
    if next(model.parameters()).device.type != "cpu":
        return

    free = free_memory()
    longest = longest_side(reading)
    heads = getattr(backbone_of(model).config, "heads", 1)
    needed = 3 * 4 * heads * longest**2
    if free is not None and needed > free:
        raise ValueError(
            f"text: the attention of {longest:,} tokens needs {needed / 2**30:.1f} GiB of memory, "
            f"and {free / 2**30:.1f} GiB are free; shorten the text"
        )


def free_memory() -> int | None:
    """Available memory in bytes, including reclaimable caches; None if it is unknown."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024

    return None


def longest_side(reading: Reading) -> int:
    """The number of tokens of the text or the source, whichever is longer."""
    if reading.source is None:
        return len(reading.text.ids)

    return max(len(reading.text.ids), len(reading.source.ids))
