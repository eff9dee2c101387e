"""Tokenizers: text to token ids and back, special tokens, chat templates. No tensors here."""

from qkv.text.tokenizer import Tokenizer
from qkv.text.tokenizer_training import Kind, train

__all__ = ["Kind", "Tokenizer", "train"]
