"""Conversations: only answers are targets, and packing several into a row keeps their losses."""

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
    EncodedConversation,
    encode_conversation,
    encode_conversations,
    open_conversations,
    pack,
)
from qkv.models import GPT, GPTConfig
from qkv.text import Tokenizer, train
from qkv.text.chat_template import Message, encode_chat
from support.made_data import same_batch
from support.tokenizer_kinds import gguf_file
from unit.data.sources.test_source import piped, table, write

END = 2  # <|im_end|>
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}\n{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)
INDENTS = train("byte-pair", ["def b:\n    b\n    b\n\n    b"] * 4, 300)
INDENTING = Tokenizer(INDENTS.inner, {**INDENTS.config, "chat_template": TEMPLATE})
"""A tokenizer for which a newline and the spaces after it are one token."""


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


def select(ids: list[int], is_target: list[bool]) -> list[int]:
    """The ids that are targets."""
    return [id for id, target in zip(ids, is_target, strict=True) if target]


def sign(end: bool, target: bool) -> str:
    """x for the end of an answer, . for its other tokens, and a space for the rest."""
    if end:
        return "x"

    return "." if target else " "


# Reading


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.xz", ".parquet"])
def test_messages(kind: str) -> None:
    name = table(
        "a" + kind, {"id": [1], "messages": [list(chat("Hi", " Hello. ", system="Be kind."))]}
    )
    (conversation,) = open_conversations([name])
    assert conversation.messages == chat(
        "Hi", " Hello. ", system="Be kind."
    )  # unchanged, since it may start with an indent
    assert conversation.where.startswith(name)


