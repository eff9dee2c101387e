"""Strings to ids and back. No tensors here."""

from qkv.text.tokenizer import Tokenizer
from qkv.text.tokenizer_training import Kind, train

__all__ = ["Kind", "Tokenizer", "train"]
