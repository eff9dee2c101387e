"""Write a tokenizer for `transformers`: AutoTokenizer then gives the ids that our model reads.

With add_special_tokens=False these are the ids of `Tokenizer.encode`. By default special tokens
frame them as our models are trained: [start] text [end] for a BERT, text [end] for a translator's
source, and the start token before a GPT's prompt if the tokenizer adds one. As everywhere in that
library, special tokens that are spelled out in a text are recognised there.
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
from qkv.text.tokenizer import Tokenizer, start_id

TOKENIZER_CONFIG = hf_folder.BESIDE_TOKENIZER[0]
BY_FILE = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""Without it their library chooses a tokenizer by the model's family, whatever tokenizer.json
contains; without a tokenizer.json, one with an empty vocabulary. With it, a missing file is an
error that names the file."""


class TokenizerExport:
    """The tokenizer of a folder for `transformers`: files to copy, a Tokenizer, or none."""

    def __init__(self, tokenizer: Tokenizer | Path | str | None, config: Config) -> None:
        self.config = config
        self.files: dict[str, Path] = {}
        if isinstance(tokenizer, str | Path):
            self.files = hf_folder.tokenizer_files(Path(tokenizer))
            tokenizer = Tokenizer.read(tokenizer)

        self.tokenizer = tokenizer
        if tokenizer is not None and tokenizer.vocabulary > config.vocabulary:
            raise ValueError(
                f"tokenizer: it has {tokenizer.vocabulary} tokens, "
                f"the model's vocabulary only {config.vocabulary}"
            )

    def special_ids(self, ids: SpecialIds) -> SpecialIds:
        """Return these ids, with the tokenizer's in place of those that are None."""
        if self.tokenizer is None:
            return ids

        begin = ids.begin
        if begin is None and isinstance(self.config, TransformerConfig):
            begin = self.tokenizer.start
        elif begin is None:
            begin = start_id(self.tokenizer)

        end = ids.end
        if end is None:
            end = self.tokenizer.end

        pad = ids.pad
        if pad is None:
            pad = self.tokenizer.padding

        return SpecialIds(begin, end, pad)

    def write(self, folder: Path) -> None:
        for name, source in self.files.items():
            shutil.copyfile(source, folder / name)

        if self.tokenizer is not None and not self.files:
            config = {**self.tokenizer.config, **BY_FILE, **self.config_hints()}
            hf_folder.write_json(folder / TOKENIZER_CONFIG, config)
            inner = with_frame(self.tokenizer, *self.frame())
            (folder / hf_folder.TOKENIZER).write_text(inner.to_str(pretty=True), encoding="utf-8")
        elif not (folder / TOKENIZER_CONFIG).exists():
            hf_folder.write_json(folder / TOKENIZER_CONFIG, BY_FILE)

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the ids before and after a text."""
        assert self.tokenizer is not None
        start = as_list(self.tokenizer.start)
        end = as_list(self.tokenizer.end)
        if isinstance(self.config, BERTConfig):
            return start, end
        if isinstance(self.config, TransformerConfig):
            return [], end
        if self.tokenizer.adds_start_token:
            return start, []

        return [], []

    def config_hints(self) -> dict[str, Any]:
        inputs = ["input_ids", "attention_mask"]
        if isinstance(self.config, BERTConfig) and self.config.segments > 1:
            inputs.insert(1, "token_type_ids")

        return {
            "model_input_names": inputs,
            "model_max_length": self.config.context,  # type: ignore[union-attr]
            "clean_up_tokenization_spaces": False,
        }


def as_list(id: int | None) -> list[int]:
    if id is None:
        return []

    return [id]


def with_frame(tokenizer: Tokenizer, before: list[int], after: list[int]) -> tokenizers.Tokenizer:
    """Return a copy that puts these ids around a text, if it adds no special tokens already."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    added = inner.encode("", add_special_tokens=True).ids
    if added or not before + after:
        return inner

    frame = frame_template(tokenizer, before, after)
    if inner.post_processor is not None:
        frame = Sequence([inner.post_processor, frame])

    inner.post_processor = frame
    return inner


def frame_template(tokenizer: Tokenizer, before: list[int], after: list[int]) -> PostProcessor:
    """Return a post-processor for `before text after` and `before text after text after`."""
    special = []
    first = []
    last = []
    second = []
    if before:
        special.append(special_token(tokenizer, "before", before))
        first = ["before"]
    if after:
        special.append(special_token(tokenizer, "after", after))
        last = ["after"]
        second = ["after:1"]

    return TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B:1", *second],
        special_tokens=special,
    )


def special_token(tokenizer: Tokenizer, name: str, ids: list[int]) -> dict[str, Any]:
    return {"id": name, "ids": ids, "tokens": [tokenizer.token(id) for id in ids]}
