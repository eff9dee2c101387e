"""Texts of many kinds for tokenizer tests."""

from __future__ import annotations

from qkv.text import Kind

SENTENCES = [
    "kediler fareleri kovalar",
    "cats chase mice, don't they?",
    'The teacher said: "I have 3.14 well-known (and 2 unknown) reasons!"',
    "Öğretmen öğrencilere İstanbul'dan bir kitap getirdi; çok güzeldi.",
    "the cat sat on the mat. the cat chases the mouse. the mice ran.",
]

ODD = [
    "",
    " ",
    "\n\n  two  spaces\tand\r\na line ",
    "naïve café — “curly” … 中文 日本語 русский עברית",
    "emoji 👩‍👩‍👧 and a\u0301ccents and \x00 zero",
    "[pad] [unknown] [start] [end] [mask] <|endoftext|> [CLS]",
    "supercalifragilisticexpialidocious" * 5,
]

SIZES: dict[Kind, int] = {"characters": 200, "words": 200, "byte-pair": 320, "word-piece": 250}
"""A vocabulary size for each kind, which the sentences fill or exceed."""
