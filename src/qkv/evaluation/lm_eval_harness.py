"""A model of the lm-evaluation-harness, with the same likelihoods as `qkv evaluate`.

The harness has no plugins: it knows the model `qkv` once this module is imported. Its own command
with the model registered, and all its options, is

    python -m qkv.evaluation.lm_eval_harness --model qkv --model_args path=runs/mine --tasks ...

or a program of two lines, which takes the same options:

    import lm_eval.__main__, qkv.evaluation.lm_eval_harness
    lm_eval.__main__.cli_evaluate()

From Python: `lm_eval.simple_evaluate(model="qkv", model_args={"path": "runs/mine"}, ...)`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress

from qkv import artifact
from qkv.evaluation.likelihood import Likelihood, Request, likelihoods, truncate_requests
from qkv.evaluation.perplexity import windows
from qkv.evaluation.question import encode_requests, first_token
from qkv.generation.text import complete, prompt_ids
from qkv.imports import require
from qkv.models import GPT
from qkv.models.model import expect
from qkv.training.systems.distributed import device_named
from qkv.training.systems.precision import check_precision

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

# The harness lists its own models only while its registry is empty: they are registered first.
require("lm_eval.models")
LM: Any = require("lm_eval.api.model").LM
register_model = require("lm_eval.api.registry").register_model

BATCH = 8
"""Prompts that are continued at once."""
HARNESS_DEVICE = "cuda:0"
"""What the harness's command line passes if no --device is given, with or without a GPU."""
LENGTH = 256
"""Generated tokens where a task sets no limit, as for the harness's own models."""


@register_model("qkv")
class Harness(LM):
    """A GPT behind the interface of the lm-evaluation-harness."""

    def __init__(
        self,
        path: str,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **others: Any,
    ) -> None:
        """Load a model.

        Args:
            path: A run's folder, a folder of `transformers`, a GGUF file, or smollm2.
            device: The device, such as cpu or cuda:0.
            dtype: float32 or bfloat16; by default bfloat16 on a GPU and float32 on a CPU.
            batch_size: Ignored; batches follow from the lengths of the texts.
            max_batch_size: Ignored.
            others: Refused by name.
        """
        super().__init__()
        if others:
            raise ValueError(
                f"model_args: expected path, device or dtype, not {', '.join(sorted(others))}"
            )
        if dtype not in (None, "float32", "bfloat16"):
            raise ValueError(f"dtype: expected float32 or bfloat16, not {dtype}")

        loaded, tokenizer = artifact.load(path)
        expected = "path: the harness evaluates GPTs, which predict the next token"
        model = expect(loaded, GPT, f"{expected}, not a {type(loaded).__name__}")

        if device == HARNESS_DEVICE and not torch.cuda.is_available():
            device = None

        self._device = device_named(device)
        bf16 = dtype == "bfloat16" or (dtype is None and self._device.type == "cuda")
        warning = check_precision("bf16" if bf16 else "float32", self._device)
        if warning:
            print(warning, file=sys.stderr)

        self.path = path
        self.model = model.to(self._device, torch.bfloat16 if bf16 else torch.float32)
        self.tokenizer = tokenizer or artifact.tokenizer_of(path)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether greedy decoding would produce it."""
        pairs = [request.args for request in requests]
        answers: list[tuple[float, bool]] = []

        for pair, result in zip(
            pairs, self.score(encode_requests(self.tokenizer, pairs)), strict=True
        ):
            answers.append((result.log_likelihood, result.greedy))
            self.cache_hook.add_partial("loglikelihood", pair, answers[-1])

        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of whole texts in windows side by side, each token predicted once."""
        start = first_token(self.tokenizer)
        context = self.model.config.context
        texts = self.tokenizer.encode_batch([request.args[0] for request in requests])
        windows_of_texts = [windows([start, *ids], context, context) for ids in texts]
        results = iter(self.score(list(chain.from_iterable(windows_of_texts))))
        sums: list[float] = []

        for request, text in zip(requests, windows_of_texts, strict=True):
            sums.append(sum(next(results).log_likelihood for _ in text))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])

        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context up to the first of its stop strings."""
        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}

        # Requests with equal options are generated together.
        for number, request in enumerate(requests):
            key = json.dumps(request.args[1], sort_keys=True)
            groups.setdefault(key, []).append(number)

        for key, numbers in groups.items():
            prompts = [requests[number].args[0] for number in numbers]
            for index, text in self.generate(prompts, generation_options(json.loads(key))):
                number = numbers[index]
                texts[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)

        return texts

    def generate(
        self, prompts: Sequence[str], options: dict[str, Any]
    ) -> Iterator[tuple[int, str]]:
        """The number and the continuation of each prompt, the shortest prompts first."""
        context = self.model.config.context
        # A long answer leaves at least half of the context to the prompt.
        room = max(context - options["length"], context // 2, 1)
        prompt_rows = [prompt_ids(self.tokenizer, prompt) for prompt in prompts]
        report_truncated(sum(len(ids) > room for ids in prompt_rows), len(prompts), room)
        order = sorted(range(len(prompts)), key=lambda number: len(prompt_rows[number]))

        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            rows = [prompt_rows[number][-room:] for number in batch]
            texts = complete(self.model, self.tokenizer, rows, **options)
            yield from zip(batch, texts, strict=True)

    def score(self, requests: Sequence[Request]) -> list[Likelihood]:
        """The likelihoods of requests, with a progress bar on a terminal."""
        fitting, truncated = truncate_requests(requests, self.model)
        report_truncated(truncated, len(fitting), self.model.config.context)
        console = Console(stderr=True)

        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("qkv", total=len(fitting))

            def advance(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            return likelihoods(self.model, fitting, progress=advance)


def generation_options(harness: dict[str, Any]) -> dict[str, Any]:
    """The harness's generation options under the names of `complete`."""
    until = harness.get("until") or []
    if isinstance(until, str):
        until = [until]

    options: dict[str, Any] = {
        "stop": [text for text in until if text],  # an empty string would stop at once
        "length": int(harness.get("max_gen_toks") or harness.get("max_new_tokens") or LENGTH),
        "temperature": 0.0,
        "seed": 0,
    }

    if harness.get("do_sample"):
        options["temperature"] = float(harness.get("temperature", 1.0))
        for name in ("top_k", "top_p", "min_p"):
            if harness.get(name) is not None:
                options[name] = harness[name]

    return options


def report_truncated(truncated: int, total: int, room: int) -> None:
    """Print how many contexts were truncated, if any."""
    if truncated:
        Console(stderr=True).print(
            f"qkv: {truncated:,} of {total:,} contexts were cut from the left to {room:,} tokens"
        )


if __name__ == "__main__":
    require("lm_eval.__main__").cli_evaluate()
