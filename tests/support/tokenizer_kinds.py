"""Small tokenizers in the files of llama.cpp, Marian, BERT and Llama."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from qkv.data.sources.source import open_pairs
from support.sentences import SENTENCES

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_pairs() -> dict[str, Any]:
    """Return vocabulary and merges of byte-pair encoding, as tokenizer.json has them."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator([*SENTENCES, "12345 123 12 2024 2024"] * 3, trainer)
    return json.loads(inner.to_str())["model"]


def gguf_file(path: Path, **changes: Any) -> Path:
    """Write a file without weights, as llama.cpp does; a change of None leaves a field out."""
    model = byte_pairs()
    tokens = [*CONTROL, *sorted(model["vocab"], key=model["vocab"].__getitem__), "<tag>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("general.languages", ["en", "tr"])
    writer.add_array("general.sizes", [1, 2, 3])
    fields = {
        "ggml.model": "gpt2",
        "ggml.pre": "smollm",
        "ggml.tokens": tokens,
        "ggml.token_type": [3] * len(CONTROL) + [1] * len(model["vocab"]) + [4],
        "ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.padding_token_id": 2,
        "ggml.add_bos_token": False,
        "chat_template": TEMPLATE,
    } | {name.replace("ggml_", "ggml."): value for name, value in changes.items()}
    add = {
        int: writer.add_uint32,
        str: writer.add_string,
        list: writer.add_array,
        bool: writer.add_bool,
    }
    for name, value in fields.items():
        if value is not None:
            add[type(value)](f"tokenizer.{name}", value)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


PAIRS = list(islice(open_pairs(["turkish:train"]), 400))
ENGLISH = [
    *(english for english, _ in PAIRS),
    "Doesn't it: CHASE 12 (or 1/2) fish?",
    "A 'Zebra', I!",
]
TURKISH = [*(turkish for _, turkish in PAIRS), "değil mi?", "12 (veya 1/2) balık!"]


def marian_folder(folder: Path, **training: Any) -> Path:
    """Write source.spm, target.spm and vocab.json as opus-mt has them: </s> first, <pad> last."""
    pieces: dict[str, None] = {}
    for name, texts in (("source", ENGLISH), ("target", TURKISH)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(folder / name),
            vocab_size=160,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
            **training,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        (folder / f"{name}.vocab").unlink()
        actual = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        pieces |= dict.fromkeys(actual.id_to_piece(id) for id in range(3, actual.vocab_size()))

    tokens = ["</s>", "<unk>", *pieces, ">>tur<<", "<pad>"]
    ids = {token: id for id, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    config = {"source_lang": "en", "target_lang": "tr"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def wordpiece_of_bert() -> tokenizers.Tokenizer:
    tokens = [
        "[UNK]",
        "[PAD]",
        "[MASK]",
        "cat",
        "##s",
        "don",
        "'",
        "t",
        ".",
        ",",
        "##.",
        "do",
        "not",
        "n't",
        "( x )",
    ]
    inner = tokenizers.Tokenizer(
        models.WordPiece({token: id for id, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(cleanup=True)
    inner.add_special_tokens(["[UNK]", "[PAD]", "[MASK]"])
    return inner


def byte_fallback() -> tokenizers.Tokenizer:
    """Return Llama's kind: tokens with ▁ for a space, and a token for each byte of other text."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "▁cat", "s", "▁the", *"abcdefghijklmnopqrstuvwxyz"]
    tokens = list(dict.fromkeys([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))]))
    vocabulary = {token: id for id, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return inner
