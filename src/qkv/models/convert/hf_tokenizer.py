"""A tokenizer for `transformers`: AutoTokenizer gives the ids that our model reads.

Without special tokens (add_special_tokens=False) these are the ids of `Tokenizer.encode`. With
them, which is its default, they are framed as our models are trained: [start] text [end] for a
BERT, text [end] for a translator's source, and the start token before a GPT's prompt where the
tokenizer asks for it. As everywhere in that library, special tokens that are spelled in a text are
found there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import PostProcessor, Sequence, TemplateProcessing

from qkv.models.bert import BERTConfig
from qkv.models.convert import hf_folder
from qkv.models.convert.config_fields import SpecialIds
from qkv.models.registry import Config
from qkv.models.transformer import TransformerConfig
from qkv.text.tokenizer import Tokenizer, beginning

TOKENIZER_CONFIG = hf_folder.BESIDE_TOKENIZER[0]
BY_FILE = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""Without it their library chooses a tokenizer by the model's family, whatever tokenizer.json says.
Where there is no tokenizer.json, that would be one with an empty vocabulary; with it, there is an
error that says what is missing."""


class TokenizerOut:
    """What a folder for `transformers` gets: the files of a tokenizer, or a Tokenizer written as
    such, or none.
    """

    def __init__(self, given: Tokenizer | Path | str | None, config: Config) -> None:
        self.config, self.files = config, {}
        if isinstance(given, str | Path):
            self.files = hf_folder.tokenizer_files(Path(given))
            given = Tokenizer.read(given)

        self.tokenizer = given
        if given is not None and given.vocabulary > config.vocabulary:
            raise ValueError(
                f"tokenizer: it has {given.vocabulary} tokens, the model's vocabulary only {config.vocabulary}"
            )

    def ids(self, given: SpecialIds) -> SpecialIds:
        """The ids that were given, and the tokenizer's where none was."""
        if self.tokenizer is None:
            return given

        start = (
            self.tokenizer.start
            if isinstance(self.config, TransformerConfig)
            else beginning(self.tokenizer)
        )
        return SpecialIds(
            start if given.begin is None else given.begin,
            self.tokenizer.end if given.end is None else given.end,
            self.tokenizer.padding if given.pad is None else given.pad,
        )

    def write(self, made: Path) -> None:
        for name, source in self.files.items():
            shutil.copyfile(source, made / name)

        if self.tokenizer is not None and not self.files:
            hf_folder.write_json(
                made / TOKENIZER_CONFIG, {**self.tokenizer.config, **BY_FILE, **self.hints()}
            )
            inner = framed(self.tokenizer, *self.frame())
            (made / hf_folder.TOKENIZER).write_text(inner.to_str(pretty=True), encoding="utf-8")
        elif not (made / TOKENIZER_CONFIG).exists():
            hf_folder.write_json(made / TOKENIZER_CONFIG, BY_FILE)

    def frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text."""
        assert self.tokenizer is not None
        start, end = (
            [] if id is None else [id] for id in (self.tokenizer.start, self.tokenizer.end)
        )
        if isinstance(self.config, BERTConfig):
            return start, end
        if isinstance(self.config, TransformerConfig):
            return [], end

        return start if self.tokenizer.starts_texts else [], []

    def hints(self) -> dict[str, Any]:
        two = isinstance(self.config, BERTConfig) and self.config.segments > 1
        inputs = ["input_ids", *(["token_type_ids"] if two else []), "attention_mask"]
        return {
            "model_input_names": inputs,
            "model_max_length": self.config.context,  # type: ignore[union-attr]
            "clean_up_tokenization_spaces": False,
        }


def framed(tokenizer: Tokenizer, before: list[int], after: list[int]) -> tokenizers.Tokenizer:
    """A copy whose rules put these ids around a text; if its rules add ids already, they stay as
    they are.
    """
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    added = inner.encode("", add_special_tokens=True).ids
    if added or not before + after:
        return inner

    frame = template(tokenizer, before, after)
    inner.post_processor = (
        frame if inner.post_processor is None else Sequence([inner.post_processor, frame])
    )

    return inner


def template(tokenizer: Tokenizer, before: list[int], after: list[int]) -> PostProcessor:
    named = {"before": before, "after": after}
    special = [
        {"id": name, "ids": ids, "tokens": [tokenizer.token(id) for id in ids]}
        for name, ids in named.items()
        if ids
    ]
    first, last = ([name] if ids else [] for name, ids in named.items())
    second = [f"{name}:1" for name in last]

    return TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B:1", *second],
        special_tokens=special,
    )
