"""Numbers that compare with the literature."""

from qkv.evaluation.bleu import TranslationScores, bleu

__all__ = ["TranslationScores", "bleu"]
