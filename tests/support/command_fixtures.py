"""Commands as a person types them, in this process: what they print, and what they say of bad
input.
"""

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
    out: str
    error: str
    code: int

    @property
    def refused(self) -> bool:
        """Whether the status is that of an error: 2 of wrong usage, 1 of any other; test_cli.py
        tells them apart.
        """
        return self.code in (1, 2)


Qkv = Callable[..., Printed]


@pytest.fixture
def qkv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Qkv:
    def run(*words: str | Path, typed: str | bytes = "") -> Printed:
        content = typed.encode() if isinstance(typed, str) else typed
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, words)])
        code, message = 0, ""
        try:
            with unchecked():
                cli.main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
            message = f"{error.code}\n" if isinstance(error.code, str) else ""
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
    pairs, words = train("byte-pair", SENTENCES, 300), train("words", SENTENCES, 80)
    chat = chatting_gpt(folder)
    made = {
        "gpt": (GPT(GPTConfig(vocabulary=pairs.vocabulary, context=32, **small)), pairs),
        "chat": (
            GPT(GPTConfig(vocabulary=chat.vocabulary, context=64, position="rotary", **small)),
            chat,
        ),
        "bert": (BERT(BERTConfig(vocabulary=words.vocabulary, context=16, **small)), words),
        "one": (
            Transformer(TransformerConfig(vocabulary=words.vocabulary, context=40, **small)),
            words,
        ),
        "other": (
            Transformer(TransformerConfig(vocabulary=words.vocabulary, context=40, **small)),
            words,
        ),
        "stranger": (Transformer(TransformerConfig(vocabulary=pairs.vocabulary, **small)), pairs),
    }
    for name, (model, tokenizer) in made.items():
        artifact.save(model, folder / name, tokenizer=tokenizer)
    artifact.save(made["gpt"][0], folder / "speechless")
    return folder
