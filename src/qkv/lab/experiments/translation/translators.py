"""Small English-Turkish translators: training, BLEU along the way, and alignment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.data.embedded import turkish
from qkv.data.sources.source import open_pairs
from qkv.evaluation import bleu
from qkv.generation.generate import without_dropout
from qkv.generation.search.beam_search import beam_search
from qkv.generation.translate import translate
from qkv.insight.inspect.hook_checks import capture_required
from qkv.lab.experiment import Cell, Check
from qkv.lab.fit import fit
from qkv.models import RNNConfig, TransformerConfig
from qkv.models.model import Model
from qkv.models.registry import build
from qkv.models.sites import attention_sites
from qkv.text.frame_tokens import translation_ends
from qkv.training.run_config import DataConfig
from qkv.training.setup.cost import cost
from qkv.training.setup.training_task import TrainingTask, assemble

BATCH_TOKENS = 1024
FEWEST_EXPECTED = 5
"""Expected draws below which the chi-square test joins tokens."""
TranslatorConfig = RNNConfig | TransformerConfig
VARIETY = "different translations"
FIXED = "best fixed"
"""The arm whose connections are set in advance, for alignment."""
Scores = dict[str, float]
LONGEST = 20
"""Tokens of a translation at most; the longest reference has 8 words."""


def rnn(width: int, attention: Any = "additive") -> RNNConfig:
    """A GRU encoder-decoder without dropout."""
    return RNNConfig(width=width, attention=attention, dropout=0.0)


def transformer(width: int, depth: int = 2, heads: int = 4) -> TransformerConfig:
    """A Transformer without dropout, normalised before each sublayer."""
    return TransformerConfig(
        width=width, depth=depth, heads=heads, norm_placement="before", dropout=0.0
    )


# Data


@cache
def turkish_task() -> TrainingTask:
    """Tokenizer and batches, one word a token; read once in a process."""
    data = DataConfig(data=("turkish",), tokenizer="words")
    return assemble(RNNConfig(width=2), data, batch_tokens=BATCH_TOKENS, seed=0)


def chosen_pairs(count: int, split: str = "test") -> list[tuple[str, str]]:
    """Sentences spread over a split; in the test split, no noun was seen with its verb before."""
    pairs = list(open_pairs([f"turkish:{split}"]))
    return pairs[:: max(1, len(pairs) // count)][:count]


# Training


def train_translator(
    config: TranslatorConfig,
    steps: int,
    seed: int,
    device: torch.device,
    *,
    rate: float,
    every: Callable[[int, Model], object] | None = None,
    change: Callable[[Model, Batch, int], Batch] | None = None,
    **options: Any,
) -> Model:
    """Build a translator and train it; arms with the same seed read the same sentences.

    Args:
        config: The model; its vocabulary comes from the tokenizer.
        steps: Number of steps.
        seed: Seed of the weights and of the order of the data.
        device: Where to train.
        rate: The highest learning rate.
        every: Called after each step with the number of steps and the model.
        change: Changes the batch of a step (default: none, which is teacher forcing).
        options: As in `fit`.

    Returns:
        The model, in evaluation mode.
    """
    task = turkish_task()
    data = replace(task.training, seed=seed)  # type: ignore[type-var]
    torch.manual_seed(seed)
    model = build(replace(config, vocabulary=task.tokenizer.vocabulary)).to(device)

    def batch(step: int) -> Batch:
        original = data.batch(step).to(device)
        if change is None:
            return original

        return change(model, original, step)

    def after(step: int) -> None:
        if every is not None:
            model.eval()
            every(step, model)
            model.train()

    fit(model, batch, steps, rate=rate, seed=seed, every=after, **options)
    return model


class Followed(NamedTuple):
    """Translators that were trained, and how well they translated on the way."""

    models: list[Model]
    """One, or several that translate together."""
    curve: dict[int, float]
    """BLEU of the test sentences by the number of steps."""


def follow(
    cell: Cell, config: TranslatorConfig, steps: int, *, members: int = 1, **options: Any
) -> Followed:
    """Train one translator or several, and measure the BLEU of all together at some steps.

    After the warm-up the learning rate stays the same, since the curve is read on the way.

    Args:
        cell: The seed, the device, and the settings `points` (of the curve, equally far apart) and
            `sentences` (of the test split).
        config: The model.
        steps: Steps of each member.
        members: Translators that translate together.
        options: As in `train_translator`.

    Returns:
        The trained translators, and their BLEU by the number of steps.

    Raises:
        ValueError: If there are fewer steps than points.
    """
    if steps < cell.size.points:
        raise ValueError(
            f"points: {cell.size.points} points need as many steps, and {cell.arm} has {steps}"
        )

    options = {"final_rate": 1.0, **options}
    snapshots: dict[int, list[Model]] = {}
    for point in range(1, cell.size.points + 1):
        snapshots[steps * point // cell.size.points] = []

    def every(step: int, model: Model) -> None:
        if step in snapshots:
            snapshots[step].append(deepcopy(model))

    for member in range(members):
        seed = cell.seed + 1000 * member
        train_translator(config, steps, seed, cell.device, every=every, **options)

    curve = {}
    for step, models in snapshots.items():
        curve[step] = bleu_of(models, cell.size.sentences)

    return Followed(snapshots[steps], curve)


def differs(says: str, more: str, less: str, name: str, relevant: float) -> Check:
    """The check that one arm has more of a measure than another."""
    return Check(says, lambda value: value(more, name) - value(less, name), relevant)


def first_crossing(curve: Mapping[int, float], level: float) -> float:
    """The x at which a curve first reaches a level, between two points by a line.

    A curve that never reaches it counts as if it did at its last point: a lower bound.
    """
    before_x = 0.0
    before_y = 0.0
    for x, y in curve.items():
        if y >= level:
            return before_x + (x - before_x) * (level - before_y) / (y - before_y)

        before_x = x
        before_y = y

    return before_x


# Translation


def source_ids(english: Sequence[str]) -> list[list[int]]:
    """The ids that the encoder reads: the words and the end token."""
    tokenizer = turkish_task().tokenizer
    _, end = translation_ends(tokenizer)
    return [[*ids, end] for ids in tokenizer.encode_batch(english)]


def in_turkish(
    models: Model | Sequence[Model], english: Sequence[str], **options: Any
) -> list[str]:
    """Translate sentences, greedily by default.

    Args:
        models: A translator; several translate together.
        english: The sentences.
        options: Options of `translate`, such as temperature; or of `beam_search`, if `beams` is
            among them.
    """
    tokenizer = turkish_task().tokenizer
    start, end = translation_ends(tokenizer)
    ends = {"start": start, "end": end, "length": LONGEST, "forbidden": (start,)}
    sources = source_ids(english)
    if "beams" in options:
        found = beam_search(models, sources, **ends, **options)  # type: ignore[arg-type]
        targets = [hypotheses[0].ids for hypotheses in found]
    else:
        targets = translate(models, sources, **ends, **{"temperature": 0.0, **options})  # type: ignore[arg-type]

    return [tokenizer.decode(target) for target in targets]


def flops_per_step(config: TranslatorConfig) -> float:
    """Floating-point operations of a training step, as `qkv train` counts them."""
    task = turkish_task()
    config = replace(config, vocabulary=task.tokenizer.vocabulary)
    return cost(config, 1, "float32").flops_per_token * task.training.tokens_per_step


def bleu_of(models: Model | Sequence[Model], sentences: int, split: str = "test") -> float:
    """BLEU of greedy translations of the test sentences."""
    pairs = chosen_pairs(sentences, split)
    english = [source for source, _ in pairs]
    references = [target for _, target in pairs]
    return bleu(in_turkish(models, english), references).bleu


def translation_scores(model: Model, sentences: int, samples: int = 1, **options: Any) -> Scores:
    """BLEU of all translations of the test sentences, and how much those of a sentence differ.

    Args:
        model: The translator.
        sentences: Number of sentences.
        samples: Translations of each sentence.
        options: As in `in_turkish`.

    Returns:
        BLEU over all samples, and the mean number of different translations of a sentence.
    """
    pairs = chosen_pairs(sentences, "test")
    if samples > 1:
        options["samples"] = samples

    translations = in_turkish(model, [english for english, _ in pairs], **options)
    references = []
    different = 0
    for row, (_, reference) in enumerate(pairs):
        references += [reference] * samples
        different += len(set(translations[row * samples : (row + 1) * samples]))

    return {"BLEU": bleu(translations, references).bleu, VARIETY: different / len(pairs)}


def errors_by_place(model: Model, sentences: int, places: int = 4) -> dict[int, float]:
    """How many words of the greedy translations are wrong, at each place of the sentence."""
    pairs = chosen_pairs(sentences, "test")
    wrong = [0] * places
    total = [0] * places
    translations = in_turkish(model, [english for english, _ in pairs])
    for translation, (_, reference) in zip(translations, pairs, strict=True):
        said = [*translation.split(), *[""] * places]
        for place, word in enumerate(reference.split()[:places]):
            total[place] += 1
            wrong[place] += word != said[place]

    return {place + 1: wrong[place] / max(1, total[place]) for place in range(places)}


# The first token of a translation


@torch.no_grad()
def first_token_probabilities(
    model: Model, english: Sequence[str], temperature: float
) -> Float[Tensor, "N V"]:
    """What the model says about the first token of each translation, in float64."""
    start, _ = translation_ends(turkish_task().tokenizer)
    device = next(model.parameters()).device
    rows = []
    with without_dropout(model):
        for ids in source_ids(english):
            source = torch.tensor([ids], device=device)  # (1, S)
            logits = model(source, torch.tensor([[start]], device=device))[0, 0]  # (V,)
            rows.append((logits.double() / temperature).softmax(-1).cpu())

    return torch.stack(rows)


def first_token_counts(
    model: Model, english: Sequence[str], draws: int, temperature: float, seed: int
) -> Int[Tensor, "N V"]:
    """How often each token is the first, if the generator draws each translation's many times."""
    tokenizer = turkish_task().tokenizer
    start, end = translation_ends(tokenizer)
    counts = torch.zeros(len(english), tokenizer.vocabulary, dtype=torch.long)
    for row, source in enumerate(source_ids(english)):
        drawn = translate(
            model,
            [source],
            start=start,
            end=end,
            length=1,
            temperature=temperature,
            samples=draws,
            seed=1000 * seed + row,
        )
        for target in drawn:
            counts[row, target[0] if target else end] += 1

    return counts


