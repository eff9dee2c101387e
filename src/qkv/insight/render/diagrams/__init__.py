"""Diagrams of models and of the lectures' figures: boxes and arrows, drawn from real models."""

from qkv.imports import require

require("matplotlib")
