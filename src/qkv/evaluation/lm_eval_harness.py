"""Our models in the lm-evaluation-harness: `lm_eval --model qkv --model_args path=runs/mine --tasks
lambada_openai`.

The same likelihoods as `qkv evaluate`, behind the harness's three questions. From Python: `import`
this module, then `lm_eval.simple_evaluate(model="qkv", model_args={"path": "runs/mine"}, ...)`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    raise ImportError(
        "lm_eval: the lm-evaluation-harness is not here: pip install lm_eval"
    ) from None

from rich.console import Console
from rich.progress import Progress

from qkv import artifact
from qkv.evaluation import question
from qkv.evaluation.likelihood import Likelihood, Request, likelihoods, shortened
from qkv.evaluation.perplexity import windows
from qkv.generation.text import complete, prompt_ids
from qkv.models import GPT
from qkv.training.systems.distributed import device_named
from qkv.training.systems.precision import check_precision

AT_ONCE = 8  # texts that are generated side by side
HARNESS_DEVICE = "cuda:0"  # what its command line passes on when no --device is given, GPU or not
LENGTH = 256  # words of an answer where the task does not say, as the harness's own models do


@register_model("qkv")
class Harness(LM):
    def __init__(
        self, path: str, device: str | None = None, dtype: str | None = None, **others: Any
    ) -> None:
        """`path`: a run's folder, a folder of `transformers`, a GGUF file, or smollm2. `dtype`:
        float32 or bfloat16.

        The harness also hands over its batch sizes; ours follow from the lengths of the texts.
        """
        super().__init__()
        if unknown := others.keys() - {"batch_size", "max_batch_size"}:
            raise ValueError(
                f"model_args: expected path, device or dtype, not {', '.join(sorted(unknown))}"
            )
        if dtype not in (None, "float32", "bfloat16"):
            raise ValueError(f"dtype: expected float32 or bfloat16, not {dtype}")

        model, tokenizer = artifact.load(path)
        if not isinstance(model, GPT):
            raise ValueError(
                f"path: the harness asks GPTs, which predict the next word, not a {type(model).__name__}"
            )

        unnamed = device == HARNESS_DEVICE and not torch.cuda.is_available()
        where = device_named(None if unnamed else device)
        short = dtype == "bfloat16" or (dtype is None and where.type == "cuda")
        if slow := check_precision("bf16" if short else "float32", where):
            print(slow, file=sys.stderr)

        self.model = model.to(where, torch.bfloat16 if short else torch.float32)
        self.tokenizer = tokenizer or artifact.tokenizer_of(path)
        self._device, self.path = where, path

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """How likely each continuation is after its context, and whether greedy decoding would say
        it.
        """
        pairs = [request.args for request in requests]
        found = self.answers(question.requests(self.tokenizer, pairs))
        answers = [(each.log_probability, each.greedy) for each in found]

        for pair, answer in zip(pairs, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)

        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Of whole texts, each word predicted once, the windows side by side."""
        first, context = question.first_word(self.tokenizer), self.model.config.context
        texts = self.tokenizer.encode_batch([request.args[0] for request in requests])
        asked = [windows([first, *ids], context, context) for ids in texts]
        found = iter(self.answers([one for each in asked for one in each]))
        sums = [sum(next(found).log_probability for _ in each) for each in asked]

        for request, answer in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)

        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model says after each context, up to the first of the texts it is to stop
        before.
        """
        said = [""] * len(requests)
        groups: dict[str, list[int]] = {}

        for place, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(place)

        for key, places in groups.items():
            how = manner(json.loads(key))
            context = self.model.config.context
            room = max(
                context - how["length"], context // 2, 1
            )  # a long answer does not take all of the question
            prompts = {
                place: prompt_ids(self.tokenizer, requests[place].args[0]) for place in places
            }
            cut = sum(len(ids) > room for ids in prompts.values())
            tell(cut, len(places), room)
            for some in in_batches(sorted(places, key=lambda place: len(prompts[place]))):
                texts = complete(
                    self.model, self.tokenizer, [prompts[place][-room:] for place in some], **how
                )
                for place, text in zip(some, texts, strict=True):
                    said[place] = text
                    self.cache_hook.add_partial("generate_until", requests[place].args, text)

        return said

    def answers(self, asked: Sequence[Request]) -> list[Likelihood]:
        kept, cut = shortened(asked, self.model)
        tell(cut, len(kept), self.model.config.context)
        errors = Console(stderr=True)

        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
            line = bar.add_task("qkv", total=len(kept))
            return likelihoods(
                self.model,
                kept,
                progress=lambda done, all: bar.update(line, completed=done, total=all),
            )


def manner(asked: dict[str, Any]) -> dict[str, Any]:
    """How to generate: the harness's names, as ours."""
    until = asked.get("until") or []
    until = [until] if isinstance(until, str) else until
    how: dict[str, Any] = {
        "stop": [text for text in until if text],  # "" would stop before a word
        "length": int(asked.get("max_gen_toks") or asked.get("max_new_tokens") or LENGTH),
        "temperature": 0.0,
        "seed": 0,
    }

    if asked.get("do_sample"):
        how["temperature"] = float(asked.get("temperature", 1.0))
        how |= {
            name: asked[name] for name in ("top_k", "top_p", "min_p") if asked.get(name) is not None
        }

    return how


def in_batches(places: list[int]) -> list[list[int]]:
    return [places[start : start + AT_ONCE] for start in range(0, len(places), AT_ONCE)]


def tell(cut: int, of: int, room: int) -> None:
    if cut:
        Console(stderr=True).print(
            f"qkv: {cut:,} of {of:,} contexts were cut from the left to {room:,} tokens"
        )
