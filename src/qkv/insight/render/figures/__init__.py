"""Figures with matplotlib: attention, logit lens, heads, probes, scores and training curves."""

from qkv.extras import require

require("matplotlib")
