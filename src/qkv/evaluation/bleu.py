"""How near translations are to their references: BLEU and chrF as sacrebleu counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from qkv.bootstrap import bootstrap
from qkv.evaluation.intervals import Score


@dataclass(frozen=True)
class TranslationScores:
    bleu: float
    """0 to 100: how many runs of 1 to 4 words are the reference's."""
    chrf: float
    """0 to 100: the same for runs of 1 to 6 characters, of which the reference's must be found too.
    """
    signature: str
    """How it was counted: two scores compare only if theirs are the same."""


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """Of the whole corpus, one reference each; both are plain texts, as a person writes them."""
    check(hypotheses, references)
    words, characters = BLEU(), CHRF()
    found = {
        metric: metric.corpus_score(hypotheses, [references]).score
        for metric in (words, characters)
    }
    signature = f"BLEU|{words.get_signature()} chrF2|{characters.get_signature()}"

    return TranslationScores(bleu=found[words], chrf=found[characters], signature=signature)


def intervals(
    near: TranslationScores, hypotheses: Sequence[str], references: Sequence[str], *, seed: int = 0
) -> list[Score]:
    """What `bleu` found, each with its interval: sentences are drawn anew, and their counts summed
    as in the corpus.
    """
    scores = []
    for name, value, metric in (("BLEU", near.bleu, BLEU()), ("chrF", near.chrf, CHRF())):
        counts = np.array(
            metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64
        )

        def total(sums: np.ndarray, metric: BLEU | CHRF = metric) -> float:
            return metric._compute_score_from_stats(
                [round(number) for number in sums.tolist()]
            ).score

        scores.append(Score(name, value, *bootstrap(counts, total, seed=seed)))

    return scores


def check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise TypeError(f"{name}: expected a list of texts, not one text")

    if len(hypotheses) != len(references):
        raise ValueError(
            f"references: expected {len(hypotheses)} as there are hypotheses, not {len(references)}"
        )
    if not hypotheses:
        raise ValueError("hypotheses: there is nothing to score")
