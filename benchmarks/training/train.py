"""Time of a whole training step: qkv, `transformers` and nanoGPT, with the same batches.

On a GPU (GPT-2 124M, 32 x 1024, bf16, compiled), beside nanoGPT's own model.py in that folder:
    python -m benchmarks.training.train --nanogpt-path ../nanoGPT
    python -m benchmarks.training.train --nanogpt-path ../nanoGPT --batch 64
    python -m benchmarks.training.train --nanogpt-path ../nanoGPT --preset gpt2-xl --batch 16
    python -m benchmarks.training.train --optimizer muon

On a CPU (the demo's GPT, float32):
    python -m benchmarks.training.train --peer

The peers run one after the other on a GPU, each with the memory of the device for itself.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
import tyro

from benchmarks.harness import machine
from benchmarks.training.nanogpt_peer import nanogpt_step
from qkv.data.batches.batch import Batch
from qkv.lab import demo
from qkv.models import GPTConfig, build, preset
from qkv.training.objective import Objective
from qkv.training.optimizer import Optimizers, gradient_norm
from qkv.training.resilience.guard import Guard
from qkv.training.run_config import OptimizerConfig
from qkv.training.step import gradients_of
from qkv.training.systems.distributed import World
from qkv.training.systems.precision import best_precision, use_tf32

GPU = torch.cuda.is_available()
Step = Callable[[torch.Tensor], None]


@dataclass
class Options:
    preset: str = "gpt2" if GPU else "demo"
    """A name of `qkv presets`, or demo: the GPT of `make demo`."""
    depth: int | None = None
    """Blocks, if fewer than the preset has: for a quick look at a wide model."""
    batch: int = 32 if GPU else 16
    steps: int = 30
    nanogpt: bool = False
    """Compute as nanoGPT's benchmark does: no biases in linear layers, and the exact GELU."""
    biases: bool = True
    """Biases in linear layers, as the preset has them."""
    nanogpt_path: Path | None = None
    """nanoGPT's folder: also time its own model.py; without biases, as its benchmark, or with."""
    nanogpt_bias: bool = False
    """Biases in nanoGPT's layers, as GPT-2 has them; its benchmark has none."""
    fp8: bool = False
    """Also time qkv in FP8, on a GPU: the output layer, then the feed-forward layers as well."""
    optimizer: str = "adamw"
    """The optimizer of qkv: adamw or muon."""
    peer: bool = False
    """Also time the same model of transformers, compiled on a GPU, with the same batches."""
    compile: bool = True
    """Compile the model on a GPU."""
    cuda_graph: bool = True
    """Capture a step as a CUDA graph."""
    alternate: int = 5
    """Rounds in which the peers take turns, on a CPU."""


def size_of(options: Options) -> GPTConfig:
    config = demo.WRITER_CONFIG if options.preset == "demo" else preset(options.preset)
    assert isinstance(config, GPTConfig)
    return replace(config, depth=options.depth or config.depth)


class OurStep:
    """A training step of qkv: gradients, their norm, the guard, clipping and the optimizer."""

    def __init__(self, options: Options, device: torch.device) -> None:
        config = replace(size_of(options), dropout=0.0, attention_dropout=0.0)
        if options.nanogpt or not options.biases:
            config = replace(config, qkv_bias=False, output_bias=False, feed_forward_bias=False)
        if options.nanogpt:
            config = replace(config, activation="gelu")

        with device:
            self.model = build(config).train()

        self.graphs = GPU and options.cuda_graph
        self.objective = Objective(self.model, precision=best_precision(device))
        if GPU and options.compile:
            self.objective.compile_reader()
        if self.graphs:
            self.objective.use_cuda_graph()

        self.optimizers = Optimizers(self.model, OptimizerConfig(optimizer=options.optimizer))
        self.optimizers.set_rate(6e-4, 6e-4)
        self.guard = Guard(2.0, 3)
        self.world = World(device)
        self.one = torch.ones((), device=device)

    def use_fp8(self, *, feed_forward: bool = True) -> None:
        """From now on compute in FP8, compiled anew and in a new CUDA graph."""
        self.objective.use_fp8(feed_forward=feed_forward)
        if feed_forward and self.objective.compiled is not None:
            torch.compiler.reset()
            self.objective.compiled = torch.compile(self.objective.reader)
        if self.graphs:
            self.objective.use_cuda_graph()

    def __call__(self, ids: torch.Tensor) -> None:
        batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
        batch.__dict__.update(count=batch.targets.numel(), tokens=batch.ids.numel())
        loss, _ = gradients_of(self.objective, batch, self.world, scale=self.one)
        norm = gradient_norm(self.model.parameters())
        self.optimizers.step(self.guard.is_bad(0, loss, norm), norm.clamp(min=1.0))
        self.optimizers.zero_gradients()


