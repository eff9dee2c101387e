"""Conversations: the answers alone are asked, and packing many into a row changes nobody's loss."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.chat import (
    Conversation,
    ConversationData,
    Encoded,
    encode_conversation,
    encode_conversations,
    open_conversations,
    pack,
)
from qkv.models import GPT, GPTConfig
from qkv.text import Tokenizer, train
from qkv.text.chat_template import Message, encode_chat
from support.made_data import same
from support.tokenizer_kinds import gguf_file
from unit.data.sources.test_source import piped, table, write

END = 2  # <|im_end|>
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}\n{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)
INDENTS = train("byte-pair", ["def b:\n    b\n    b\n\n    b"] * 4, 300)
INDENTING = Tokenizer(INDENTS.inner, {**INDENTS.config, "chat_template": TEMPLATE})
"""To which a newline and the spaces after it are one token."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.read(gguf_file(tmp_path_factory.mktemp("gguf") / "a.gguf"))


def chat(*contents: str, system: str | None = None) -> tuple[Message, ...]:
    turns = [
        Message(role=("user", "assistant")[i % 2], content=content)
        for i, content in enumerate(contents)
    ]
    return (*([] if system is None else [Message(role="system", content=system)]), *turns)


# Reading


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.xz", ".parquet"])
def test_messages(kind: str) -> None:
    name = table(
        "a" + kind, {"id": [1], "messages": [list(chat("Hi", " Hello. ", system="Be kind."))]}
    )
    (found,) = open_conversations([name])
    assert found.messages == chat(
        "Hi", " Hello. ", system="Be kind."
    )  # as it is: it may begin with an indent
    assert found.where.startswith(name)


def test_messages_as_sharegpt_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello."},
    ]
    name = table("a.jsonl", {"conversations": [turns]})
    assert list(open_conversations([name])) == [
        Conversation(chat("Hi", "Hello.", system="s"), "a.jsonl:1")
    ]
    piped(monkeypatch, json.dumps({"messages": chat("a", "b")}).encode())
    assert list(open_conversations(["-"])) == [Conversation(chat("a", "b"), "-:1")]


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([USER], "no message is the assistant's, so there is nothing to learn"),
        ([ANSWER, USER], "the assistant speaks before anyone asked; leave its first message out"),
        ("a", "the messages: expected a list, not a string"),
        ([], "the messages: expected a list, not an empty one"),
        (None, "the messages: expected a list, not null"),
        ([USER, "b"], "message 2: expected an object with role and content, not a string"),
        ([USER, {"role": "assistant"}], "message 2: there is no content; it has role"),
        ([{"content": "x"}], "message 1: there is no role; it has content"),
        (
            [USER, {"role": "robot", "content": "b"}],
            "message 2: expected a role of system, user, assistant, human, gpt",
        ),
        ([USER, {"role": "assistant", "content": " "}], "message 2: the content is empty"),
        ([{"from": "human", "value": ""}, ANSWER], "message 1: the value is empty"),
        (
            [USER, {"role": "assistant", "content": None}],
            "message 2: content: expected a string, not null",
        ),
    ],
)
def test_mistakes(messages: Any, message: str) -> None:
    write(
        "a.jsonl",
        json.dumps({"messages": chat("a", "b")}) + "\n" + json.dumps({"messages": messages}),
    )
    with pytest.raises(ValueError, match="^" + re.escape("a.jsonl:2: " + message)):
        list(open_conversations(["a.jsonl"]))


def test_files_of_another_kind() -> None:
    with pytest.raises(
        ValueError, match=r"^a\.tsv: conversations are read from \.jsonl or \.parquet$"
    ):
        open_conversations([write("a.tsv", "messages\n")])
    with pytest.raises(
        ValueError, match=r"^a\.jsonl:1: no column 'messages'; the columns are text$"
    ):
        list(open_conversations([write("a.jsonl", '{"text": "a"}')]))


# Ids


def test_answers_and_their_ends_are_asked(tokenizer: Tokenizer) -> None:
    messages = chat(
        "Hi", "Hello there.", "And <|im_end|>?", "Bye <|im_end|> now", system="Be kind."
    )
    ids, asked = encode_conversation(tokenizer, messages)
    assert ids == encode_chat(tokenizer, messages, reply=False)
    said = [id for id, each in zip(ids, asked, strict=True) if each]
    hello, bye = (tokenizer.encode_as_text(text) for text in ("Hello there.", "Bye <|im_end|> now"))
    assert said == [*hello, END, *bye, END]
    first = len(encode_chat(tokenizer, messages[:2]))
    assert asked[:first] == [False] * first  # the template's header, too
    assert asked[first : first + len(hello) + 2] == [True] * (len(hello) + 1) + [
        False
    ]  # a newline after the end


