"""Kernels in C for x86-64 CPUs, compiled when the package is installed."""
