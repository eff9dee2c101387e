"""The tokenizer: tokens, special tokens, word starts, saving and pickling."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qkv.text import Kind, Tokenizer, train
from support.sentences import ODD, SENTENCES, SIZES


@pytest.fixture(params=SIZES, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(request.param, SENTENCES, SIZES[request.param])


def test_a_batch_is_its_texts(tokenizer: Tokenizer) -> None:
    texts = SENTENCES + ODD
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_tokens_and_ids(tokenizer: Tokenizer) -> None:
    for id in range(tokenizer.vocabulary):
        assert tokenizer.id(tokenizer.token(id)) == id

    assert tokenizer.id("no such token") is None
    ids = tokenizer.encode(SENTENCES[1])
    assert tokenizer.decode(np.array(ids)) == tokenizer.decode(ids)


def test_text_is_never_a_special_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("[pad][start] [end] [mask]")
    assert not {0, 2, 3, 4} & set(ids)


def test_written_and_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "new" / "tokenizer.json"
    tokenizer.write(file)
    assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]
    tokenizer.write(file)
    for again in (
        Tokenizer.read(file),
        Tokenizer.read(str(file.parent)),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode_batch(SENTENCES + ODD) == tokenizer.encode_batch(SENTENCES + ODD)
        assert again.special_tokens == tokenizer.special_tokens


def test_a_written_file_is_the_same_every_time(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.write(tmp_path / "a.json")
    Tokenizer.read(tmp_path / "a.json").write(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_other_libraries_read_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.write(tmp_path)
    file = str(tmp_path / "tokenizer.json")
    bare = tokenizers.Tokenizer.from_file(file)
    fast = PreTrainedTokenizerFast(tokenizer_file=file)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*SENTENCES, *ODD[:5], "I do not know ; it is ' s ."]:
        ids = tokenizer.encode(text)
        assert bare.encode(text).ids == ids
        assert bare.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids)
        for theirs in (fast, auto):
            assert theirs(text)["input_ids"] == ids
            assert theirs.decode(ids) == tokenizer.decode(ids)

    assert len(fast) == len(auto) == tokenizer.vocabulary
    assert (
        auto.pad_token_id,
        auto.unk_token_id,
        auto.bos_token_id,
        auto.eos_token_id,
        auto.mask_token_id,
    ) == (
        0,
        1,
        2,
        3,
        4,
    )


def test_a_full_disk_leaves_the_old_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    tokenizer.write(file)
    before = file.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match=r"no room on the disk: tokenizer\.json needs"):
            train("characters", ["abc"], 10).write(file)

    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_different_tokenizers_have_different_fingerprints() -> None:
    one = train("words", ["a b"], 10)
    other = train("words", ["a c"], 10)
    assert one.fingerprint != other.fingerprint
    elsewhere = Tokenizer(one.inner, {"eos_token": "[mask]"})
    assert elsewhere.end == 4
    assert elsewhere.fingerprint != one.fingerprint


# Where words begin


def groups(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the texts of the tokens from one word start to the next."""
    ids = tokenizer.encode(text)
    starts = [
        0,
        *(position for position in range(1, len(ids)) if tokenizer.starts_word[ids[position]]),
        len(ids),
    ]
    return [tokenizer.decode(ids[a:b]) for a, b in pairwise(starts)]


TEXT = "unfriendly cats, chasing 1234 mice: öğretmenlerin evi."


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "characters",
            [
                "unfriendly",
                " cats",
                ",",
                " chasing",
                " 1234",
                " mice",
                ":",
                " öğretmenlerin",
                " evi",
                ".",
            ],
        ),
        (
            "byte-pair",
            [
                "unfriendly",
                " cats",
                ",",
                " chasing",
                " 1234",
                " mice",
                ":",
                " öğretmenlerin",
                " evi",
                ".",
            ],
        ),
        (
            "words",
            [
                "unfriendly",
                "cats",
                ",",
                "chasing",
                "1234",
                "mice",
                ":",
                "öğretmenlerin",
                "evi",
                ".",
            ],
        ),
        (
            "word-piece",
            [
                "unfriendly",
                "cats",
                ",",
                "chasing",
                "1234",
                "mice",
                ":",
                "öğretmenlerin",
                "evi",
                ".",
            ],
        ),
    ],
)
@pytest.mark.parametrize("size", [270, 300])
def test_word_starts(kind: Kind, expected: list[str], size: int) -> None:
    tokenizer = train(kind, [TEXT], size)
    assert tokenizer.starts_word.shape == (tokenizer.vocabulary,)
    assert tokenizer.starts_word.dtype == bool
    assert tokenizer.starts_word[:5].all()
    assert groups(tokenizer, TEXT) == expected