@given(
    st.lists(
        st.text("ab <|im_end|>\n", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=6
    )
)
def test_any_answers(tokenizer: Tokenizer, contents: list[str]) -> None:
    ids, asked = encode_conversation(tokenizer, chat(*contents))
    ends = [id == END and each for id, each in zip(ids, asked, strict=True)]
    assert sum(ends) == len(contents) // 2
    runs = "".join(
        "x" if end else "." if each else " " for end, each in zip(ends, asked, strict=True)
    ).split("x")
    assert all(re.fullmatch(r" +\.+", run) for run in runs[:-1])
    said = tokenizer.decode([id for id, each in zip(ids, asked, strict=True) if each])
    assert said == "".join(contents[1::2])


@given(st.lists(st.text("b \n", min_size=1).filter(str.strip), min_size=2, max_size=6))
def test_an_answer_keeps_its_indent(contents: list[str]) -> None:
    messages = chat(*contents)
    ids, asked = encode_conversation(INDENTING, messages)
    answers = "".join(contents[1::2])
    said = [id for id, each in zip(ids, asked, strict=True) if each]
    assert INDENTING.decode([id for id in said if id != INDENTING.end]) == answers
    for number in range(
        1, len(messages), 2
    ):  # what the model reads before it answers is what it learned from
        before = encode_chat(INDENTING, messages[:number])
        assert ids[: len(before)] == before
        assert asked[len(before)]


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    return Tokenizer(tokenizer.inner, {**tokenizer.config, "chat_template": template})


def test_a_template_without_an_end(tokenizer: Tokenizer) -> None:
    plain = with_template(
        tokenizer,
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
    )
    ids, asked = encode_conversation(plain, chat("a", "b", "c", "d"))
    assert plain.decode([id for id, each in zip(ids, asked, strict=True) if each]) == " b\n d\n"


@pytest.mark.parametrize(
    "template",
    [
        # only the last message
        "{{ messages[-1].content }}{% if add_generation_prompt %}>{% endif %}",
        # how many, first
        "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
        # no answers at all
        "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}",
    ],
)
def test_a_template_that_hides_the_answers(tokenizer: Tokenizer, template: str) -> None:
    broken = with_template(tokenizer, template)
    with pytest.raises(
        ValueError,
        match=r"^a\.jsonl:7: chat_template: it does not write message 2 after what comes",
    ):
        encode_conversations(broken, [Conversation(chat("a", "b", "c", "d"), "a.jsonl:7")])


# Packing


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(20, 50), st.integers(0, 5)
)
def test_each_goes_into_the_first_row_with_room(lengths: list[int], size: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths))
    expected: list[list[int]] = []
    for number in order.tolist():
        for row in expected:
            if sum(lengths[each] for each in row) + lengths[number] <= size:
                row.append(number)
                break
        else:
            expected.append([number])
    assert [row.tolist() for row in pack(np.array(lengths), order, size)] == expected


def encoded(*asked: str) -> list[Encoded]:
    """x is asked, . is not; the ids of conversation i are 100 i, 100 i + 1, ..."""
    return [
        Encoded(
            np.arange(100 * i, 100 * i + len(each), dtype=np.int32),
            np.array([sign == "x" for sign in each]),
        )
        for i, each in enumerate(asked)
    ]


