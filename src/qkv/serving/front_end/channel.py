"""The channel between the front end's process and the engine's: frames over a pair of sockets.

A frame is a kind, a length and a payload. The tokens of a step are one frame of packed numbers;
other payloads are pickles of the project's own objects. Both ends are processes of one server: a
client's bytes are only ever values inside a payload.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from array import array
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

HEADER = struct.Struct("<BI")
READ_BYTES = 1 << 20
GATHERED_BYTES = 16 << 10
"""Bytes of frames that are sent at once: some 30 requests, which the engine then reads together."""
NUMBER_BYTES = 8
TOKEN_BYTES = 4


class Kind(IntEnum):
    """What a frame is about."""

    SETTINGS = 1
    """Rules and options of the front end; the first frame."""
    MODEL = 2
    """A model that is ready, or one that is not any more."""
    SUBMIT = 3
    """A generation request and its number."""
    ABORT = 4
    """The client of a numbered request is gone."""
    TOKENS = 5
    """Tokens of many requests, of one part of a step of the engine."""
    UPDATES = 6
    """Chunks, ends and errors of requests."""
    FORWARD = 7
    """An HTTP request that the engine's process answers."""
    RESPONSE = 8
    """A part of its response."""
    COUNTS = 9
    """Responses for the metrics."""
    STOP = 10
    """The engine has failed: the front end stops."""
    TAKEN = 11
    """Bytes of a response that its client has taken."""
    CHECK_KEY = 12
    """An API key that a client has sent."""
    KEY_CHECKED = 13
    """Whether it is one of the server's."""


class Channel:
    """One end of the channel, read in an event loop and written from any thread."""

    def __init__(
        self,
        end: socket.socket,
        receive: Callable[[Kind, bytes], None],
        caught_up: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """Create an end of the channel.

        Args:
            end: A connected socket.
            receive: Called with each frame.
            caught_up: Called after all frames that had arrived.
            lost: Called once when the other process is gone.
        """
        self.end = end
        self.receive = receive
        self.caught_up = caught_up
        self.lost = lost
        self.unparsed = bytearray()
        self.unsent = bytearray()
        """Bytes that the socket does not take at present."""
        self.gathered = bytearray()
        """Frames of the present iteration of the event loop."""
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Read frames in the running event loop."""
        self.end.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.end, self.read)
        with self.lock:
            waiting = bool(self.unsent)

        if waiting:
            self.loop.add_writer(self.end, self.flush)

    def close(self) -> None:
        """Stop reading and writing; the other end notices."""
        if self.loop is not None:
            self.loop.remove_reader(self.end)
            self.loop.remove_writer(self.end)

        self.end.close()

    # Reading

    def read(self) -> None:
        try:
            data = self.end.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""

        if not data:
            assert self.loop is not None
            self.loop.remove_reader(self.end)
            self.loop.remove_writer(self.end)
            self.lost()
            return

        self.unparsed += data
        self.parse()
        self.caught_up()

    def parse(self) -> None:
        """Pass on all complete frames."""
        begin = 0
        while len(self.unparsed) - begin >= HEADER.size:
            kind, size = HEADER.unpack_from(self.unparsed, begin)
            end = begin + HEADER.size + size
            if len(self.unparsed) < end:
                break

            payload = bytes(self.unparsed[begin + HEADER.size : end])
            begin = end
            try:
                self.receive(Kind(kind), payload)
            except Exception as error:  # of this frame alone: those after it are received
                self.report(error)

        del self.unparsed[:begin]

    def report(self, error: Exception) -> None:
        """Log the error of a frame as the event loop logs those of its callbacks."""
        assert self.loop is not None
        context = {"message": "a frame could not be handled", "exception": error}
        self.loop.call_exception_handler(context)

    # Writing

    def send_soon(self, kind: Kind, value: Any) -> None:
        """Send a value with others of this iteration of the event loop, which calls this."""
        assert self.loop is not None
        payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if not self.gathered:
            self.loop.call_soon(self.send_gathered)

        self.gathered += HEADER.pack(kind, len(payload)) + payload
        if len(self.gathered) >= GATHERED_BYTES:
            self.send_gathered()

    def send_gathered(self) -> None:
        if not self.gathered:
            return

        frames = bytes(self.gathered)
        self.gathered = bytearray()
        self.send_frames(frames)

    def send(self, kind: Kind, payload: bytes) -> None:
        """Send a frame; never waits for the other process."""
        self.send_frames(HEADER.pack(kind, len(payload)) + payload)

    def send_frames(self, frames: bytes) -> None:
        with self.lock:
            if self.unsent or self.loop is None:
                self.unsent += frames
                return

            sent = self.write(frames)
            if sent == len(frames):
                return

            self.unsent += frames[sent:]

        self.loop.call_soon_threadsafe(self.loop.add_writer, self.end, self.flush)

    def send_object(self, kind: Kind, value: Any) -> None:
        """Send a frame with any value of the project."""
        self.send(kind, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def write(self, data: bytes | bytearray) -> int:
        """Write what the socket takes; returns the number of bytes."""
        try:
            return self.end.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:  # the reader notices that the other process is gone
            return len(data)

    def flush(self) -> None:
        """Write what is left; called when the socket takes more."""
        with self.lock:
            del self.unsent[: self.write(self.unsent)]
            if not self.unsent and self.loop is not None:
                self.loop.remove_writer(self.end)


def pack_tokens(numbers: ArrayLike, token_ids: ArrayLike) -> bytes:
    """The payload of a TOKENS frame: one number of a sample for each token."""
    return np.asarray(numbers, np.int64).tobytes() + np.asarray(token_ids, np.int32).tobytes()


def unpack_tokens(payload: bytes) -> tuple[array[int], array[int]]:
    """The numbers and tokens of a TOKENS frame."""
    count = len(payload) // (NUMBER_BYTES + TOKEN_BYTES)
    numbers = array("q", payload[: NUMBER_BYTES * count])
    token_ids = array("i", payload[NUMBER_BYTES * count :])
    return numbers, token_ids


def read_frame(end: socket.socket) -> tuple[Kind, bytes]:
    """The next frame of a socket that blocks; raises EOFError if the other process is gone."""
    kind, size = HEADER.unpack(read_exactly(end, HEADER.size))
    return Kind(kind), read_exactly(end, size)


def read_exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            raise EOFError("the other process is gone")

        data += part

    return data
