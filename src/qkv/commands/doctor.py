"""qkv doctor: what this machine has, what is slow on it and why, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import textwrap
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import tyro

import qkv
from qkv import machine
from qkv.imports import PACKAGES, install_command

VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "QKV_CACHE", "QKV_NATIVE")
GIB = 2**30
LITTLE_MEMORY = 2 * GIB
LITTLE_DISK = 5 * GIB
WIDTH = 80
FEATURES = {"avx2": "AVX2", "avx512": "AVX-512", "bf16": "native bf16", "amx": "AMX"}


class Advice(NamedTuple):
    """Something that is slow or does not work, the cause, and the remedy."""

    slow: str
    why: str
    do: str


def run(as_json: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """Show what this machine has, what is slow on it and why, and what to do about it.

    Args:
        as_json: Print one JSON object instead of text.
    """
    facts = examine()
    advice = advise(facts)
    if as_json:
        print(json.dumps({**facts, "advice": [item._asdict() for item in advice]}, indent=1))
        return

    for title, text in described(facts).items():
        print(filled(f"{title:12} ", text, 13))

    title = "packages"
    for name, version in facts["packages"].items():
        status = version or f"not installed ({install_command(name)})"
        print(filled(f"{title:12} ", f"{name} {status}: {PACKAGES[name].purpose}", 13))
        title = ""

    if not advice:
        print("\nNothing is slow here that could be faster.")
        return

    print("\nWhat is slow here:")
    for item in advice:
        print(filled("  - ", f"{item.slow}: {item.why}. {item.do}.", 4))


def filled(start: str, text: str, indent: int) -> str:
    """The text after its title, wrapped to 80 columns."""
    return textwrap.fill(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False
    )


# What this machine has


def examine() -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    return {
        "qkv": qkv.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "torch": torch_facts(),
        "cpu": cpu_facts(),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
        "memory": memory_facts(),
        "gpus": gpus(),
        "gpu_driver": machine.nvidia_gpu_visible(),
        "cache": cache(),
        "packages": {name: installed(name) for name in PACKAGES},
        "models": models(),
    }


def torch_facts() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def cpu_facts() -> dict[str, Any]:
    """The CPU, its cores, its instructions, how fast bf16 is on it, and the kernels in C for it."""
    import torch

    from qkv.nn.native import native_library
    from qkv.training.systems.precision import cpu_slowdown

    return {
        "model": machine.cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": machine.usable_cores(),
        "features": machine.cpu_features(),
        "bf16_slowdown": cpu_slowdown(torch.bfloat16),
        "compiled_kernels": native_library.library() is not None,
        "load": machine.load(),
    }


def memory_facts() -> dict[str, int] | None:
    memory = machine.memory()
    if memory is None:
        return None

    total, available = memory
    return {"total": total, "available": available}


def gpus() -> list[dict[str, Any]]:
    """The GPUs that torch sees."""
    import torch

    devices = []
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        devices.append(
            {
                "name": gpu.name,
                "memory": gpu.total_memory,
                "compute_capability": f"{gpu.major}.{gpu.minor}",
                "bf16": gpu.major >= 8,
            }
        )

    return devices


def cache() -> dict[str, Any]:
    """The folder of prepared data, and the free space on its disk."""
    from qkv.data.tokens.prepare import cache_folder

    folder = cache_folder().absolute()
    above = next(path for path in (folder, *folder.parents) if path.exists())

    return {
        "folder": str(folder),
        "free": shutil.disk_usage(above).free,
        "writable": os.access(above, os.W_OK),
    }


def installed(package: str) -> str | None:
    """The version of a package, or None if it is not installed; nothing is imported."""
    if find_spec(package) is None:
        return None

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def models() -> dict[str, bool]:
    """Whether each model that comes as a package is installed."""
    from qkv.model_names import PACKAGED, packaged_path

    return {name: packaged_path(name) is not None for name in PACKAGED}


# What it means


def described(facts: dict[str, Any]) -> dict[str, str]:
    """A line for each part of the machine."""
    environment = facts["environment"]
    cache = facts["cache"]
    threads = environment["OMP_NUM_THREADS"] or "not set"
    spins = environment["GOMP_SPINCOUNT"] or "not set"
    installed_models = [f"{name}: {yes_or_no(here)}" for name, here in facts["models"].items()]

    return {
        "qkv": f"{facts['qkv']}, Python {facts['python']}, {facts['system']}",
        "torch": describe_torch(facts["torch"]),
        "CPU": describe_cpu(facts["cpu"]),
        "threads": f"{facts['torch']['threads']} (OMP_NUM_THREADS: {threads}, "
        f"GOMP_SPINCOUNT: {spins})",
        "memory": describe_memory(facts["memory"]),
        "GPU": "; ".join(map(describe_gpu, facts["gpus"])) or "none",
        "cache": f"{cache['folder']}, {cache['free'] / GIB:.1f} GiB free",
        "models": ", ".join(installed_models),
    }


def describe_torch(torch: dict[str, Any]) -> str:
    cuda = "without CUDA"
    if torch["cuda"]:
        cuda = f"CUDA {torch['cuda']}"

    return f"{torch['version']}, {cuda}, CPU kernels for {torch['cpu_capability']}"


def describe_cpu(cpu: dict[str, Any]) -> str:
    """Name, cores, instructions, the time of bf16 compared with float32, and kernels in C."""
    features = []
    for name, present in (cpu["features"] or {}).items():
        features.append(f"{FEATURES[name]}: {yes_or_no(present)}")

    bf16 = "does not run"
    if cpu["bf16_slowdown"] is not None:
        bf16 = f"{cpu['bf16_slowdown']:.1f} times float32's time"

    return (
        f"{cpu['model']}, {cpu['usable_cores']} of {cpu['cores']} cores usable; "
        f"{', '.join(features)}; a matrix product in bf16: {bf16}; "
        f"qkv's kernels in C: {yes_or_no(cpu['compiled_kernels'])}"
    )


def describe_memory(memory: dict[str, int] | None) -> str:
    if memory is None:
        return "unknown"

    return f"{memory['available'] / GIB:.1f} of {memory['total'] / GIB:.1f} GiB available"


def describe_gpu(gpu: dict[str, Any]) -> str:
    return (
        f"{gpu['name']}, {gpu['memory'] / GIB:.0f} GiB, "
        f"compute capability {gpu['compute_capability']}, bf16: {yes_or_no(gpu['bf16'])}"
    )


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


# What to do


def advise(facts: dict[str, Any]) -> list[Advice]:
    return [
        *advise_cpu(facts["cpu"], facts["torch"], facts["environment"]),
        *advise_gpu(facts["gpus"], facts["gpu_driver"], facts["torch"]),
        *advise_space(facts["memory"], facts["cache"]),
    ]


def advise_cpu(
    cpu: dict[str, Any], torch: dict[str, Any], environment: dict[str, Any]
) -> list[Advice]:
    """Slow kernels, slow bf16, few threads, and a busy machine."""
    usable = cpu["usable_cores"]
    advice = []
    if torch["cpu_capability"] in ("DEFAULT", "NO AVX"):
        why = "torch finds no AVX2 on this CPU and uses its slowest kernels"
        do = "Unset ATEN_CPU_CAPABILITY if it is set, or use a GPU"
        advice.append(Advice("Everything on the CPU", why, do))
    else:
        advice += advise_kernels(cpu, environment)

    slowdown = cpu["bf16_slowdown"]
    if slowdown is None or slowdown > 1.3:
        why = "this CPU cannot run it"
        if slowdown is not None:
            why = f"it takes {slowdown:.1f} times as long as float32"

        advice.append(Advice("bf16 on the CPU", why, "Keep float32, which is the default on a CPU"))

    threads = torch["threads"]
    limit = environment["OMP_NUM_THREADS"]
    if threads < usable and limit is not None:
        why = f"torch uses {threads} of {usable} cores, because OMP_NUM_THREADS is {limit}"
        advice.append(Advice("Large matrices on the CPU", why, "Unset OMP_NUM_THREADS"))

    load = cpu["load"]
    if load is not None and load > usable + 0.5:
        why = f"other processes use this machine: a load of {load:.1f} on {usable} cores"
        do = "Stop them"
        if str(environment["OMP_WAIT_POLICY"]).upper() == "ACTIVE":
            do += ", or unset OMP_WAIT_POLICY: waiting threads then give way"

        advice.append(Advice("Training and generating", why, do))

    return advice


def advise_kernels(cpu: dict[str, Any], environment: dict[str, Any]) -> list[Advice]:
    """The kernels in C are not used on a CPU that could run them."""
    if cpu["compiled_kernels"] or not (cpu["features"] or {}).get("avx2"):
        return []

    why = "qkv's kernels in C were not compiled when it was installed"
    do = "Install a C compiler, such as gcc, and then qkv again"
    if environment["QKV_NATIVE"] == "0":
        why = "qkv's kernels in C are switched off: QKV_NATIVE is 0"
        do = "Unset QKV_NATIVE"

    return [Advice("Generating on the CPU", why, do)]


def advise_gpu(gpus: list[dict[str, Any]], driver: bool, torch: dict[str, Any]) -> list[Advice]:
    """No GPU, one that torch does not see, or an old one."""
    if gpus:
        old = [gpu["name"] for gpu in gpus if not gpu["bf16"]]
        if not old:
            return []

        why = f"{', '.join(old)} has no bf16, so fp16 with a scaled loss is used"
        return [Advice("Training on the GPU", why, "Nothing need be done")]

    if driver:
        do = "Update the driver"
        if torch["cuda"] is None:
            do = "Install a build of torch with CUDA"

        return [Advice("Everything", "the driver sees a GPU, torch does not", do)]

    do = (
        "Train the tiny presets (gpt-tiny, transformer-tiny ...), or use a machine with a GPU for "
        "the others"
    )
    return [Advice("Training more than tiny models", "there is no GPU", do)]


def advise_space(memory: dict[str, int] | None, cache: dict[str, Any]) -> list[Advice]:
    """Little memory, or little space for prepared data."""
    advice = []
    if memory is not None and memory["available"] < LITTLE_MEMORY:
        why = f"only {memory['available'] / GIB:.1f} GiB of memory are available"
        slow = "Models of more than 100 million parameters"
        advice.append(Advice(slow, why, "Close other programs, or use --int8"))

    folder = cache["folder"]
    if not cache["writable"]:
        do = "Set QKV_CACHE to a folder of yours"
        advice.append(Advice("Preparing data", f"{folder} cannot be written", do))
    elif cache["free"] < LITTLE_DISK:
        why = f"only {cache['free'] / GIB:.1f} GiB are free on the disk of {folder}"
        do = "Make room, or set QKV_CACHE to a folder elsewhere"
        advice.append(Advice("Preparing large data", why, do))

    return advice
