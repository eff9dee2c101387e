"""Attention kernels: substitutes for `attend.eager`, each with `supports` and `attend`."""
