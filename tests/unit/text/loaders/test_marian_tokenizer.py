"""Marian's tokenizer of two SentencePiece files: the ids are those of `transformers`."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, MarianTokenizer

from qkv.text import Tokenizer
from qkv.text.loaders.marian_tokenizer import fields, read_pieces
from qkv.text.special_tokens import UnknownKind
from support.tokenizer_kinds import ENGLISH, TURKISH, marian_folder

TEXTS = [
    *ENGLISH[-50:],
    "",
    " ",
    "  two  spaces and a tab\t! ",
    "A CHASE ﬁsh, doesn't it? (12 ½)",
    "a\u00a0b\u200bc",
    "unknown: 中, z",
    "▁cats▁",
    "kediler",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marian_folder(tmp_path_factory.mktemp("marian"))


def theirs_of(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like another package, which changes nothing here
        return MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Tokenizer, Any]:
    return Tokenizer.read(folder), theirs_of(folder)


def pieces_in_vocabulary(theirs: Any, text: str) -> bool:
    """Compare token by token: Marian makes one unknown token of several unknown characters."""
    return all(
        len(piece) == 1 or piece in theirs.encoder
        for piece in theirs.spm_source.encode(text, out_type=str)
    )


def test_texts_are_those_of_transformers(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for text in TEXTS:
        assert pieces_in_vocabulary(theirs, text)
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text


@given(st.text(alphabet="acehimstuo  ,.!'(1½Aﬁ\t\u00a0", max_size=40))
def test_any_text(both: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = both
    if pieces_in_vocabulary(theirs, text):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_targets_are_read_back(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for text in TURKISH[-50:]:
        ids = theirs(text_target=text)["input_ids"]
        assert ours.unknown not in ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == text


@given(st.data())
def test_any_ids_are_read_back(both: tuple[Tokenizer, Any], data: st.DataObject) -> None:
    ours, theirs = both
    ids = data.draw(st.lists(st.integers(2, ours.vocabulary - 3), max_size=20))
    assert ours.decode(ids).strip() == theirs.decode(ids, skip_special_tokens=True)


def test_special_tokens(both: tuple[Tokenizer, Any]) -> None:
    """</s> ends the source, and the target starts with padding."""
    ours, theirs = both
    assert (ours.end, ours.padding, ours.unknown) == (
        theirs.eos_token_id,
        theirs.pad_token_id,
        theirs.unk_token_id,
    )
    assert ours.start == ours.padding == ours.vocabulary - 1
    assert ours.vocabulary == len(theirs.encoder)


def test_a_text_is_never_a_special_token(both: tuple[Tokenizer, Any]) -> None:
    ours, _ = both
    ids = ours.encode("cats</s><pad> <unk>chase </s>")
    assert not {ours.end, ours.padding} & set(ids)


def test_a_source_has_the_pieces_of_its_language_alone(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    normal = [piece for piece in theirs.encoder if not re.fullmatch(r"<.*>|>>.*<<", piece)]
    target_only = [
        piece for piece in normal if len(piece) > 1 and theirs.spm_source.piece_to_id(piece) == 0
    ]
    assert len(target_only) > 20
    for piece in target_only:
        assert theirs.encoder[piece] not in ours.encode(piece.replace("▁", " "))


def test_the_language_to_translate_into(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for text in (">>tur<< cats chase mice", ">>tur<<cats"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text)[0] == ours.vocabulary - 2


def test_it_is_written_and_read_again(both: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, _ = both
    ours.write(tmp_path)
    again = Tokenizer.read(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert again.special_tokens == ours.special_tokens
    fast = AutoTokenizer.from_pretrained(tmp_path)
    assert [fast(text)["input_ids"] for text in ENGLISH] == [again.encode(text) for text in ENGLISH]
    assert (fast.eos_token_id, fast.pad_token_id) == (ours.end, ours.padding)


@pytest.mark.parametrize(
    "rules",
    [
        {"normalization_rule_name": "identity"},
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"user_defined_symbols": ["<sep>"]},
    ],
)
def test_other_rules(rules: dict[str, Any], tmp_path: Path) -> None:
    folder = marian_folder(tmp_path, **rules)
    ours = Tokenizer.read(folder)
    theirs = theirs_of(folder)
    for text in [*ENGLISH[-20:], "  two  spaces ", "Cats ﬁsh ½", "cats<sep>mice"]:
        if pieces_in_vocabulary(theirs, text):
            assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text


# Bad files


def test_unsupported_kinds(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path, model_type="bpe")
    with pytest.raises(
        UnknownKind,
        match=r"source\.spm: expected a unigram model of sentencepiece, not one of kind 2",
    ):
        Tokenizer.read(folder)

    (folder / "target_vocab.json").write_text("{}")
    with pytest.raises(
        UnknownKind, match="one vocabulary for both languages is expected here, not two"
    ):
        Tokenizer.read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"</s>": 5000}, "expected the ids 0 to"),
        ({"<pad>": None}, "vocab.json: <pad> is not in it; expected Marian's vocabulary"),
    ],
)
def test_a_wrong_vocabulary(
    folder: Path, change: dict[str, int | None], message: str, tmp_path: Path
) -> None:
    ids = json.loads((folder / "vocab.json").read_text()) | change
    (tmp_path / "source.spm").write_bytes((folder / "source.spm").read_bytes())
    (tmp_path / "vocab.json").write_text(
        json.dumps({token: id for token, id in ids.items() if id is not None})
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        Tokenizer.read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"\xff" * 20, b"\x0a\x7f", b"\x0a\x02\x08\x01", b"text, no pieces"]
)
def test_a_file_that_is_not_sentencepiece(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "source.spm").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"source\.spm: (not a whole file of|there are no pieces in it)"
    ):
        read_pieces(tmp_path / "source.spm")


def test_the_wire_format() -> None:
    """The example of the protobuf documentation, and each wire type."""
    assert list(fields(b"\x08\x96\x01")) == [(1, 150)]
    assert list(fields(b"\x12\x07testing")) == [(2, b"testing")]
    assert list(fields(b"\x1d\x00\x00\x80\x3f\x21" + bytes(8))) == [
        (3, b"\x00\x00\x80\x3f"),
        (4, bytes(8)),
    ]
