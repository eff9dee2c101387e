"""From an ask to the texts that answer it; what can never be answered is refused before it waits."""

from __future__ import annotations

from typing import Any

from qkv.generation.generate import limit_of
from qkv.generation.sampling import row_seeds
from qkv.models import GPT
from qkv.models.registry import Model
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle, RequestRefused
from qkv.serving.engine.runner import PagedRunner
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import BeamSearchState, ServingSequence
from qkv.text.tokenizer import Tokenizer


class Admission:
    """What one model can be asked."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, runner: Any, scheduler: Scheduler
    ) -> None:
        self.model, self.tokenizer, self.runner, self.scheduler = (
            model,
            tokenizer,
            runner,
            scheduler,
        )

        self.limit = (
            limit_of(model, "refuse")
            if isinstance(model, GPT)
            else getattr(model.config, "context", None)
        )

    def texts(self, ticket: RequestHandle) -> list[ServingSequence]:
        """One for each sample; of a search the one that it begins with."""
        ask = ticket.ask
        assert isinstance(ask, GenerationRequest)
        self.check(ask)
        translator = not isinstance(self.model, GPT)
        source = list(ask.prompt) if translator else None
        seeds = row_seeds(ask.seed, ask.samples)
        texts: list[ServingSequence] = []

        for row in range(1 if ask.beams > 1 else ask.samples):
            ids = [self.start] if translator else list(ask.prompt)
            first = texts[0] if texts else None
            how: dict[str, Any] = {
                "seed": seeds[row],
                "limit": self.limit,
                "source": source,
                "first": first,
            }

            texts.append(ServingSequence(ticket, row, ids, self.tokenizer, **how))

        if ask.beams > 1:
            texts[0].search = BeamSearchState(ask, ask.ends[0], texts[0].most)

        self.check_room(texts[0])

        return texts

    @property
    def start(self) -> int:
        if self.tokenizer.start is None:
            raise RequestRefused(
                400, "model: its tokenizer has no start token, so it cannot begin a translation"
            )

        return self.tokenizer.start

    @property
    def layers(self) -> int:
        return (
            self.runner.depth if isinstance(self.runner, PagedRunner) else self.model.config.depth
        )

    def check(self, ask: GenerationRequest) -> None:
        config: Any = self.model.config
        vocabulary = getattr(config, "source_vocabulary", None) or config.vocabulary
        if not ask.prompt:
            raise ValueError("prompt: expected one token or more")
        if min(ask.prompt) < 0 or max(ask.prompt) >= vocabulary:
            raise ValueError(f"prompt: expected ids from 0 to {vocabulary - 1}")
        if ask.length < (1 if ask.beams > 1 else 0):
            raise ValueError(f"max_tokens: expected 1 or more, not {ask.length}")
        if self.limit is not None and len(ask.prompt) > self.limit:
            raise ValueError(
                f"prompt: {len(ask.prompt):,} tokens are more than the model's context of {self.limit:,}; shorten it"
            )
        if ask.beams > 1 and (
            len(ask.ends) != 1 or ask.stop or ask.off or ask.prompt_top is not None
        ):
            raise ValueError(
                "beams: a search has one end, and neither stop strings nor heads that are off"
            )

        ask.choice.check(config.vocabulary, ask.ends)
        if ask.off and not isinstance(self.runner, PagedRunner):
            raise ValueError(
                f"heads_off: heads cannot be switched off in a {type(self.model).__name__} while it speaks"
            )

        for layer, head in ask.off:
            if not (0 <= layer < self.layers and 0 <= head < config.heads):
                raise ValueError(
                    f"heads_off: expected a layer of 0 to {self.layers - 1} and a head of 0 to {config.heads - 1}, "
                    f"not {layer}.{head}"
                )

    def check_room(self, text: ServingSequence) -> None:
        """Whether it fits into the cache when it is alone there; and whether so many beams can ever
        run.
        """
        scheduler, beams = self.scheduler, 1 if text.search is None else text.search.rule.beams
        if beams > scheduler.rows:
            raise ValueError(
                f"beams: expected at most {scheduler.rows}, as many as may run at once, not {beams}"
            )

        needed, there = (
            scheduler.most(text) * beams + scheduler.source(text),
            scheduler.blocks.total,
        )
        if needed > there:
            raise ValueError(
                f"max_tokens: prompt and answer need {needed:,} blocks of the cache, and it has {there:,}; ask for "
                "fewer, or serve with a larger --cache"
            )
