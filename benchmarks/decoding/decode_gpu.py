"""Decoding on a GPU in bf16: qkv against `transformers` with a static cache, compiled.

    python -m benchmarks.decoding.decode_gpu      GPT-2 124M at batch 1 and 32, GPT-2 XL at batch 1
    python -m benchmarks.decoding.decode_gpu --jobs gpt2:1 --peer      the peer compiles for minutes
    python -m benchmarks.decoding.decode_gpu --gpt-fast FOLDER         beside a copy of gpt-fast

A step reads every weight once, and the keys and values so far; the fraction is that of the speed of
a large copy.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from benchmarks.harness import clock, machine
from qkv.generation import decode_cuda_graph, generate
from qkv.models import GPT, GPTConfig, build, preset
from qkv.models.convert import write_folder

Peer = Callable[[Tensor], object]


@dataclass
class Options:
    jobs: tuple[str, ...] = ("gpt2:1", "gpt2:32", "gpt2-xl:1")
    """A preset and a batch size each."""
    prompt: int = 128
    tokens: int = 256
    rounds: int = 7
    sampled: bool = False
    """Measure qkv with temperature 0.8 and top-k 200, too."""
    peer: bool = False
    """Also time `transformers`."""
    gpt_fast: Path | None = None
    """The folder of gpt-fast, whose own generate runs at batch 1 on a model of as many bytes."""


def ours(model: GPT, options: Options, **how: float) -> Peer:
    how = {"temperature": 0.0} | how
    return lambda prompts: generate(model, prompts, length=options.tokens, seed=0, **how)


def transformers_peer(model: GPT, options: Options) -> Peer:
    from transformers import GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, folder)
        theirs = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    theirs.generation_config.eos_token_id = None
    exactly = {
        "max_new_tokens": options.tokens,
        "min_new_tokens": options.tokens,
        "pad_token_id": 0,
    }

    def write(prompts: Tensor) -> Tensor:
        how = {
            "attention_mask": torch.ones_like(prompts),
            "do_sample": False,
            "cache_implementation": "static",
        }
        with torch.inference_mode():
            return theirs.generate(prompts, **how, **exactly)  # type: ignore[no-any-return]

    return write


def gpt_fast_peer(config: GPTConfig, options: Options) -> Peer:
    """gpt-fast's model and loop, compiled as its script does it.

    Its blocks are Llama's: with a SwiGLU of two thirds of the width, a block has GPT-2's weights.
    """
    sys.path.insert(0, str(options.gpt_fast))
    gpt_fast: Any = importlib.import_module("generate")
    sizes: Any = importlib.import_module("model")
    sys.path.pop(0)

    arguments = sizes.ModelArgs(
        block_size=config.context,
        vocab_size=config.vocabulary,
        n_layer=config.depth,
        n_head=config.heads,
        dim=config.width,
        intermediate_size=config.width_of_hidden * 2 // 3,
    )
    with torch.device("cuda"):
        model = sizes.Transformer(arguments).eval().bfloat16()

    step = gpt_fast.decode_one_token
    step = getattr(step, "_torchdynamo_orig_callable", step)  # compiled for an earlier model
    gpt_fast.decode_one_token = torch.compile(step, mode="reduce-overhead", fullgraph=True)

    def write(prompts: Tensor) -> object:
        return gpt_fast.generate(
            model,
            prompts[0].int(),
            options.tokens,
            batch_size=1,
            interactive=False,
            draft_model=None,
            temperature=0.8,
            top_k=200,
        )

    return write


def copy_speed() -> float:
    """Bytes that a large copy reads and writes per second."""
    much = torch.randn(2**29, device="cuda")
    other = torch.empty_like(much)
    seconds = [clock(lambda: other.copy_(much), "cuda") for _ in range(9)]
    return 2 * much.nbytes / statistics.median(seconds)


def bytes_of_step(model: GPT, batch: int, options: Options) -> float:
    """Bytes of the weights, without tables of which one row is read, and of the mean KV cache."""
    config = model.config
    tables = () if model.embedding.position is None else model.embedding.position.parameters()
    weights = sum(tensor.nbytes for tensor in model.parameters()) - sum(
        tensor.nbytes for tensor in tables
    )
    kv_heads = config.kv_heads or config.heads
    cached = options.prompt + options.tokens / 2
    return weights + 2 * 2 * batch * cached * config.depth * kv_heads * config.width_of_head


def main(options: Options) -> None:
    if not torch.cuda.is_available():
        print("decode_gpu.py: no GPU found, nothing is measured")
        return
    torch.manual_seed(0)
    speed = copy_speed()
    print(f"{options.prompt} tokens in, {options.tokens} out, bf16; {machine()}")
    print(f"  a large copy moves {speed / 1e12:.2f} TB/s", flush=True)
    for job in options.jobs:
        name, batch = job.split(":")
        config = replace(preset(name), dropout=0.0, attention_dropout=0.0)
        assert isinstance(config, GPTConfig)
        with torch.device("cuda"):
            model = build(config).eval().bfloat16()
        assert isinstance(model, GPT)
        peers: dict[str, Peer] = {"qkv": ours(model, options)}
        if options.sampled:
            peers["qkv, sampled"] = ours(model, options, temperature=0.8, top_k=200)
        if options.peer:
            peers["transformers, static cache"] = transformers_peer(model, options)
        if options.gpt_fast is not None and batch == "1":
            peers["gpt-fast"] = gpt_fast_peer(config, options)
        prompts = torch.randint(config.vocabulary, (int(batch), options.prompt), device="cuda")
        moved = bytes_of_step(model, int(batch), options)
        for peer, write in peers.items():  # one after the other: each has its own CUDA graph
            first = clock(partial(write, prompts), "cuda")
            seconds = [clock(partial(write, prompts), "cuda") for _ in range(options.rounds + 2)][
                2:
            ]
            took = statistics.median(seconds)
            step = took / options.tokens
            print(
                f"  {job:10} {peer:28} {int(batch) * options.tokens / took:9,.0f} tokens/s"
                f"  {step * 1e3:6.3f} ms a step, {moved / step / speed:4.0%} of the copy's speed;"
                f" the first time {first:.1f} s",
                flush=True,
            )
        decode_cuda_graph.graphs.clear()
        del model, peers, write


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
