"""What a decode step on a GPU computes after the logits, in Triton: sampling, and its end."""
