"""The front end's view of the models: their tokenizers, and requests to the engine's process."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

from qkv.generation.stop import Reason, StopStringFilter
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    Mailbox,
    OutputChunk,
    RequestHandle,
    RequestRefused,
    Update,
)
from qkv.serving.front_end.channel import Channel, Kind, unpack_tokens
from qkv.serving.garbage import freeze_loaded
from qkv.serving.http.direct_routes import PassedOn
from qkv.serving.preparation import PreparationPool
from qkv.text.tokenizer import Tokenizer

ENGINE_GONE = "server: its engine has ended and the server is stopping"


class Ended(NamedTuple):
    """The end of a sample whose text the front end writes."""

    reason: Reason
    token_ids: bytes
    """The last tokens, packed."""


@dataclass(frozen=True)
class ModelOutline:
    """What the checks of a prompt ask of a model that continues texts."""

    config: Any
    reads_on: bool
    predicts: Literal["next"] = "next"

    @property
    def stacks(self) -> NoReturn:
        """Only the engine's process has them: it answers requests that switch heads off."""
        raise PassedOn


class RemoteModel:
    """A model that is ready in the engine's process."""

    def __init__(self, name: str, model: ModelOutline, tokenizer: Tokenizer, queue: int) -> None:
        self.name = name
        self.preparation = PreparationPool(name, queue=queue)
        self.tokenizer = tokenizer
        self.model = model

        # Fill the table of the tokens' bytes before the first request
        StopStringFilter(tokenizer, ()).add_tokens(range(tokenizer.vocabulary))


class RemoteSample:
    """The new tokens of one sample, which become text here."""

    def __init__(self, handle: RemoteHandle, sample: int, tokenizer: Tokenizer) -> None:
        self.handle = handle
        self.sample = sample
        self.token_ids: list[int] = []
        self.text = StopStringFilter(tokenizer, ())

    def put_chunk(self, reason: Reason | None) -> None:
        """Give the reader what there is, unless it has not read the last chunk."""
        handle = self.handle
        if reason is None and not handle.accepts_chunk(handle.request.samples):
            return

        token_ids = self.token_ids
        self.token_ids = []
        self.text.add_tokens(token_ids)
        if reason is not None:
            self.text.close()

        handle.unread += 1
        handle.put(OutputChunk(self.sample, self.text.take(), token_ids, reason))


class RemoteHandle(RequestHandle):
    """The client's side of a request whose engine is in another process."""

    def __init__(
        self, host: RemoteHost, number: int, request: GenerationRequest, mailbox: Mailbox | None
    ) -> None:
        super().__init__(request, mailbox)
        self.host = host
        self.number = number
        self.running = request.samples

    def abort(self) -> None:
        """Tell the engine's process, unless the request has ended."""
        self.aborted = True
        if self.host.forget(self):
            self.host.channel.send_soon(Kind.ABORT, self.number)


class RemoteHost:
    """What the routes of the front end ask of a `ModelHost`."""

    channel: Channel

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.entries: dict[str, RemoteModel] = {}
        self.numbers = itertools.count(1)
        self.samples: dict[int, RemoteSample] = {}
        """Samples by their number."""
        self.handles: dict[int, RemoteHandle] = {}
        """Running requests by the number of their first sample."""
        self.touched: dict[RemoteSample, None] = {}
        """Samples with tokens that no chunk has."""

    # What routes call

    def ready_entry(self, name: str) -> tuple[RemoteModel, RemoteModel]:
        """A model that is ready; others are left to the engine's process."""
        entry = self.entries.get(name)
        if entry is None:
            raise PassedOn

        return entry, entry

    def submit(
        self, name: str, request: GenerationRequest, mailbox: Mailbox | None = None
    ) -> RequestHandle:
        """Send a request to the engine's process; a refusal is an update."""
        number = next(self.numbers)
        for _ in range(1, request.samples):
            next(self.numbers)

        if is_plain(request):
            request = dataclasses.replace(request, detokenize=False)

        handle = RemoteHandle(self, number, request, mailbox)
        self.handles[number] = handle
        tokenizer = self.entries[name].tokenizer
        for sample in range(request.samples):
            self.samples[number + sample] = RemoteSample(handle, sample, tokenizer)

        self.channel.send_soon(Kind.SUBMIT, (number, name, request))
        return handle

    def forget(self, handle: RemoteHandle) -> bool:
        """Expect no further updates of a request; returns whether it still ran."""
        for sample in range(handle.request.samples):
            self.samples.pop(handle.number + sample, None)

        return self.handles.pop(handle.number, None) is not None

    # What the engine's process sends

    def add_model(self, payload: bytes) -> None:
        """A model is ready, or not any more.

        A class that only the engine's process can import leaves it without an entry here: the
        engine's process then answers its requests.
        """
        name, parts = pickle.loads(payload)
        try:
            model, tokenizer = pickle.loads(parts)
        except Exception:
            model, tokenizer = (None, None)

        self.entries.pop(name, None)
        if model is not None:
            self.entries[name] = RemoteModel(name, model, tokenizer, self.queue)

        freeze_loaded()

    def add_tokens(self, payload: bytes) -> None:
        """Collect new tokens; `put_chunks` gives them to their readers."""
        samples = self.samples
        touched = self.touched
        for number, token_id in zip(*unpack_tokens(payload), strict=True):
            sample = samples.get(number)
            if sample is not None:  # its client may be gone
                sample.token_ids.append(token_id)
                touched[sample] = None

    def put_chunks(self) -> None:
        """One chunk for all tokens of a sample that have arrived."""
        touched = self.touched
        self.touched = {}
        for sample in touched:
            if sample.token_ids:
                sample.put_chunk(None)

    def add_updates(self, updates: Sequence[tuple[int, Update | Ended]]) -> None:
        """Chunks, ends and errors, each with the number of its sample."""
        for number, update in updates:
            sample = self.samples.get(number)
            if sample is None:
                continue

            handle = sample.handle
            if isinstance(update, Ended):
                sample.token_ids += array("i", update.token_ids)
                sample.put_chunk(update.reason)
            else:
                handle.put(update)

            if isinstance(update, Exception):
                self.forget(handle)
            elif isinstance(update, Ended) or update.reason is not None:  # type: ignore[union-attr]
                handle.running -= 1
                if not handle.running:
                    self.forget(handle)

    def lose(self) -> None:
        """The engine's process is gone: every open request gets an error."""
        self.entries = {}
        for handle in list(self.handles.values()):
            self.forget(handle)
            handle.put(RequestRefused(503, ENGINE_GONE))


def is_plain(request: GenerationRequest) -> bool:
    """Whether the tokens of a request decide nothing by their text, so it is not needed there."""
    searches = request.beams > 1 or request.stop
    return not (searches or request.echoes or request.logprobs is not None)