def mean_by_rank(
    numbers: Float[Tensor, "N V"], probabilities: Float[Tensor, "N V"], ranks: int = 6
) -> dict[int, float]:
    """The mean over all rows, by the rank of a token's probability in its row; 1 is the highest."""
    order = probabilities.argsort(-1, descending=True)[:, :ranks]  # (N, ranks)
    means = numbers.double().gather(1, order).mean(0).tolist()
    return dict(enumerate(means, start=1))


def chi_square_p(
    counts: Int[Tensor, "N V"], probabilities: Float[Tensor, "N V"]
) -> Float[Tensor, "N"]:
    """Pearson's chi-square test of each row: p-value of counts under the probabilities.

    Tokens that are expected fewer than five times count together; a row where one token takes all
    has p = 1.
    """
    rows = []
    for observed, chances in zip(counts, probabilities, strict=True):
        expected = chances * observed.sum()
        common = expected >= FEWEST_EXPECTED
        observed_bins = torch.cat([observed[common], observed[~common].sum()[None]])
        expected_bins = torch.cat([expected[common], expected[~common].sum()[None]])
        if expected_bins[-1] < FEWEST_EXPECTED and len(expected_bins) > 1:  # too few: join the last
            observed_bins = torch.cat([observed_bins[:-2], observed_bins[-2:].sum()[None]])
            expected_bins = torch.cat([expected_bins[:-2], expected_bins[-2:].sum()[None]])

        freedom = torch.tensor(len(expected_bins) - 1, dtype=torch.float64)
        if freedom == 0:
            rows.append(1.0)
            continue

        statistic = ((observed_bins - expected_bins) ** 2 / expected_bins).sum()
        rows.append(float(torch.special.gammaincc(freedom / 2, statistic / 2)))

    return torch.tensor(rows, dtype=torch.float64)


