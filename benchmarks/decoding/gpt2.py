"""GPT-2 124M, forward and backward: qkv, with unused hook points, against `transformers`.

python -m benchmarks.decoding.gpt2    GPU: 32 x 1024, bf16, compiled; CPU: 2 x 256, float32
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from benchmarks.harness import clock, compare, machine
from qkv.models import build, preset
from qkv.training.systems.precision import use_tf32

GPU = torch.cuda.is_available()


@dataclass
class Options:
    batch: int = 32 if GPU else 2
    length: int = 1024 if GPU else 256
    rounds: int = 20 if GPU else 5
    compiled: bool = GPU
    device: str = "cuda" if GPU else "cpu"


def ours() -> Callable[[Tensor, Tensor], Tensor]:
    config = replace(preset("gpt2"), dropout=0.0, attention_dropout=0.0)
    model = build(config)

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())

    loss.model = model  # type: ignore[attr-defined]
    return loss


def transformers_peer() -> Callable[[Tensor, Tensor], Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        logits = model(ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss.model = model  # type: ignore[attr-defined]
    return loss


def main(options: Options) -> None:
    device = options.device
    use_tf32(torch.device(device))
    ids = torch.randint(50257, (options.batch, options.length + 1), device=device)
    makers: dict[str, Callable[[], Callable]] = {"qkv": ours, "transformers": transformers_peer}
    runs = {}
    for name, make in makers.items():
        loss = make()
        model = loss.model.to(device).train()
        step_loss = torch.compile(loss) if options.compiled else loss

        def run(model: torch.nn.Module = model, step_loss: Callable = step_loss) -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                value = step_loss(ids[:, :-1], ids[:, 1:])
            value.backward()

        clock(run, device)
        runs[name] = run
    seconds = compare(runs, options.rounds, device)
    tokens = options.batch * options.length
    print(f"GPT-2 124M, forward + backward, {options.batch} x {options.length}; {machine()}")
    first = seconds["qkv"]
    for name, took in seconds.items():
        print(
            f"  {name:20} {took * 1e3:8.1f} ms {tokens / took:10,.0f} tokens/s"
            f"   x {took / first:.3f}",
            flush=True,
        )
    del runs
    gc.collect()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
