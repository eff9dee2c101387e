"""A text that is being said: what it has read, what it has said, and where it lies in the cache."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from qkv.generation.sampling_params import BROKEN, NO_LIKELIEST, SamplingParams, TokenCounts
from qkv.generation.search.beam_search import SearchRule, SentenceBeams
from qkv.generation.text import StopStringFilter
from qkv.serving.engine.block_allocator import BlockAllocator
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    Reason,
    RequestHandle,
    TokenLogprob,
)
from qkv.text.tokenizer import Tokenizer

LIKELIEST = SamplingParams(temperature=0)


class ServingSequence:
    """One of the texts of a request. It knows nothing of the others but, before it begins, of the
    first one, whose beginning it shares."""

    def __init__(
        self,
        ticket: RequestHandle,
        row: int,
        ids: list[int],
        tokenizer: Tokenizer,
        *,
        seed: int,
        limit: int | None,
        source: list[int] | None = None,
        first: ServingSequence | None = None,
    ) -> None:
        assert isinstance(ticket.ask, GenerationRequest)
        self.ticket, self.row, self.ask = ticket, row, ticket.ask
        self.ids, self.prompt, self.limit, self.source, self.first = (
            ids,
            len(ids),
            limit,
            source,
            first,
        )

        self.tokenizer = tokenizer
        choice, length = self.ask.choice, self.ask.length
        self.most = length if limit is None else min(length, limit - len(ids) + 1)
        """Words that it may say."""
        self.seed = seed
        self.draws: np.random.Generator | None = None
        self.chances: list[float] = []
        self.speaker = StopStringFilter(tokenizer, self.ask.stop)
        self.key = repr((choice, self.ask.ends))
        """Texts with the same one choose their words in the same way."""
        self.remembers = choice.remembers
        self.likeliest = self.ask.top is None and choice == LIKELIEST
        """It says the likeliest word, whatever was said before, and nobody asks what else there
        was.
        """
        self.kind = repr(sorted(set(self.ask.off)))
        """Texts of one kind that begin alike have the same keys and values there."""
        self.heard: TokenCounts | None = None
        self.search: BeamSearchState | None = None
        self.spelled = len(ids)
        """So many of the ids are text."""
        self.told = 0
        """So many tokens of the prompt were read aloud."""
        self.fresh: list[TokenLogprob] = []
        """What was said since the last piece."""
        self.ended = False
        self.slot: int | None = None
        self.table: list[int] = []
        self.source_table: list[int] = []
        self.state: Any = None
        """What a model remembers of it that has no pages: an RNN, or Transformer-XL."""
        self.restart()

    def restart(self) -> None:
        """Nothing of it lies in the cache: all that it has is to be read, from the prompt to the
        last word.
        """
        self.read = 0
        """Positions that are in the cache, or on their way there."""
        self.drawn = len(self.ids) - self.prompt
        """Words that were drawn; the last of them may still be on the device."""
        self.speaks = False
        """It has read all; what it reads next is what it says."""
        self.state = None

    @property
    def positions(self) -> int:
        """All that there are, also of words that the host has not heard yet."""
        return self.prompt + self.drawn

    @property
    def finished(self) -> bool:
        """Whether its last word is drawn, whatever that is."""
        return self.drawn >= self.most

    @property
    def place(self) -> int:
        """Of the next word, among those that it says."""
        return self.drawn

    def uniform(self) -> float:
        """What its next word is drawn by; the same, should that be asked again."""
        if len(self.chances) <= self.place:
            self.draws = self.draws or np.random.default_rng(self.seed)
            while len(self.chances) <= self.place:
                self.chances.append(
                    1 - self.draws.random()
                )  # as `generation.sample.chances` has them

        return self.chances[self.place]

    def hear(self, word: int, said: TokenLogprob) -> Reason | None:
        """A word that was drawn for it; the reason why it is the last, if it is."""
        if word == BROKEN:
            raise RuntimeError(NO_LIKELIEST)
        if word in self.ask.ends:
            return "end"

        self.ids.append(word)
        self.fresh.append(said)
        if self.ask.stop:
            self.spell()
            if self.speaker.stopped:
                return "stop"

        if len(self.ids) - self.prompt >= self.ask.length:
            return "length"

        return "context" if self.limit is not None and len(self.ids) > self.limit else None

    def spell(self) -> None:
        """What was said since, as text: many words at once are quicker."""
        if self.spelled < len(self.ids):
            self.speaker.hear_all(self.ids[self.spelled :])
            self.spelled = len(self.ids)

    def piece(self, reason: Reason | None) -> OutputChunk:
        self.spell()
        if reason is not None:
            self.speaker.close()

        fresh, self.fresh = self.fresh, []
        return OutputChunk(
            self.row,
            self.speaker.take(),
            fresh,
            "stop" if reason and self.speaker.stopped else reason,
        )

    def twin(self) -> ServingSequence:
        """Another text that has read and said the same; it has no part of the cache yet."""
        other = copy.copy(self)
        other.ids, other.fresh, other.slot, other.table, other.source_table = (
            list(self.ids),
            [],
            None,
            [],
            [],
        )

        return other


class BeamSearchState:
    """A beam search in the engine: its open beams are texts that run side by side."""

    def __init__(self, ask: GenerationRequest, end: int, length: int) -> None:
        self.rule = SearchRule(
            end=end,
            beams=ask.beams,
            n_best=ask.samples,
            alpha=ask.length_penalty,
            penalty="paper",
            minimum=ask.choice.minimum,
            forbidden=ask.choice.forbidden,
            groups=1,
            diversity=0.0,
        )

        self.length, self.said = length, 0
        self.sentence = SentenceBeams(self.rule, length)
        self.beams: list[ServingSequence] = []
        self.blocks: BlockAllocator | None = None
        """Its own part of the cache, for as long as it runs: as much as its beams may need."""
        self.slots: list[int] = []

    def advance(self, logits: Float[Tensor, "R V"]) -> list[tuple[int, int]]:
        """Which beam goes on with which word; none when the search is over."""
        (chosen,) = self.rule.advance(logits, [self.sentence], self.said)
        self.said += 1
        return chosen
