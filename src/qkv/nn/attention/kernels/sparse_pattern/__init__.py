"""Causal sparse patterns, forward and backward: for a CPU in dense parts, for a GPU in Triton."""