# Alignment


@cache
def usual_places() -> dict[tuple[int, int], Counter[int]]:
    """Where the source of word t is, in training sentences with so many English words."""
    places: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for english, _ in chosen_pairs(10_000, "train"):
        for t, s in enumerate(turkish.alignment(english)):
            places[t, len(english.split())][s] += 1

    return places


def fixed_accuracy(diagonal: bool, sentences: int) -> float:
    """Words whose source is found by connecting place t to place t, or to its most usual one."""
    right = []
    for english, _ in chosen_pairs(sentences, "test"):
        for t, s in enumerate(turkish.alignment(english)):
            usual = usual_places()[t, len(english.split())].most_common(1) or [(t, 0)]
            right.append(s == (t if diagonal else usual[0][0]))

    return sum(right) / len(right)


def alignment_accuracy(model: Model, sentences: int) -> dict[str, float]:
    """How many Turkish words have their strongest weight on the English word that they translate.

    Returns:
        The fraction of the words of all test sentences, for each head ("layer 1 head 2"; an RNN
        has one) and for the mean over all ("mean").
    """
    correct: dict[str, int] = {}
    words = 0
    for english, _ in chosen_pairs(sentences, "test"):
        truth = torch.tensor(turkish.alignment(english))  # (T,)
        words += len(truth)
        for name, weights in cross_attention(model, english).items():
            correct[name] = correct.get(name, 0) + int((weights.argmax(-1) == truth).sum())

    return {name: count / words for name, count in correct.items()}