def test_a_piece_with_an_apostrophe_goes_on_its_word() -> None:
    tokenizer = train("word-piece", ["don't well-known"], 50)
    assert groups(tokenizer, "don't known-well don") == ["don't", "known-well", "don"]


def test_words_begin_with_sentencepieces_mark_too() -> None:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    inner.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=40, show_progress=False))
    assert groups(Tokenizer(inner), TEXT) == [
        "unfriendly",
        "cats",
        ",",
        "chasing",
        "1234",
        "mice",
        ":",
        "öğretmenlerin",
        "evi",
        ".",
    ]


# Special tokens by role


def with_tokens(*names: str) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.add_special_tokens(list(names))
    return inner


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["<|endoftext|>"], (None, None, 0, 0, None)),
        (["<unk>", "<s>", "</s>"], (None, 0, 1, 2, None)),
        (["<s>", "<pad>", "</s>", "<unk>", "<mask>"], (1, 3, 0, 2, 4)),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], (0, 1, 2, 3, 4)),
        (["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], (None, None, 0, 1, None)),
        (["<|im_start|>", "<|im_end|>"], (None, None, 0, 1, None)),
        (["something"], (None, None, None, None, None)),
    ],
)
def test_special_tokens_by_known_names(names: list[str], expected: tuple[int | None, ...]) -> None:
    actual = Tokenizer(with_tokens(*names))
    assert (actual.padding, actual.unknown, actual.start, actual.end, actual.mask) == expected


def test_a_config_names_the_end_token(tmp_path: Path) -> None:
    inner = with_tokens("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    inner.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.read(tmp_path).end == 0
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "not there",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    actual = Tokenizer.read(tmp_path)
    assert (actual.start, actual.end, actual.padding) == (1, 2, None)
    actual.write(tmp_path / "again")
    assert Tokenizer.read(tmp_path / "again").special_tokens == actual.special_tokens
    assert pickle.loads(pickle.dumps(actual)).special_tokens == actual.special_tokens


def test_a_word_that_looks_special_is_not() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, unk_token="?"))
    assert Tokenizer(inner).special_tokens == dict.fromkeys(
        ("padding", "unknown", "start", "end", "mask")
    )


def test_ids_with_a_gap_are_all_counted() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    inner.add_tokens([AddedToken("c")])
    tokenizer = Tokenizer(inner)
    assert tokenizer.vocabulary == max(tokenizer.inner.get_vocab().values()) + 1 >= 8
    assert tokenizer.starts_word.shape == (tokenizer.vocabulary,)
    with pytest.raises(ValueError, match="id: expected one of the vocabulary's"):
        tokenizer.token(5)


# What a text has that the vocabulary does not


def test_unknown_words_are_named() -> None:
    tokenizer = train("words", ["cats chase mice"], 20)
    assert tokenizer.unknown_in("cats chase xyzzy, don't") == ["xyzzy", ",", "don't"]
    assert tokenizer.unknown_in("mice") == tokenizer.unknown_in("") == []
    assert train("characters", ["abc"], 20).unknown_in("abxc") == ["x"]
    assert train("byte-pair", ["abc"], 300).unknown_in("abxc 中") == []


@pytest.mark.parametrize("kind", ["characters", "byte-pair"])
def test_fast_encoding_gives_the_ids_of_encoding_with_offsets(kind: Kind) -> None:
    texts = ["the cat sat on the mat", "", "über 12 Äpfel \U0001f600\n\n  x", "the" * 300]
    tokenizer = train(kind, texts, 300)
    slow = tokenizer.inner.encode_batch(texts, add_special_tokens=False)
    assert tokenizer.encode_batch(texts) == [encoding.ids for encoding in slow]
