"""Decoding on a CPU: qkv against `transformers`, with the same weights and prompts in one run.

    python -m benchmarks.decoding.decode                 GPT-2 124M, float32, int8 and int4
    python -m benchmarks.decoding.decode --batches 1 --rounds 9

The kernels of a processor with AVX2 and without AVX-512 on one that has both:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 FBGEMM_ENABLE_INSTRUCTIONS=AVX2 \\
        MKL_ENABLE_INSTRUCTIONS=AVX2 python -m benchmarks.decoding.decode

A decode step reads every weight once, so memory bandwidth is the limit at batch 1. The fraction is
that of the bandwidth reached: the model's bytes in the time of one step, against the fastest read
of memory in the same run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import tyro
from torch import Tensor

from benchmarks.harness import clock, machine
from qkv.generation import generate
from qkv.models import GPT, build, preset
from qkv.models.convert import write_folder
from qkv.models.variants.quantize import int4, int8
from qkv.nn.linear.frozen_matrix import FrozenMatrix

Peer = Callable[
    [Tensor, int], list[list[int]]
]  # from prompts (B, T) and a number of tokens to these


@dataclass
class Options:
    preset: str = "gpt2"
    """A name of `qkv presets`, of GPT-2's kind."""
    batches: tuple[int, ...] = (1, 8)
    prompt: int = 128
    tokens: int = 64
    rounds: int = 5
    """Rounds in which the peers take turns; the fastest of each counts."""


def ours(model: GPT) -> Peer:
    return lambda prompts, tokens: generate(model, prompts, length=tokens, temperature=0)


def transformers_peer(model: GPT) -> Peer:
    from transformers import GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, folder)
        theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    theirs.generation_config.eos_token_id = None  # always generate the full length

    def write(prompts: Tensor, tokens: int) -> list[list[int]]:
        exactly = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
        with torch.inference_mode():
            text = theirs.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=False, **exactly
            )
        return text[:, prompts.shape[1] :].tolist()  # type: ignore[no-any-return]

    return write


def same_but_for_rounding(
    model: GPT, prompts: Tensor, one: list[list[int]], other: list[list[int]]
) -> bool:
    """True if, where two texts first differ, both tokens have the same logit up to rounding."""
    for prompt, a, b in zip(prompts.tolist(), one, other, strict=True):
        position = next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        if position is not None:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + a[:position]]))[0, -1]
            if abs(logits[a[position]] - logits[b[position]]) > 1e-4:
                return False
    return True


def bandwidth() -> float:
    """Memory bandwidth in bytes per second: the fastest of several sums over a large tensor."""
    much = torch.zeros(2**27)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        much.sum()
        times.append(time.perf_counter() - begin)
    return much.nbytes / min(times)


def bytes_read(model: GPT) -> int:
    """Bytes of the weights that a step reads: all but the embeddings that are looked up."""
    parts = [*model.stack.parameters()]
    parts += [part for part in model.stack.modules() if isinstance(part, FrozenMatrix)]
    return sum(part.nbytes for part in [*parts, model.output_matrix])


def times(
    peers: dict[str, Peer], prompts: Tensor, tokens: int, options: Options
) -> dict[str, float]:
    """The fastest run of each, in turns."""
    seconds = dict.fromkeys(peers, float("inf"))
    for _ in range(options.rounds):
        for name, write in peers.items():
            seconds[name] = min(seconds[name], clock(partial(write, prompts, tokens), "cpu"))
    return seconds


def main(options: Options) -> None:
    torch.manual_seed(0)
    model = build(preset(options.preset)).eval()
    assert isinstance(model, GPT)
    models: dict[str, Any] = {
        "qkv float32": model,
        "qkv int8": int8(model),
        "qkv int4": int4(model),
    }
    peers = {"transformers float32": transformers_peer(model)}
    peers |= {name: ours(ours_model) for name, ours_model in models.items()}
    sizes = {name: bytes_read(models.get(name, model)) for name in peers}
    speed = bandwidth()
    print(f"{options.preset}, {options.prompt} tokens in, {options.tokens} out; {machine()}")
    print(f"  memory is read at {speed / 1e9:.1f} GB/s", flush=True)
    for batch in options.batches:
        prompts = torch.randint(model.config.vocabulary, (batch, options.prompt))
        # Also warms up.
        texts = {name: write(prompts, options.tokens) for name, write in peers.items()}
        same = same_but_for_rounding(
            model, prompts, texts["qkv float32"], texts["transformers float32"]
        )
        assert same, "qkv and transformers wrote different texts"
        whole = times(peers, prompts, options.tokens, options)
        first = times(peers, prompts, 1, options)
        print(f"  batch {batch}")
        for name in peers:
            step = (whole[name] - first[name]) / (options.tokens - 1)
            print(
                f"    {name:22} {batch * options.tokens / whole[name]:7.1f} tokens/s"
                f"   x {whole['transformers float32'] / whole[name]:5.2f}"
                f"   prompt {first[name] * 1e3:6.0f} ms, a step {step * 1e3:6.2f} ms,"
                f" {sizes[name] / step / speed:4.0%} of the memory bandwidth",
                flush=True,
            )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
