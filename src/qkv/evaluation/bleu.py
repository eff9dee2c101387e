"""How near translations are to their references: BLEU and chrF as sacrebleu counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Score:
    bleu: float
    """0 to 100: how many runs of 1 to 4 words are the reference's."""
    chrf: float
    """0 to 100: the same for runs of 1 to 6 characters, of which the reference's must be found too."""
    signature: str
    """How it was counted: two scores compare only if theirs are the same."""


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Of the whole corpus, one reference each; both are plain texts, as a person writes them."""
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise TypeError(f"{name}: expected a list of texts, not one text")
    if len(hypotheses) != len(references):
        raise ValueError(f"references: expected {len(hypotheses)} as there are hypotheses, not {len(references)}")
    if not hypotheses:
        raise ValueError("hypotheses: there is nothing to score")
    words, characters = BLEU(), CHRF()
    found = {metric: metric.corpus_score(hypotheses, [references]).score for metric in (words, characters)}
    signature = f"BLEU|{words.get_signature()} chrF2|{characters.get_signature()}"
    return Score(bleu=found[words], chrf=found[characters], signature=signature)