def test_a_packed_row() -> None:
    data = ConversationData(encoded("..xx.", ".x", ".x..x"), context=9, size=3, padding=7)
    (batch,) = data.ordered()
    assert batch.documents is not None
    assert batch.positions is not None
    found = {}
    for document in range(3):
        mine = batch.documents[0] == document
        ids = batch.ids[0, mine].tolist()
        found[ids[0] // 100] = (ids, batch.targets[0, mine].tolist())
        assert batch.positions[0, mine].tolist() == list(range(len(ids)))
    assert found == {
        0: ([0, 1, 2], [IGNORE, 2, 3]),
        1: ([100], [101]),
        2: ([200, 201, 202, 203], [201, IGNORE, IGNORE, 204]),
    }
    assert batch.padding_mask is None
    assert (batch.count, batch.tokens, data.steps_per_epoch, data.tokens_per_step) == (5, 8, 1, 8)


def test_padding_and_what_is_cut() -> None:
    data = ConversationData(
        encoded("..xxxx", "......x", "..x.", ".x"), context=4, size=8, padding=7
    )
    assert (data.cut, data.left_out) == (1, 1)
    (batch,) = data.ordered()
    assert batch.padding_mask is not None
    read = [batch.ids[row, batch.padding_mask[row]].tolist() for row in range(batch.rows)]
    assert sorted(map(tuple, read)) in (
        [(0, 1, 2, 3), (200, 201, 300)],
        [(0, 1, 2, 3), (300, 200, 201)],
    )
    assert batch.ids[~batch.padding_mask].tolist() == [7] * int((~batch.padding_mask).sum())
    assert bool((batch.targets[~batch.padding_mask] == IGNORE).all())
    asked = sorted(batch.targets[batch.targets != IGNORE].tolist())
    assert asked == [2, 3, 4, 202, 301]


def test_every_conversation_once_an_epoch_from_any_step() -> None:
    conversations = encoded(*("." * (1 + i % 5) + "x" for i in range(20)))

    def made(seed: int = 0) -> ConversationData:
        return ConversationData(conversations, context=8, size=3, padding=0, seed=seed)

    data = made()
    assert data.steps_per_epoch == 7
    epochs = []
    for epoch in range(2):
        batches = [data.batch(7 * epoch + step) for step in range(7)]
        assert [batch.count for batch in batches] == [3] * 6 + [2], (
            "conversations, each asked for one word"
        )
        asked = [
            target
            for batch in batches
            for target in batch.targets[batch.targets != IGNORE].tolist()
        ]
        assert sorted(asked) == [100 * i + 1 + i % 5 for i in range(20)]
        epochs.append(asked)
    assert epochs[0] != epochs[1]
    for step in (6, 0, 3):
        assert same(made().batch(step), data.batch(step))
    assert not same(made(1).batch(0), data.batch(0))
    assert sum(batch.count for batch in data.ordered()) == 20
    assert max(batch.ids.shape[1] for batch in data.ordered()) <= 8


def test_conversations_of_a_step_share_rows_and_fill_few_shapes() -> None:
    conversations = encoded(*("...x" for _ in range(18)))
    data = ConversationData(conversations, context=64, size=4, padding=0, multiple=8)
    assert (data.steps_per_epoch, data.tokens_per_step, data.length) == (5, 10, 10)
    for step, (count, width) in enumerate([(4, 16), (4, 16), (4, 16), (4, 16), (2, 8)]):
        batch = data.batch(step)
        assert (batch.count, tuple(batch.ids.shape)) == (count, (1, width))
        assert batch.padding_mask is not None
    more = ConversationData(conversations, context=64, size=32, padding=0)
    assert (more.steps_per_epoch, more.batch(0).count, tuple(more.batch(0).ids.shape)) == (
        1,
        18,
        (1, 54),
    )


def test_a_packed_row_has_the_losses_of_each_conversation_alone(tokenizer: Tokenizer) -> None:
    chats = [
        chat("Hi", "Hello."),
        chat("a b", "c", "d", "e f", system="s"),
        chat("What?", "That."),
        chat("x", "y" * 9),
    ]
    conversations = encode_conversations(
        tokenizer, [Conversation(each, "a.jsonl:1") for each in chats]
    )
    config = GPTConfig(
        vocabulary=tokenizer.vocabulary, context=128, width=16, depth=2, heads=2, dropout=0.0
    )
    model = GPT(config).double().eval()

    @torch.no_grad()
    def losses(**batch: Any) -> float:
        targets = batch.pop("targets")
        logits = model(batch.pop("ids"), **batch)
        return float(
            F.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum"
            )
        )

    alone = 0.0
    for ids, asked in conversations:  # every word read, nothing packed, cut or masked
        words = torch.from_numpy(ids.astype(np.int64))
        targets = torch.where(torch.from_numpy(asked), words, IGNORE)
        alone += losses(ids=words[None, :-1], targets=targets[None, 1:])
    packed = ConversationData(conversations, context=50, size=4, padding=0)
    (batch,) = packed.ordered()
    assert 1 < batch.rows < len(chats)
    assert batch.padding_mask is not None
    together = losses(
        ids=batch.ids,
        targets=batch.targets,
        padding_mask=batch.padding_mask,
        documents=batch.documents,
        positions=batch.positions,
    )
    assert together == pytest.approx(alone, rel=1e-12)
    assert batch.count == sum(int(each.asked.sum()) for each in conversations)


def test_what_conversation_data_refuses() -> None:
    some = encoded(".x")
    for conversations, change, message in (
        (some, {"size": 0}, r"^size: expected 1 or more, not 0$"),
        (some, {"context": 0}, r"^context: expected 1 or more, not 0$"),
        (some, {"seed": -1}, r"^seed: expected 0 or more, not -1$"),
        (encoded("....x"), {}, r"^conversations: none of 1 has an answer within 3 tokens$"),
    ):
        with pytest.raises(ValueError, match=message):
            ConversationData(conversations, **{"context": 3, "size": 1, "padding": 0, **change})
    with pytest.raises(ValueError, match=r"^step: expected 0 or more, not -1$"):
        ConversationData(some, 3, 1, 0).batch(-1)
