"""Kernels of training: Muon's in Triton on a GPU, the loss in C on a CPU."""
