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
from qkv.text.frame_tokens import FrameTokens, Reads, tokens_around
from qkv.text.tokenizer import Tokenizer, start_id

TOKENIZER_CONFIG = hf_folder.BESIDE_TOKENIZER[0]
BY_FILE = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""Without it their library chooses a tokenizer by the model's family, whatever tokenizer.json
contains; without a tokenizer.json, one with an empty vocabulary. With it, a missing file is an
error that names the file."""


def checked_tokenizer(tokenizer: Tokenizer | Path | str, vocabulary: int) -> Tokenizer:
    """Return the tokenizer, read if it is a path; it must fit into the model's vocabulary."""
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.read(tokenizer)

    if tokenizer.vocabulary > vocabulary:
        raise ValueError(
            f"tokenizer: it has {tokenizer.vocabulary} tokens, the model's vocabulary only "
            f"{vocabulary}"
        )

    return tokenizer


class TokenizerExport:
    """The tokenizer of a folder for `transformers`: files to copy, a Tokenizer, or none."""

    def __init__(self, tokenizer: Tokenizer | Path | str | None, config: Config) -> None:
        self.config = config
        self.files: dict[str, Path] = {}
        if isinstance(tokenizer, str | Path):
            self.files = hf_folder.tokenizer_files(Path(tokenizer))

        self.tokenizer: Tokenizer | None = None
        if tokenizer is not None:
            self.tokenizer = checked_tokenizer(tokenizer, config.vocabulary)

    def special_ids(self, ids: SpecialIds) -> SpecialIds:
        """Return these ids, with the tokenizer's in place of those that are None."""
        if self.tokenizer is None:
            return ids

        begin = start_id(self.tokenizer)
        if isinstance(self.config, TransformerConfig):
            begin = self.tokenizer.start

        return ids.or_else(SpecialIds(begin, self.tokenizer.end, self.tokenizer.padding))

    def write(self, folder: Path) -> None:
        for name, source in self.files.items():
            shutil.copyfile(source, folder / name)

        if self.tokenizer is not None and not self.files:
            config = {**self.tokenizer.config, **BY_FILE, **self.config_hints()}
            hf_folder.write_json(folder / TOKENIZER_CONFIG, config)
            inner = with_frame(self.tokenizer, tokens_around(self.tokenizer, self.reads))
            (folder / hf_folder.TOKENIZER).write_text(inner.to_str(pretty=True), encoding="utf-8")
        elif not (folder / TOKENIZER_CONFIG).exists():
            hf_folder.write_json(folder / TOKENIZER_CONFIG, BY_FILE)

    @property
    def reads(self) -> Reads:
        if isinstance(self.config, BERTConfig):
            return "sentence"

        return "source" if isinstance(self.config, TransformerConfig) else "prompt"

    def config_hints(self) -> dict[str, Any]:
        inputs = ["input_ids", "attention_mask"]
        if isinstance(self.config, BERTConfig) and self.config.segments > 1:
            inputs.insert(1, "token_type_ids")

        return {
            "model_input_names": inputs,
            "model_max_length": self.config.context,  # type: ignore[union-attr]
            "clean_up_tokenization_spaces": False,
        }


def with_frame(tokenizer: Tokenizer, frame: FrameTokens) -> tokenizers.Tokenizer:
    """Return a copy with these tokens around a text, if it adds no special tokens already."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    added = inner.encode("", add_special_tokens=True).ids
    if added or not frame.around([]):
        return inner

    template = frame_template(tokenizer, frame)
    if inner.post_processor is not None:
        template = Sequence([inner.post_processor, template])

    inner.post_processor = template
    return inner


def frame_template(tokenizer: Tokenizer, frame: FrameTokens) -> PostProcessor:
    """Return a post-processor for `before text after` and `before text after text after`."""
    special = []
    for name, ids in frame._asdict().items():
        if ids:
            special.append({"id": name, "ids": ids, "tokens": list(map(tokenizer.token, ids))})

    single = ["before"] * len(frame.before) + ["$A"] + ["after"] * len(frame.after)
    second = ["$B:1"] + ["after:1"] * len(frame.after)

    return TemplateProcessing(single=single, pair=single + second, special_tokens=special)
