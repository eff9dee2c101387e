"""Optimizer steps on a GPU, in Triton."""
