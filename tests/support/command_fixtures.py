"""Run commands in this process, and small models for them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from qkv import artifact, cli
from qkv.models import BERT, GPT, BERTConfig, GPTConfig, Transformer, TransformerConfig
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES
from support.shape_checks import unchecked
from support.tokenizer_kinds import gguf_file


class Printed(NamedTuple):
    """Standard output, standard error and the exit status of a command."""

    out: str
    error: str
    code: int

    @property
    def refused(self) -> bool:
        """Whether it failed: status 2 for wrong usage, 1 for other errors (see test_cli.py)."""
        return self.code in (1, 2)


Qkv = Callable[..., Printed]


@pytest.fixture
def qkv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Qkv:
    """Run a command with these arguments; `typed` is its standard input."""

    def run(*arguments: str | Path, typed: str | bytes = "") -> Printed:
        content = typed
        if isinstance(content, str):
            content = content.encode()

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        code = 0
        message = ""

        try:
            with unchecked():
                cli.main()
        except SystemExit as error:
            if isinstance(error.code, int):
                code = error.code
            else:
                code = 1
                message = f"{error.code or ''}\n"

        printed = capsys.readouterr()
        return Printed(printed.out, printed.err + message, code)

    return run


def chatting_gpt(folder: Path) -> Tokenizer:
    return Tokenizer.read(gguf_file(folder / "tiny.gguf"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model of each family: gpt, chat, bert and two translators."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"width": 16, "depth": 1, "heads": 2}
    byte_pairs = train("byte-pair", SENTENCES, 300)
    whole_words = train("words", SENTENCES, 80)
    chat = chatting_gpt(folder)
    built = {
        "gpt": (GPT(GPTConfig(vocabulary=byte_pairs.vocabulary, context=32, **small)), byte_pairs),
        "chat": (
            GPT(GPTConfig(vocabulary=chat.vocabulary, context=64, position="rotary", **small)),
            chat,
        ),
        "bert": (
            BERT(BERTConfig(vocabulary=whole_words.vocabulary, context=16, **small)),
            whole_words,
        ),
        "one": (
            Transformer(TransformerConfig(vocabulary=whole_words.vocabulary, context=40, **small)),
            whole_words,
        ),
        "other": (
            Transformer(TransformerConfig(vocabulary=whole_words.vocabulary, context=40, **small)),
            whole_words,
        ),
        "stranger": (
            Transformer(TransformerConfig(vocabulary=byte_pairs.vocabulary, **small)),
            byte_pairs,
        ),
    }

    for name, (model, tokenizer) in built.items():
        artifact.save(model, folder / name, tokenizer=tokenizer)

    artifact.save(built["gpt"][0], folder / "speechless")
    return folder
