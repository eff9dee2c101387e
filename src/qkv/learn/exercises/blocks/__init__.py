"""Exercises 5 to 8: several heads, positions, the block, byte pairs."""
