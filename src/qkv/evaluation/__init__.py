"""Numbers that compare with the literature."""

from qkv.evaluation.bleu import Score, bleu

__all__ = ["Score", "bleu"]
