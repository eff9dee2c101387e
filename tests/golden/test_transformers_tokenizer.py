"""`write_folder` with a tokenizer: AutoTokenizer gives the ids that our model reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import qkv
from qkv.generation.fill import masked_ids
from qkv.generation.text import complete, prompt_ids
from qkv.generation.translate import source_ids, translate_texts
from qkv.models import BERT, GPT, BERTConfig, GPTConfig, Transformer, TransformerConfig
from qkv.models.convert import write_folder
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES
from support.tiny_transformers import loaded
from support.tokenizer_kinds import (
    ENGLISH,
    TEMPLATE,
    byte_fallback,
    gguf_file,
    marian_folder,
    wordpiece_of_bert,
)

TEXTS = [
    *SENTENCES[:3],
    "ROMEO:",
    "  two  spaces\n\tand lines ",
    "don't, it's 3.14!",
    "ünïcödé 日本 😀 ﬁ e\u0301",
    "",
]


def own(kind: Any) -> Callable[[Path], Tokenizer]:
    return lambda folder: train(kind, [*SENTENCES, "ROMEO:"] * 2, 400)


def llama_with_start(folder: Path) -> Tokenizer:
    """Return a tokenizer as Llama 2's, whose rules put <s> before each text."""
    inner = byte_fallback()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return Tokenizer(inner, {"bos_token": "<s>", "eos_token": "</s>"})


def llama_with_add_bos_token(folder: Path) -> Tokenizer:
    return Tokenizer(
        byte_fallback(), {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    )


def gpt2_files(folder: Path) -> Tokenizer:
    trained = train("byte-pair", SENTENCES, 400)
    trained.inner.model.save(str(folder))
    return Tokenizer.read(folder)


KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    "characters": own("characters"),
    "words": own("words"),
    "byte-pair": own("byte-pair"),
    "word-piece": own("word-piece"),
    "gguf": lambda folder: Tokenizer.read(gguf_file(folder / "tiny.gguf")),
    "gguf told to start": lambda folder: Tokenizer.read(
        gguf_file(folder / "tiny.gguf", ggml_add_bos_token=True)
    ),
    "llama with a start": llama_with_start,
    "llama told to start": llama_with_add_bos_token,
    "gpt-2's files": gpt2_files,
}


