"""Numbers that compare with the literature."""

from qkv.evaluation.bleu import Closeness, bleu

__all__ = ["Closeness", "bleu"]