def forced_rows(model: Model, english: str) -> tuple[Int[Tensor, "1 S"], Int[Tensor, "1 T"]]:
    """A sentence and its right translation as ids: the source, and the target with its start."""
    tokenizer = turkish_task().tokenizer
    start, end = translation_ends(tokenizer)
    source, target = tokenizer.encode_batch([english, turkish.translate(english)])
    device = next(model.parameters()).device
    return (
        torch.tensor([[*source, end]], device=device),
        torch.tensor([[start, *target]], device=device),
    )


@torch.no_grad()
def cross_attention(model: Model, english: str) -> dict[str, Float[Tensor, "T S"]]:
    """The weights with which each word of the right translation is predicted, by head."""
    source, target = forced_rows(model, english)
    site = attention_sites(model)[-1]
    points = [site.hook_point(layer, "weights") for layer in range(site.depth)]
    with without_dropout(model), capture_required(model, points) as captured:
        model(source, target[:, :-1])

    found = {}
    for layer, point in enumerate(points):
        # An RNN attends once for each target token, a Transformer once for all.
        heads = torch.cat(captured.every[point], dim=-2)[0].cpu()  # (H, T, S)
        for head, weights in enumerate(heads):
            found[f"layer {layer + 1} head {head + 1}"] = weights

    return {"mean": torch.stack(list(found.values())).mean(0), **found}


@torch.no_grad()
def target_log_probabilities(
    model: Model, english: str, hidden: Int[Tensor, "T"] | None = None
) -> Float[Tensor, "T"]:
    """The log-probability of each word of the right translation, given the right words before it.

    Args:
        model: The translator.
        english: The sentence.
        hidden: For each word of the translation, the place of an English word that is replaced by
            the unknown token; None hides nothing.
    """
    source, target = forced_rows(model, english)
    T = target.shape[1] - 1
    sources = source.repeat(T, 1)  # (T, S): one row for each word of the translation
    if hidden is not None:
        unknown = turkish_task().tokenizer.unknown
        assert unknown is not None
        sources[torch.arange(T), hidden] = unknown

    with without_dropout(model):
        logits = model(sources, target[:, :-1].repeat(T, 1))  # (T, T, V)

    logits = logits[torch.arange(T), torch.arange(T)]  # (T, V): the word of the row
    chosen = target[0, 1:].unsqueeze(-1)  # (T, 1)
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0].cpu()


def effect_of_hiding(model: Model, sentences: int, seed: int) -> tuple[float, float]:
    """How far a word's log-probability falls if one English word is replaced by the unknown token.

    Returns:
        The mean fall over all words of the right translations if the English word with the
        strongest attention is hidden, and if another one is, drawn at random.
    """
    random = torch.Generator().manual_seed(seed)
    falls = torch.zeros(2)
    words = 0
    for english, _ in chosen_pairs(sentences, "test"):
        S = len(english.split())
        strongest = cross_attention(model, english)["mean"][:, :S].argmax(-1)  # (T,)
        other = (strongest + torch.randint(1, S, strongest.shape, generator=random)) % S
        usual = target_log_probabilities(model, english)  # (T,)
        for row, hidden in enumerate((strongest, other)):
            falls[row] += (usual - target_log_probabilities(model, english, hidden)).sum()

        words += len(strongest)

    attended, another = (falls / words).tolist()
    return attended, another