def test_messages_in_the_format_of_sharegpt(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ([ANSWER, USER], "the assistant's first message comes before any user's"),
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


# Token ids


def test_answers_and_their_ends_are_targets(tokenizer: Tokenizer) -> None:
    messages = chat(
        "Hi", "Hello there.", "And <|im_end|>?", "Bye <|im_end|> now", system="Be kind."
    )
    ids, is_target = encode_conversation(tokenizer, messages)
    assert ids == encode_chat(tokenizer, messages, reply=False)
    answers = select(ids, is_target)
    hello, bye = (tokenizer.encode_as_text(text) for text in ("Hello there.", "Bye <|im_end|> now"))
    assert answers == [*hello, END, *bye, END]
    first = len(encode_chat(tokenizer, messages[:2]))
    assert is_target[:first] == [False] * first  # the template's header, too
    assert is_target[first : first + len(hello) + 2] == [True] * (len(hello) + 1) + [
        False
    ]  # a newline after the end


@given(
    st.lists(
        st.text("ab <|im_end|>\n", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=6
    )
)
def test_any_answers(tokenizer: Tokenizer, contents: list[str]) -> None:
    ids, is_target = encode_conversation(tokenizer, chat(*contents))
    ends = [id == END and target for id, target in zip(ids, is_target, strict=True)]
    assert sum(ends) == len(contents) // 2
    runs = "".join(sign(end, target) for end, target in zip(ends, is_target, strict=True)).split(
        "x"
    )
    assert all(re.fullmatch(r" +\.+", run) for run in runs[:-1])
    answers = tokenizer.decode(select(ids, is_target))
    assert answers == "".join(contents[1::2])


@given(st.lists(st.text("b \n", min_size=1).filter(str.strip), min_size=2, max_size=6))
def test_an_answer_keeps_its_indent(contents: list[str]) -> None:
    messages = chat(*contents)
    ids, is_target = encode_conversation(INDENTING, messages)
    expected = "".join(contents[1::2])
    answers = select(ids, is_target)
    assert INDENTING.decode([id for id in answers if id != INDENTING.end]) == expected
    for number in range(1, len(messages), 2):  # generation sees the same prompt as training
        before = encode_chat(INDENTING, messages[:number])
        assert ids[: len(before)] == before
        assert is_target[len(before)]


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    return Tokenizer(tokenizer.inner, {**tokenizer.config, "chat_template": template})


def test_a_template_without_an_end(tokenizer: Tokenizer) -> None:
    plain = with_template(
        tokenizer,
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
    )
    ids, is_target = encode_conversation(plain, chat("a", "b", "c", "d"))
    assert plain.decode(select(ids, is_target)) == " b\n d\n"


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
def test_a_template_that_does_not_append_answers_is_refused(
    tokenizer: Tokenizer, template: str
) -> None:
    broken = with_template(tokenizer, template)
    with pytest.raises(
        ValueError,
        match=r"^a\.jsonl:7: chat_template: message 2 .*separated",
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
            if sum(lengths[member] for member in row) + lengths[number] <= size:
                row.append(number)
                break
        else:
            expected.append([number])
    assert [row.tolist() for row in pack(np.array(lengths), order, size)] == expected


def encoded(*patterns: str) -> list[EncodedConversation]:
    """x is a target, . is not; the ids of conversation i are 100 i, 100 i + 1, ..."""
    return [
        EncodedConversation(
            np.arange(100 * i, 100 * i + len(pattern), dtype=np.int32),
            np.array([character == "x" for character in pattern]),
        )
        for i, pattern in enumerate(patterns)
    ]


def test_a_packed_row() -> None:
    data = ConversationData(encoded("..xx.", ".x", ".x..x"), context=9, size=3, padding=7)
    (batch,) = data.ordered()
    assert batch.documents is not None
    assert batch.positions is not None
    rows = {}
    for document in range(3):
        mine = batch.documents[0] == document
        ids = batch.ids[0, mine].tolist()
        rows[ids[0] // 100] = (ids, batch.targets[0, mine].tolist())
        assert batch.positions[0, mine].tolist() == list(range(len(ids)))
    assert rows == {
        0: ([0, 1, 2], [IGNORE, 2, 3]),
        1: ([100], [101]),
        2: ([200, 201, 202, 203], [201, IGNORE, IGNORE, 204]),
    }
    assert batch.padding_mask is None
    assert (batch.count, batch.tokens, data.steps_per_epoch, data.tokens_per_step) == (5, 8, 1, 8)


def test_padding_and_truncation() -> None:
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
    targets = sorted(batch.targets[batch.targets != IGNORE].tolist())
    assert targets == [2, 3, 4, 202, 301]


def test_every_conversation_once_an_epoch_from_any_step() -> None:
    conversations = encoded(*("." * (1 + i % 5) + "x" for i in range(20)))

    def build(seed: int = 0) -> ConversationData:
        return ConversationData(conversations, context=8, size=3, padding=0, seed=seed)

    data = build()
    assert data.steps_per_epoch == 7
    epochs = []
    for epoch in range(2):
        batches = [data.batch(7 * epoch + step) for step in range(7)]
        assert [batch.count for batch in batches] == [3] * 6 + [2], (
            "each conversation has one target"
        )
        targets = [
            target
            for batch in batches
            for target in batch.targets[batch.targets != IGNORE].tolist()
        ]
        assert sorted(targets) == [100 * i + 1 + i % 5 for i in range(20)]
        epochs.append(targets)
    assert epochs[0] != epochs[1]
    for step in (6, 0, 3):
        assert same_batch(build().batch(step), data.batch(step))
    assert not same_batch(build(1).batch(0), data.batch(0))
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
        tokenizer, [Conversation(messages, "a.jsonl:1") for messages in chats]
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
    for ids, is_target in conversations:  # each alone: no packing, truncation or padding
        tokens = torch.from_numpy(ids.astype(np.int64))
        targets = torch.where(torch.from_numpy(is_target), tokens, IGNORE)
        alone += losses(ids=tokens[None, :-1], targets=targets[None, 1:])
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
    assert batch.count == sum(int(conversation.is_target.sum()) for conversation in conversations)


def test_wrong_arguments_are_refused() -> None:
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
