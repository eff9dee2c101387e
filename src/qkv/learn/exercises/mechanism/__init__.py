"""Exercises 1 to 4: lookup, scores, self-attention, masks."""
