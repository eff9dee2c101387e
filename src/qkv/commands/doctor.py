"""qkv doctor: what this machine has, what is slow on it and why, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

import qkv
from qkv import machine

PACKAGES = {
    "gguf": "models in GGUF files, such as smollm2",
    "pyarrow": "data in .parquet files",
    "datasets": "data from the Hugging Face hub: --data hf:NAME",
    "lm_eval": "lm-evaluation-harness: lm_eval --model qkv",
    "tensorboard": "curves in TensorBoard: --sinks tensorboard",
    "wandb": "curves in Weights & Biases: --sinks wandb",
}
"""Optional packages, and what each gives."""
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "QKV_CACHE")
GIB = 2**30
LITTLE_MEMORY, LITTLE_DISK = 2 * GIB, 5 * GIB


class Advice(NamedTuple):
    slow: str
    """What is slow, or does not work."""
    why: str
    do: str


def run(as_json: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """Show what this machine has, what is slow on it and why, and what to do about it.

    Args:
        as_json: One JSON object instead of text.
    """
    found = examine()
    advice = advise(found)
    if as_json:
        print(json.dumps({**found, "advice": [each._asdict() for each in advice]}, indent=1))
        return

    for title, text in described(found).items():
        print(filled(f"{title:12} ", text, 13))

    for number, (name, version) in enumerate(found["packages"].items()):
        there = version or f"not installed (pip install {name})"
        print(
            filled(f"{'' if number else 'packages':12} ", f"{name} {there}: {PACKAGES[name]}", 13)
        )

    print("\nNothing is slow here that could be faster." if not advice else "\nWhat is slow here:")

    for each in advice:
        print(filled("  - ", f"{each.slow}: {each.why}. {each.do}.", 4))


def filled(start: str, text: str, indent: int) -> str:
    """A text in lines of 80 columns, the first one after its title."""
    return textwrap.fill(
        text, 80, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def examine() -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    import torch

    from qkv.training.systems.precision import cpu_slowdown

    memory, features = machine.memory(), machine.cpu_features()

    return {
        "qkv": qkv.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "torch": {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        "cpu": {
            "model": machine.cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": machine.usable_cores(),
            "features": features,
            "bf16_slowdown": cpu_slowdown(torch.bfloat16),
            "load": machine.load(),
        },
        "environment": {
            name: os.environ.get(name)
            for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "QKV_CACHE")
        },
        "memory": None if memory is None else {"total": memory[0], "available": memory[1]},
        "gpus": gpus(),
        "gpu_driver": machine.nvidia_gpu_visible(),
        "cache": cache(),
        "packages": {name: installed(name) for name in PACKAGES},
        "models": models(),
    }


def gpus() -> list[dict[str, Any]]:
    import torch

    return [
        {
            "name": each.name,
            "memory": each.total_memory,
            "compute_capability": f"{each.major}.{each.minor}",
            "bf16": each.major >= 8,
        }
        for each in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]


def cache() -> dict[str, Any]:
    """The folder of prepared data, and the room on its disk."""
    from qkv.data.tokens.prepare import cache_folder

    folder = cache_folder().absolute()
    above = next(each for each in (folder, *folder.parents) if each.exists())

    return {
        "folder": str(folder),
        "free": shutil.disk_usage(above).free,
        "writable": os.access(above, os.W_OK),
    }


def installed(package: str) -> str | None:
    """The version of a package, or None where it is not there; nothing is imported."""
    if find_spec(package) is None:
        return None

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def models() -> dict[str, bool]:
    """Whether each model that comes as a package is installed."""
    from qkv import artifact

    found = {}

    for name, (_, module, file) in artifact.PACKAGED.items():
        spec = find_spec(module)
        found[name] = any(
            Path(place, file).exists() for place in (spec and spec.submodule_search_locations) or ()
        )

    return found


def described(found: dict[str, Any]) -> dict[str, str]:
    """A line for each part of the machine."""
    torch, cpu, memory, cache = found["torch"], found["cpu"], found["memory"], found["cache"]
    features = cpu["features"] or {}
    bf16 = (
        "does not run"
        if cpu["bf16_slowdown"] is None
        else f"{cpu['bf16_slowdown']:.1f} times float32's time"
    )
    named = {"avx2": "AVX2", "avx512": "AVX-512", "bf16": "native bf16", "amx": "AMX"}
    spins = found["environment"]["GOMP_SPINCOUNT"] or "not set"

    return {
        "qkv": f"{found['qkv']}, Python {found['python']}, {found['system']}",
        "torch": f"{torch['version']}, {'CUDA ' + torch['cuda'] if torch['cuda'] else 'without CUDA'}, CPU kernels for "
        f"{torch['cpu_capability']}",
        "CPU": f"{cpu['model']}, {cpu['usable_cores']} of {cpu['cores']} cores usable; "
        + (
            ", ".join(
                f"{text}: {'yes' if features[name] else 'no'}"
                for name, text in named.items()
                if features
            )
            + "; "
        )
        + f"a matrix product in bf16: {bf16}",
        "threads": f"{torch['threads']} (OMP_NUM_THREADS: {found['environment']['OMP_NUM_THREADS'] or 'not set'}, "
        f"GOMP_SPINCOUNT: {spins})",
        "memory": "unknown"
        if memory is None
        else f"{memory['available'] / GIB:.1f} of {memory['total'] / GIB:.1f} GiB available",
        "GPU": "; ".join(
            f"{each['name']}, {each['memory'] / GIB:.0f} GiB, compute capability {each['compute_capability']}, "
            f"bf16: {'yes' if each['bf16'] else 'no'}"
            for each in found["gpus"]
        )
        or "none",
        "cache": f"{cache['folder']}, {cache['free'] / GIB:.1f} GiB free",
        "models": ", ".join(
            f"{name}: {'yes' if there else 'no'}" for name, there in found["models"].items()
        ),
    }


def advise(found: dict[str, Any]) -> list[Advice]:
    return [*advise_cpu(found), *advise_gpu(found), *advise_room(found)]


def advise_cpu(found: dict[str, Any]) -> list[Advice]:
    cpu, threads, given = (
        found["cpu"],
        found["torch"]["threads"],
        found["environment"]["OMP_NUM_THREADS"],
    )
    slowdown, usable = cpu["bf16_slowdown"], cpu["usable_cores"]
    advice = []
    if found["torch"]["cpu_capability"] in ("DEFAULT", "NO AVX"):
        why = "torch finds no AVX2 on this CPU and uses its slowest kernels"
        advice.append(
            Advice(
                "Everything on the CPU", why, "Unset ATEN_CPU_CAPABILITY if it is set, or use a GPU"
            )
        )

    if slowdown is None or slowdown > 1.3:
        why = (
            "this CPU cannot run it"
            if slowdown is None
            else f"it takes {slowdown:.1f} times as long as float32"
        )
        advice.append(Advice("bf16 on the CPU", why, "Keep float32, which is the default on a CPU"))

    if threads < usable and given is not None:
        why = f"torch uses {threads} of {usable} cores, because OMP_NUM_THREADS is {given}"
        advice.append(Advice("Large matrices on the CPU", why, "Unset OMP_NUM_THREADS"))

    if cpu["load"] is not None and cpu["load"] > usable + 0.5:
        why = f"other processes use this machine: a load of {cpu['load']:.1f} on {usable} cores"
        active = str(found["environment"]["OMP_WAIT_POLICY"]).upper() == "ACTIVE"
        what = "Stop them" + (
            ", or unset OMP_WAIT_POLICY: waiting threads then give way" if active else ""
        )
        advice.append(Advice("Training and generating", why, what))

    return advice


def advise_gpu(found: dict[str, Any]) -> list[Advice]:
    if found["gpus"]:
        old = [each["name"] for each in found["gpus"] if not each["bf16"]]
        why = f"{', '.join(old)} has no bf16, so fp16 with a scaled loss is used"
        return [Advice("Training on the GPU", why, "Nothing need be done")] if old else []

    if found["gpu_driver"]:
        why = "the driver sees a GPU, torch does not"
        build = (
            "install a build of torch with CUDA"
            if found["torch"]["cuda"] is None
            else "update the driver"
        )
        return [Advice("Everything", why, build.capitalize())]

    what = "Train the tiny presets (gpt-tiny, transformer-tiny ...), or use a machine with a GPU for the others"
    return [Advice("Training more than tiny models", "there is no GPU", what)]


def advise_room(found: dict[str, Any]) -> list[Advice]:
    advice, memory, cache = [], found["memory"], found["cache"]
    if memory is not None and memory["available"] < LITTLE_MEMORY:
        why = f"only {memory['available'] / GIB:.1f} GiB of memory are available"
        advice.append(
            Advice(
                "Models of more than 100 million parameters",
                why,
                "Close other programs, or use --int8",
            )
        )

    if not cache["writable"]:
        why = f"{cache['folder']} cannot be written"
        advice.append(Advice("Preparing data", why, "Set QKV_CACHE to a folder of yours"))
    elif cache["free"] < LITTLE_DISK:
        why = f"only {cache['free'] / GIB:.1f} GiB are free on the disk of {cache['folder']}"
        advice.append(
            Advice("Preparing large data", why, "Make room, or set QKV_CACHE to a folder elsewhere")
        )

    return advice
