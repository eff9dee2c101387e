"""Figures with matplotlib: attention, logit lens, heads, probes, scores and training curves."""

from qkv.imports import require

require("matplotlib")
