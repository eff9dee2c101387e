"""Exercises 13 to 16: encoder-decoder, BERT's masking, LoRA, a probe and a head knocked out."""
