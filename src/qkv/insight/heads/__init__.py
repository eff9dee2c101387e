"""Attention heads: known patterns (induction, previous token), ablation and syntax."""