def ours(options: Options, device: torch.device) -> Step:
    return OurStep(options, device)


def transformers_peer(options: Options, device: torch.device) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

    size = size_of(options)
    names = {
        "vocab_size": size.vocabulary,
        "tie_word_embeddings": size.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model: torch.nn.Module
    if size.position == "rotary":  # GPT-NeoX without parallel residuals
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **names,
                max_position_embeddings=size.context,
                hidden_size=size.width,
                num_hidden_layers=size.depth,
                num_attention_heads=size.heads,
                intermediate_size=size.width_of_hidden,
                rotary_pct=1.0,
                use_parallel_residual=False,
                hidden_act="gelu",
            )
        )
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                **names,
                n_positions=size.context,
                n_embd=size.width,
                n_layer=size.depth,
                n_head=size.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )

    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def loss(ids: torch.Tensor) -> torch.Tensor:
        logits = model(ids[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    compiled = torch.compile(loss) if GPU else loss

    def step(ids: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=GPU):
            value = compiled(ids)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def nanogpt_peer(options: Options, device: torch.device) -> Step:
    assert options.nanogpt_path is not None
    size = size_of(options)
    return nanogpt_step(options.nanogpt_path, size, device, bias=options.nanogpt_bias)


def main(options: Options) -> None:
    device = torch.device("cuda" if GPU else "cpu")
    use_tf32(device)
    size = size_of(options)
    shape = (options.batch, size.context + 1)
    batches = [torch.randint(size.vocabulary, shape, device=device) for _ in range(4)]
    peers = {"qkv": ours}
    if options.peer:
        peers["transformers"] = transformers_peer
    if options.nanogpt_path is not None:
        peers["nanoGPT"] = nanogpt_peer

    print(f"{options.preset}, a training step of {options.batch} x {size.context}; {machine()}")
    seconds = time_peers(peers, batches, options, device)
    report(seconds, options.batch * size.context)


def time_peers(
    peers: dict[str, Callable[[Options, torch.device], Step]],
    batches: list[torch.Tensor],
    options: Options,
    device: torch.device,
) -> dict[str, float]:
    """Seconds per step: on a GPU one peer at a time, for its memory; on a CPU taking turns."""
    steps: dict[str, Step] = {}
    seconds = dict.fromkeys(peers, float("inf"))
    for name, make in peers.items():
        if GPU:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

        begin = time.perf_counter()
        steps[name] = make(options, device)
        for batch in batches:
            steps[name](batch)

        wait()
        memory = ""
        if GPU:
            memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"

        print(f"  {name}: ready after {time.perf_counter() - begin:.0f} s{memory}", flush=True)
        if GPU:
            step = steps.pop(name)
            seconds[name] = clock(step, batches, options.steps)
            print(f"  {name}: {seconds[name] * 1e3:.2f} ms per step", flush=True)
            if options.fp8 and isinstance(step, OurStep):
                seconds |= time_fp8(step, batches, options.steps)

            del step

    if not GPU:
        for _ in range(options.alternate):
            for name, step in steps.items():
                seconds[name] = min(seconds[name], clock(step, batches, options.steps))

    return seconds


def time_fp8(step: OurStep, batches: list[torch.Tensor], steps: int) -> dict[str, float]:
    """Seconds per step with the output layer in FP8, and with the feed-forward layers as well."""
    seconds: dict[str, float] = {}
    for name, feed_forward in (("FP8 output", False), ("FP8 output + FFN", True)):
        step.use_fp8(feed_forward=feed_forward)
        clock(step, batches, 4)  # compiles and captures it
        seconds[f"qkv, {name}"] = clock(step, batches, steps)
        print(f"  qkv, {name}: {seconds[f'qkv, {name}'] * 1e3:.2f} ms per step", flush=True)

    return seconds


def report(seconds: dict[str, float], tokens: int) -> None:
    for name, took in seconds.items():
        ratio = ""
        if name != "qkv":
            ratio = f"   x {took / seconds['qkv']:.3f}"

        print(f"  {name:22} {took * 1e3:9.2f} ms per step {tokens / took:12,.0f} tokens/s{ratio}")


def clock(step: Step, batches: list[torch.Tensor], steps: int) -> float:
    wait()
    begin = time.perf_counter()
    for number in range(steps):
        step(batches[number % len(batches)])
    wait()
    return (time.perf_counter() - begin) / steps


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
