"""BLEU and chrF of translations, as sacrebleu counts them, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from qkv.bootstrap import bootstrap
from qkv.evaluation.intervals import Score
from qkv.imports import require
from qkv.nn.config import documented


@documented
@dataclass(frozen=True)
class TranslationScores:
    """BLEU and chrF of a corpus, with sacrebleu's signature.

    Example:
        >>> TranslationScores(bleu=31.4, chrf=56.2, signature="BLEU|nrefs:1").bleu
        31.4
    """

    bleu: float
    """0 to 100: precision of word n-grams up to 4, with a brevity penalty."""
    chrf: float
    """0 to 100: F-score of character n-grams up to 6."""
    signature: str
    """The settings of sacrebleu; scores are comparable only if their signatures are equal."""


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """BLEU and chrF of a corpus of translations, with one reference each.

    Args:
        hypotheses: The translations, detokenised.
        references: The reference translations, detokenised, in the same order.

    Returns:
        The corpus scores from 0 to 100, and the signature of their settings.

    Raises:
        TypeError: If one string is given instead of a list.
        ValueError: If the lists are empty or differ in length.

    Example:
        >>> result = bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
        >>> round(result.bleu), round(result.chrf)
        (100, 100)
    """
    check_translations(hypotheses, references)
    sacrebleu = require("sacrebleu.metrics")
    word_metric = sacrebleu.BLEU()
    character_metric = sacrebleu.CHRF()
    word_score = word_metric.corpus_score(hypotheses, [references]).score
    character_score = character_metric.corpus_score(hypotheses, [references]).score
    signature = f"BLEU|{word_metric.get_signature()} chrF2|{character_metric.get_signature()}"

    return TranslationScores(bleu=word_score, chrf=character_score, signature=signature)


def with_intervals(
    scores: TranslationScores,
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    seed: int = 0,
) -> list[Score]:
    """The scores of `bleu` with confidence intervals from a bootstrap over sentences."""
    sacrebleu = require("sacrebleu.metrics")
    return [
        metric_score("BLEU", scores.bleu, sacrebleu.BLEU(), hypotheses, references, seed),
        metric_score("chrF", scores.chrf, sacrebleu.CHRF(), hypotheses, references, seed),
    ]


def metric_score(
    name: str,
    value: float,
    metric: Any,
    hypotheses: Sequence[str],
    references: Sequence[str],
    seed: int,
) -> Score:
    """A corpus score with its interval; the counts of resampled sentences are summed."""
    counts = np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)

    def corpus_score(sums: Float[np.ndarray, "k"]) -> float:
        return metric._compute_score_from_stats(list(map(round, sums.tolist()))).score

    low, high = bootstrap(counts, corpus_score, seed=seed)

    return Score(name, value, low, high)


def check_translations(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise if hypotheses and references cannot be compared."""
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise TypeError(f"{name}: expected a list of texts, not one text")

    if len(hypotheses) != len(references):
        raise ValueError(
            f"references: expected {len(hypotheses)}, one for each hypothesis, "
            f"not {len(references)}"
        )
    if not hypotheses:
        raise ValueError("hypotheses: there is nothing to score")
