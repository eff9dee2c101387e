"""Strings to ids and back. No tensors here."""

from qkv.text.tokenizer import Tokenizer
from qkv.text.train import Kind, train

__all__ = ["Kind", "Tokenizer", "train"]
