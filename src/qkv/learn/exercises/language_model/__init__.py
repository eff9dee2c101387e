"""Exercises 9 to 12: the GPT, a training step, generation, beam search."""
