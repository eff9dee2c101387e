"""Sampling: what do the probabilities of the output tokens become, drawn at a temperature?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.translation import translators as tr
from qkv.models.model import Model

COOL, USUAL, HOT = "temperature 0.5", "temperature 1", "temperature 2"
TEMPERATURES = {COOL: 0.5, USUAL: 1.0, HOT: 2.0}
MODEL = "model's probability"
CHANCE = 0.05


@lru_cache(maxsize=1)
def translator(seed: int, width: int, steps: int, device: torch.device) -> Model:
    """A Transformer that still makes errors; all arms of a seed share it."""
    return tr.train_translator(tr.transformer(width), steps, seed, device, rate=3e-3)


def measure(cell: Cell) -> Measured:
    """Draw first tokens and whole translations; compare the former with the probabilities."""
    size = cell.size
    model = translator(cell.seed, size.width, size.steps, cell.device)
    english = [source for source, _ in tr.chosen_pairs(size.sentences, "test")]
    if cell.arm == MODEL:
        said = tr.first_token_probabilities(model, english, 1.0)  # (N, V)
        return {"frequency": tr.mean_by_rank(said, said)}
    if cell.arm == "greedy":
        return tr.translation_scores(model, size.sentences)
    if cell.arm == "beam 4":
        return tr.translation_scores(model, size.sentences, beams=4)

    temperature = TEMPERATURES[cell.arm]
    usual = tr.first_token_probabilities(model, english, 1.0)
    said = tr.first_token_probabilities(model, english, temperature)
    drawn = tr.first_token_counts(model, english, size.draws, temperature, cell.seed)  # (N, V)
    options: dict[str, Any] = {"temperature": temperature, "seed": cell.seed}
    return {
        "frequency": tr.mean_by_rank(drawn / size.draws, said),
        "rejected": float((tr.chi_square_p(drawn, usual) < CHANCE).double().mean()),
        **tr.translation_scores(model, size.sentences, samples=size.samples, **options),
    }


EXPERIMENT = Experiment(
    name="sampling",
    claim="Drawn tokens come as often as the model says; a higher temperature gives more variety "
    "and worse translations.",
    slides=("003 L42", "003 L45", "003 L68"),
    setup=(
        "A small English-Turkish Transformer, stopped early, so that it is still unsure.",
        "The first token of each test sentence is drawn many times by the library's generator, and "
        "its frequencies are tested against the model's probabilities (chi-square, 5%).",
        "Whole translations: greedy, beam search with 4 beams, ten samples at each temperature.",
        "Variety: different translations among the ten samples of a sentence.",
    ),
    arms=(MODEL, "greedy", "beam 4", *TEMPERATURES),
    measure=measure,
    checks=(
        Check(
            "Drawn at temperature 1, the test rejects as many sentences as chance does, 5%",
            lambda value: value(USUAL, "rejected") - CHANCE,
            relevant=0.1,
            expects="same",
        ),
        tr.differs("Drawn at temperature 2, it rejects more", HOT, USUAL, "rejected", 0.2),
        tr.differs("Greedy has a better BLEU than temperature 1", "greedy", USUAL, "BLEU", 2.0),
        tr.differs("Temperature 0.5 has a better BLEU than 2", COOL, HOT, "BLEU", 2.0),
        tr.differs("Temperature 2 gives more variety than 0.5", HOT, COOL, tr.VARIETY, 1.0),
    ),
    panels=(
        Panel("frequency", "rank of the token", "frequency", "The first token", log="y"),
        Panel("BLEU", "", "BLEU", "Quality"),
        Panel(tr.VARIETY, "", "of ten samples", "Variety", arms=(COOL, USUAL, HOT)),
    ),
    small=Size(seeds=4, minutes=1, width=64, steps=260, sentences=60, draws=500, samples=10),
    large=Size(seeds=4, minutes=3, width=128, steps=150, sentences=200, draws=2000, samples=10),
    next_steps=(
        "qkv lab sampling --set steps=400: what does temperature do to a model that is sure?",
        "qkv generate smollm2 --temperature 2: what does a large model write?",
        "Where does beam search gain over greedy, if the model is unsure of the first word?",
    ),
)
