"""The link to one front end: its process, its requests to the engine, and their tokens."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    RequestHandle,
    RequestRefused,
    Update,
)
from qkv.serving.front_end.channel import Channel, Kind, pack_tokens
from qkv.serving.front_end.forwarding import ForwardedRequests
from qkv.serving.front_end.remote_attempts import answer_to
from qkv.serving.front_end.remote_host import Ended
from qkv.serving.http.middleware import RequestMiddleware
from qkv.serving.model_host import ModelHost

MODULE = "qkv.serving.front_end.front_end_process"
STOP_SECONDS = 15.0
"""Seconds that a front end has to end once its channel is closed."""


class NumberedHandle(RequestHandle):
    """A request of a front end, whose updates are sent to it."""

    def __init__(self, link: FrontEndLink, number: int, request: GenerationRequest) -> None:
        super().__init__(request, outlet=link)
        self.number = number


class FrontEndLink:
    """Serves the requests of one front end's process from a host of models."""

    child: subprocess.Popen[bytes]

    def __init__(self, host: ModelHost, middleware: RequestMiddleware) -> None:
        self.host = host
        self.middleware = middleware
        mine, self.theirs = socket.socketpair()
        self.channel = Channel(mine, self.receive, lambda: None, self.lose)
        self.forwarded = ForwardedRequests(middleware.app, self.channel)
        self.handles: dict[int, NumberedHandle] = {}
        self.running_requests = 0
        self.lost = asyncio.Event()

    # The process

    def start(self, listening: socket.socket) -> None:
        """Start the process, which never touches a GPU."""
        sockets = (self.theirs.fileno(), listening.fileno())
        self.child = subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, sockets)],
            pass_fds=sockets,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )
        self.theirs.close()

    async def serve(self) -> int:
        """Serve until the process ends; returns its exit status."""
        self.channel.start()
        await self.lost.wait()
        self.channel.close()
        for task in list(self.forwarded.running.values()):
            task.cancel()

        try:
            return await asyncio.to_thread(self.child.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            return await asyncio.to_thread(self.child.wait)

    def lose(self) -> None:
        """The front end is gone, and so are its clients."""
        for handle in list(self.handles.values()):
            handle.abort()

        self.handles = {}
        self.lost.set()

    # What the front end sends

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Handle a frame of the front end."""
        value = pickle.loads(payload)
        if kind is Kind.SUBMIT:
            self.submit(*value)
        elif kind is Kind.ABORT:
            self.abort(value)
        elif kind is Kind.FORWARD:
            self.forwarded.start(*value)
        elif kind is Kind.TAKEN:
            self.forwarded.take(*value)
        elif kind is Kind.CHECK_KEY:
            answer = answer_to(value, self.middleware.attempts)
            self.channel.send_object(Kind.KEY_CHECKED, answer)
        elif kind is Kind.COUNTS:
            self.running_requests, responses = value
            for response in responses:
                self.middleware.metrics.count(*response)

    def submit(self, number: int, name: str, request: GenerationRequest) -> None:
        """Queue a request; a refusal is sent as an update."""
        handle = NumberedHandle(self, number, request)
        self.handles[number] = handle
        try:
            self.host.accept(name, handle)
        except Exception as error:
            self.deliver([(handle, error)])

    def abort(self, number: int) -> None:
        """A client has disconnected."""
        handle = self.handles.pop(number, None)
        if handle is not None:
            handle.abort()

        self.forwarded.abort(number)

    # What the front end receives

    def deliver(self, updates: Sequence[tuple[RequestHandle, Update]]) -> None:
        """Send the updates of a step: plain tokens as numbers, others as they are."""
        numbers: list[int] = []
        token_ids: list[int] = []
        others: list[tuple[int, Any]] = []
        for handle, update in updates:
            assert isinstance(handle, NumberedHandle)
            if isinstance(update, Exception):
                others.append((handle.number, portable(update)))
                self.handles.pop(handle.number, None)
                continue

            assert isinstance(update, OutputChunk)
            number = handle.number + update.sample
            ids = update.token_ids
            if handle.request.detokenize:
                others.append((number, update))
            elif update.reason is not None:
                others.append((number, Ended(update.reason, array("i", ids).tobytes())))
            else:
                numbers += [number] * len(ids)
                token_ids += ids

            if update.reason is not None:
                self.count_ended(handle)

        if numbers:
            self.channel.send(Kind.TOKENS, pack_tokens(numbers, token_ids))
        if others:
            self.channel.send_object(Kind.UPDATES, others)

    def deliver_tokens(
        self, numbers: Int64[np.ndarray, "M"], token_ids: Int64[np.ndarray, "M"]
    ) -> None:
        """Send one new token of each of these samples."""
        self.channel.send(Kind.TOKENS, pack_tokens(numbers, token_ids))

    def count_ended(self, handle: NumberedHandle) -> None:
        handle.unfinished -= 1
        if handle.unfinished <= 0:
            self.handles.pop(handle.number, None)


def portable(error: Exception) -> Exception:
    """An error of a kind that both processes know."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, ValueError):
        return ValueError(str(error))

    return RuntimeError(str(error) or type(error).__name__)
