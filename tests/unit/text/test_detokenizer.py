"""The incremental detokenizer gives the text of all ids, whatever the ids are."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from qkv.text import Tokenizer, train
from qkv.text.detokenizer import IncrementalDetokenizer
from support.sentences import ODD, SENTENCES, SIZES
from support.tokenizer_kinds import byte_fallback, gguf_file, marian_folder, wordpiece_of_bert

KINDS = [*SIZES, "gguf", "marian", "bert", "byte-fallback", "no decoder", "bytes in a sequence"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    kind = request.param
    folder = tmp_path_factory.mktemp("tokenizer")
    if kind in SIZES:
        return train(kind, SENTENCES, SIZES[kind])

    if kind == "gguf":
        return Tokenizer.read(gguf_file(folder / "tiny.gguf"))

    if kind == "marian":
        return Tokenizer.read(marian_folder(folder))

    if kind == "bytes in a sequence":
        return bytes_in_a_sequence(decoders.ByteLevel(), decoders.Replace("é", "e"))

    if kind == "no decoder":
        return Tokenizer(
            tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
        )

    return Tokenizer(wordpiece_of_bert() if kind == "bert" else byte_fallback())


def bytes_in_a_sequence(*steps: decoders.Decoder) -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(
        train("byte-pair", SENTENCES, SIZES["byte-pair"]).inner.to_str()
    )
    inner.decoder = decoders.Sequence(list(steps))
    return Tokenizer(inner)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = IncrementalDetokenizer(tokenizer)
    return [*(stream.add(id) for id in ids), stream.close()]


@given(st.data())
def test_random_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Ids may form invalid UTF-8, be special, or lie outside the vocabulary."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary + 2), max_size=40))
    output = pieces(tokenizer, ids)
    assert "".join(output) == tokenizer.decode(ids)
    for piece in output:
        piece.encode("utf-8")


@pytest.mark.parametrize("text", [*SENTENCES, *ODD])
def test_texts(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_chunks_are_whole_characters() -> None:
    tokenizer = train("byte-pair", ["abc"], 261)  # no pairs: a token is a byte
    ids = tokenizer.encode("a👩é")
    assert len(ids) == 7
    assert pieces(tokenizer, ids) == ["a", "", "", "", "👩", "", "é", ""]
    assert pieces(tokenizer, ids[:3]) == ["a", "", "", "\ufffd"]
    assert pieces(tokenizer, [*ids[:3], ids[0]]) == ["a", "", "", "\ufffda", ""]


def test_chunks_are_whole_characters_in_a_sequence_of_decoders() -> None:
    for steps in ([decoders.ByteLevel()], [decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]):
        tokenizer = bytes_in_a_sequence(*steps)
        ids = tokenizer.encode(" 👩é")
        assert [piece for piece in pieces(tokenizer, ids) if piece.strip()] == ["👩", "é"]
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_bytes_that_never_become_a_character_do_not_wait() -> None:
    tokenizer = train("byte-pair", ["abc"], 261)
    lone = tokenizer.encode("é")[1]
    assert pieces(tokenizer, [lone] * 50) == ["\ufffd"] * 50 + [""]


def test_byte_tokens_wait_until_their_run_ends() -> None:
    tokenizer = Tokenizer(byte_fallback())
    first, second, word = (tokenizer.id(token) for token in ("<0xC3>", "<0xA9>", "▁cat"))
    assert first is not None
    assert second is not None
    assert word is not None
    assert pieces(tokenizer, [word, first, second, word]) == ["cat", "", "", "é cat", ""]
    assert pieces(tokenizer, [word, first, second, second]) == ["cat", "", "", "", "\ufffd" * 3]


def test_the_cost_of_an_id_is_constant(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    decode = Tokenizer.decode

    def counted(self: Tokenizer, ids: list[int]) -> str:
        nonlocal most
        most = max(most, len(ids))
        return decode(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    ids = tokenizer.encode(" ".join(SENTENCES * 3))
    pieces(tokenizer, ids)
    longest_run = 9 if isinstance(tokenizer.inner.decoder, decoders.Sequence) else 2
    assert most <= longest_run


def test_tokens_are_joined_as_in_the_whole_text(tmp_path: Path) -> None:
    tokenizer = train("words", ['He said: "yes (and no)", don\'t!'], 50)
    ids = tokenizer.encode('He said: "yes (and no)", don\'t!')
    assert pieces(tokenizer, ids)[:5] == ["He", " said", ":", ' "', "yes"]


def test_a_copy_continues_after_the_same_ids() -> None:
    tokenizer = train("byte-pair", ["naïve 👩 cats"], 300)
    ids = tokenizer.encode("naïve 👩 cats")
    for split in range(len(ids)):
        first = IncrementalDetokenizer(tokenizer)
        text = first.add_all(ids[:split])
        twin = first.copy()
        for detokenizer in (first, twin):
            rest = detokenizer.add_all(ids[split:]) + detokenizer.close()
            assert text + rest == "naïve 👩 cats"
