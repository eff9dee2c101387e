"""The channel between two processes: frames arrive whole and in order, however they are split."""

from __future__ import annotations

import asyncio
import pickle
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.front_end.channel import (
    HEADER,
    Channel,
    Kind,
    pack_tokens,
    read_frame,
    unpack_tokens,
)
from qkv.serving.front_end.remote_host import RemoteHost


def nothing(*arguments: object) -> None:
    """A callback that is not expected to matter."""


class Received:
    """One end of a channel, which keeps what arrives."""

    def __init__(self, end: socket.socket) -> None:
        self.frames: list[tuple[Kind, bytes]] = []
        self.lost = asyncio.Event()
        self.enough = asyncio.Event()
        self.expected = 0
        self.channel = Channel(end, self.receive, nothing, self.lost.set)

    def receive(self, kind: Kind, payload: bytes) -> None:
        self.frames.append((kind, payload))
        if len(self.frames) == self.expected:
            self.enough.set()


@given(
    payloads=st.lists(st.binary(max_size=40), max_size=8),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=60),
)
def test_frames_are_independent_of_how_bytes_arrive(payloads: list[bytes], cuts: list[int]) -> None:
    frames = [(Kind.UPDATES, payload) for payload in payloads]
    data = b"".join(HEADER.pack(kind, len(payload)) + payload for kind, payload in frames)
    received: list[tuple[Kind, bytes]] = []
    mine, theirs = socket.socketpair()
    with mine, theirs:
        channel = Channel(mine, lambda *frame: received.append(frame), nothing, nothing)
        while data:
            size = cuts[len(data) % len(cuts)]
            channel.unparsed += data[:size]
            data = data[size:]
            channel.parse()
    assert received == frames
    assert not channel.unparsed


def test_frames_after_a_faulty_one_arrive_once() -> None:
    """An error of one frame is logged by the event loop; no frame comes twice or not at all."""
    received: list[bytes] = []

    def receive(kind: Kind, payload: bytes) -> None:
        if payload == b"bad":
            raise ValueError("a class that cannot be imported")
        received.append(payload)

    async def exchange() -> list[BaseException | None]:
        loop = asyncio.get_running_loop()
        errors: list[BaseException | None] = []
        loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
        mine, theirs = socket.socketpair()
        with mine, theirs:
            channel = Channel(mine, receive, nothing, nothing)
            channel.loop = loop
            for payload in (b"one", b"bad", b"two"):
                channel.unparsed += HEADER.pack(Kind.UPDATES, len(payload)) + payload

            channel.parse()
            channel.parse()
            assert not channel.unparsed

        return errors

    errors = asyncio.run(exchange())
    assert received == [b"one", b"two"]
    assert [type(error) for error in errors] == [ValueError]


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**31 - 1)), max_size=20))
def test_packed_tokens(pairs: list[tuple[int, int]]) -> None:
    payload = pack_tokens([number for number, _ in pairs], [token for _, token in pairs])
    numbers, token_ids = unpack_tokens(payload)
    assert list(zip(numbers, token_ids, strict=True)) == pairs


def test_nothing_is_lost_while_the_other_process_reads_nothing() -> None:
    """A send never waits: what the socket does not take is sent later, in order."""
    payload = bytes(1 << 16)
    count = 200

    async def exchange() -> None:
        mine, theirs = socket.socketpair()
        sender = Received(mine).channel
        sender.start()
        for number in range(count):
            sender.send(Kind.TOKENS, payload + bytes([number]))
        assert sender.unsent
        sender.send_soon(Kind.ABORT, 7)
        receiver = Received(theirs)
        receiver.expected = count + 1
        receiver.channel.start()
        await receiver.enough.wait()
        assert [data[-1] for _, data in receiver.frames[:-1]] == list(range(count))
        assert receiver.frames[-1] == (Kind.ABORT, pickle.dumps(7, pickle.HIGHEST_PROTOCOL))
        sender.close()
        await receiver.lost.wait()
        receiver.channel.send(Kind.ABORT, b"")  # to nobody
        receiver.channel.close()

    asyncio.run(exchange())


def test_frames_before_the_loop_runs_are_sent_when_it_does() -> None:
    mine, theirs = socket.socketpair()
    theirs.settimeout(60)
    channel = Channel(mine, nothing, nothing, nothing)
    channel.send_object(Kind.SETTINGS, {"queue": 3})

    async def start() -> None:
        channel.start()
        await asyncio.to_thread(check)
        channel.close()

    def check() -> None:
        kind, payload = read_frame(theirs)
        assert (kind, pickle.loads(payload)) == (Kind.SETTINGS, {"queue": 3})

    asyncio.run(start())
    with pytest.raises(EOFError, match="gone"):
        read_frame(theirs)
    theirs.close()


def test_a_refusal_keeps_its_status_between_processes() -> None:
    error = pickle.loads(pickle.dumps(RequestRefused(429, "server: full", 3)))
    assert (error.status, str(error), error.retry_after) == (429, "server: full", 3)


def test_a_model_whose_class_cannot_be_imported_is_left_to_the_engine() -> None:
    host = RemoteHost.__new__(RemoteHost)
    host.entries = {}
    host.queue = 3
    parts = b"cno_such_module\nThing\n."  # a class by its name, as pickle refers to it
    host.add_model(pickle.dumps(("mine", parts)))
    assert host.entries == {}
