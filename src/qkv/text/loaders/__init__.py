"""Loaders of tokenizers: Hugging Face files, GGUF and Marian's SentencePiece."""