def small(tokenizer: Tokenizer, **choices: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    room = tokenizer.vocabulary + 3  # a model may have room for more tokens
    return {
        "vocabulary": room,
        "context": 64,
        "width": 16,
        "depth": 1,
        "heads": 2,
        "dropout": 0.0,
    } | choices


def ids_of(theirs: Any, text: str, **how: Any) -> list[int]:
    return theirs(text, **how)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpt_reads_the_same_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = KINDS[kind](tmp_path)
    model = GPT(GPTConfig(**small(tokenizer))).eval()
    write_folder(model, tmp_path / "theirs", tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for text in TEXTS:
        assert ids_of(theirs, text, add_special_tokens=False) == tokenizer.encode(text)
        if text:
            assert ids_of(theirs, text) == prompt_ids(tokenizer, text)

        assert theirs.decode(tokenizer.encode(text), skip_special_tokens=False) == tokenizer.decode(
            tokenizer.encode(text)
        )

    assert theirs.model_max_length == 64
    assert theirs.chat_template == tokenizer.chat_template
    assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.end, tokenizer.padding)

    again = qkv.load(tmp_path / "theirs").tokenizer
    assert again is not None
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert again.special_tokens == tokenizer.special_tokens
    assert prompt_ids(again, "ROMEO:") == prompt_ids(tokenizer, "ROMEO:")


def test_their_library_generates_what_ours_does(tmp_path: Path) -> None:
    """From the folder alone, their generate() gives our prompt ids, end token and text."""
    tokenizer = KINDS["byte-pair"](tmp_path)
    model = GPT(GPTConfig(**small(tokenizer))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 8

    write_folder(model, tmp_path / "theirs", tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    their_model = loaded(AutoModelForCausalLM, tmp_path / "theirs")
    assert their_model.generation_config.eos_token_id == tokenizer.end
    assert their_model.generation_config.bos_token_id == tokenizer.end  # what our texts begin after
    requested = theirs("ROMEO:", return_tensors="pt")
    output = their_model.generate(**requested, max_new_tokens=12, do_sample=False)[
        0, requested["input_ids"].shape[1] :
    ]
    right = complete(model, tokenizer, "ROMEO:", length=12, temperature=0.0)
    assert tokenizer.decode(output.tolist()) == right


@pytest.mark.parametrize("kind", ["words", "word-piece", "byte-pair", "bert's"])
def test_a_bert_reads_the_same_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer(wordpiece_of_bert()) if kind == "bert's" else KINDS[kind](tmp_path)
    write_folder(BERT(BERTConfig(**small(tokenizer))), tmp_path / "theirs", tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    start, end = ([] if id is None else [id] for id in (tokenizer.start, tokenizer.end))
    for text in TEXTS:
        assert ids_of(theirs, text, add_special_tokens=False) == tokenizer.encode(text)
        assert ids_of(theirs, text) == [*start, *tokenizer.encode(text), *end]

    pair = theirs("one", "two words")
    first = [*start, *tokenizer.encode("one"), *end]
    second = [*tokenizer.encode("two words"), *end]
    assert pair["input_ids"] == first + second
    assert pair["token_type_ids"] == [0] * len(first) + [1] * len(second)
    if (
        tokenizer.end is not None and kind != "byte-pair"
    ):  # where a space before a mask belongs to the mask
        text = f"the {theirs.mask_token} sat"
        assert ids_of(theirs, text) == masked_ids(tokenizer, text)

    assert AutoConfig.from_pretrained(tmp_path / "theirs").pad_token_id == tokenizer.padding


def test_a_translator_of_ours(tmp_path: Path) -> None:
    tokenizer = train("words", SENTENCES, 200)
    model = Transformer(TransformerConfig(**small(tokenizer), position="sinusoidal")).eval()
    write_folder(model, tmp_path / "theirs", tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for text in TEXTS[:-1]:
        assert [ids_of(theirs, text)] == source_ids([model], tokenizer, [text])

    config = loaded(AutoModelForSeq2SeqLM, tmp_path / "theirs").generation_config
    assert config.decoder_start_token_id == tokenizer.start
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.end, tokenizer.padding)


def test_marians(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    tokenizer = Tokenizer.read(marian_folder(tmp_path / "files"))
    choices = small(tokenizer, vocabulary=tokenizer.vocabulary, norm_epsilon=1e-5)
    model = Transformer(TransformerConfig(**choices, position="sinusoidal")).eval()
    write_folder(model, tmp_path / "theirs", tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for text in [*ENGLISH[:20], ">>tur<< the cat", "  two  spaces "]:
        assert ids_of(theirs, text, add_special_tokens=False) == tokenizer.encode(text)
        assert [ids_of(theirs, text)] == source_ids([model], tokenizer, [text])

    their_model = loaded(AutoModelForSeq2SeqLM, tmp_path / "theirs")
    requested = theirs(ENGLISH[0], return_tensors="pt")
    output = their_model.generate(
        **requested, max_new_tokens=9, num_beams=1, do_sample=False, forced_eos_token_id=None
    )
    ((_, (best,)),) = translate_texts([model], tokenizer, [ENGLISH[0]], length=9, beams=1)
    assert theirs.decode(output[0], skip_special_tokens=True).strip() == best.text


def test_a_chat_is_rendered_the_same(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(gguf_file(tmp_path / "tiny.gguf"))
    write_folder(GPT(GPTConfig(**small(tokenizer))), tmp_path / "theirs", tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert theirs.chat_template == TEMPLATE
    described = theirs.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert described == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_files_that_are_no_tokenizer_json_are_written_as_one(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "tiny.gguf")
    tokenizer = Tokenizer.read(file)
    write_folder(GPT(GPTConfig(**small(tokenizer))), tmp_path / "theirs", tokenizer=file)
    assert ids_of(AutoTokenizer.from_pretrained(tmp_path / "theirs"), "ROMEO:") == tokenizer.encode(
        "ROMEO:"
    )


def test_without_a_tokenizer_theirs_is_not_an_empty_one(tmp_path: Path) -> None:
    write_folder(GPT(GPTConfig(vocabulary=20, context=8, width=8, depth=1, heads=1)), tmp_path)
    with pytest.raises(ValueError, match="tokenizer"):
        AutoTokenizer.from_pretrained(tmp_path)

    assert qkv.load(tmp_path).tokenizer is None


def test_a_tokenizer_that_is_too_large(tmp_path: Path) -> None:
    tokenizer = train("characters", SENTENCES, 60)
    model = GPT(GPTConfig(vocabulary=20, context=8, width=8, depth=1, heads=1))
    with pytest.raises(
        ValueError, match=r"tokenizer: it has .* tokens, the model's vocabulary only 20"
    ):
        write_folder(model, tmp_path / "theirs", tokenizer=tokenizer)

    assert not (tmp_path / "theirs").exists()


def test_ids_that_are_given_come_before_the_tokenizers(tmp_path: Path) -> None:
    tokenizer = train("characters", SENTENCES, 60)
    write_folder(
        GPT(GPTConfig(**small(tokenizer))),
        tmp_path,
        tokenizer=tokenizer,
        end_id=7,
        pad_id=8,
        begin_id=9,
    )
    config = loaded(AutoModelForCausalLM, tmp_path).generation_config
    assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (7, 8, 9)
    assert isinstance(
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")), tokenizers.Tokenizer
    )
