"""qkv chat: answers with the conversation before them; bad input."""

from __future__ import annotations

import re
from pathlib import Path

from qkv import artifact
from qkv.generation.text import complete
from qkv.models import GPT
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from support.command_fixtures import Qkv

GREEDY = ("--temperature", 0, "--length", 6)


def test_answers_see_the_messages_before(qkv: Qkv, models: Path) -> None:
    model, tokenizer = artifact.load(models / "chat")
    assert isinstance(model, GPT)
    assert tokenizer is not None
    messages = [Message(role="system", content="cat")]
    answers = []
    for text in ("cats", "mice"):
        messages.append(Message(role="user", content=text))
        ids = encode_chat(tokenizer, messages)
        ends = end_of_turn_ids(tokenizer)
        (answer,) = complete(model, tokenizer, [ids], length=6, temperature=0.0, end=ends)
        messages.append(Message(role="assistant", content=answer))
        answers.append(answer)

    printed = qkv(
        "chat",
        models / "chat",
        "--system",
        "cat",
        *GREEDY,
        typed="cats\n\n  mice \n/quit\nnever read\n",
    )

    assert printed.out == "".join(f"{answer}\n" for answer in answers)
    assert printed.code == 0


def test_a_new_conversation(qkv: Qkv, models: Path) -> None:
    printed = qkv("chat", models / "chat", *GREEDY, typed="cats\n/again\ncats\n")
    half = len(printed.out) // 2
    assert printed.out[:half] == printed.out[half:] != ""


def test_a_long_conversation_drops_its_beginning_with_a_note(qkv: Qkv, models: Path) -> None:
    printed = qkv("chat", models / "chat", *GREEDY, typed="cats chase mice\n" * 4)
    assert printed.code == 0
    assert "context of 64 tokens: its first 2 messages are dropped" in printed.error


def test_bad_input(qkv: Qkv, models: Path) -> None:
    for arguments, message in [
        (["gpt"], "chat_template: "),
        (["bert"], "use qkv fill"),
        (["chat"], "standard input: it is empty"),
        (["chat", "--length", "0"], "length: expected 1 to 1,000,000 tokens, not 0"),
        (
            ["chat", "--length", "100000000000"],
            "length: expected 1 to 1,000,000 tokens, not 100,000,000,000",
        ),
        (["chat", "--temperature", "-1"], "temperature: expected 0"),
    ]:
        printed = qkv("chat", models / arguments[0], *arguments[1:])
        assert printed.refused
        assert message in printed.error
        assert printed.out == ""


def test_a_message_longer_than_the_context(qkv: Qkv, models: Path) -> None:
    printed = qkv("chat", models / "chat", *GREEDY, typed="cats " * 80 + "\n")
    assert printed.refused
    assert re.match(r"qkv: text: \d+ tokens are more than the model's context of 64", printed.error)


def test_a_template_that_fails(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, tokenizer = artifact.load(models / "chat")
    assert tokenizer is not None
    tokenizer.chat_template = "{{ 1 / 0 }}"
    artifact.save(model, tmp_path / "model", tokenizer=tokenizer)
    printed = qkv("chat", tmp_path / "model", typed="cats\n")
    assert (printed.out, printed.code) == ("", 1)
    assert printed.error.startswith("qkv: chat_template: ")
    assert "division by zero" in printed.error
