"""qkv doctor: the facts about this machine, and the advice for machines that are slow."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv as package
from qkv import machine
from qkv.commands import doctor
from qkv.training.systems import precision
from support.command_fixtures import Qkv

FAST: dict[str, Any] = {
    "torch": {"version": "2.13", "cuda": "13.0", "cpu_capability": "AVX512", "threads": 8},
    "cpu": {
        "model": "x",
        "cores": 8,
        "usable_cores": 8,
        "features": None,
        "bf16_slowdown": 0.5,
        "compiled_kernels": True,
        "load": 1.0,
    },
    "environment": {
        "OMP_NUM_THREADS": None,
        "OMP_WAIT_POLICY": None,
        "GOMP_SPINCOUNT": None,
        "QKV_CACHE": None,
        "QKV_NATIVE": None,
    },
    "memory": {"total": 2**36, "available": 2**35},
    "gpus": [{"name": "H", "memory": 2**36, "compute_capability": "9.0", "bf16": True}],
    "gpu_driver": True,
    "cache": {"folder": "/x", "free": 2**40, "writable": True},
}


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not start the child process that tries bf16: test_precision.py tests it."""
    monkeypatch.setattr(precision, "cpu_slowdown", lambda dtype: 7.25)


@pytest.mark.usefixtures("no_probe")
def test_facts_about_this_machine(qkv: Qkv) -> None:
    facts = json.loads(qkv("doctor", "--json").out)
    assert facts["qkv"] == package.__version__
    assert facts["torch"]["version"] == torch.__version__
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert len(facts["gpus"]) == torch.cuda.device_count()
    assert facts["cpu"]["bf16_slowdown"] == 7.25
    assert set(facts["packages"]) == set(doctor.PACKAGES)
    advice = {
        "slow": "bf16 on the CPU",
        "why": "it takes 7.2 times as long as float32",
        "do": "Keep float32, which is the default on a CPU",
    }
    assert advice in facts["advice"]

    text = qkv("doctor").out
    assert max(map(len, text.splitlines())) <= 80
    for title in ("qkv", "torch", "CPU", "threads", "memory", "GPU", "cache", "packages", "models"):
        assert f"\n{title} " in f"\n{text}"

    assert "bf16 on the CPU: it takes 7.2 times as long" in text


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("torch", "cpu_capability", "DEFAULT", "Everything on the CPU: torch finds no AVX2"),
        ("cpu", "bf16_slowdown", None, "bf16 on the CPU: this CPU cannot run it"),
        ("environment", "OMP_NUM_THREADS", "1", ""),
        ("cpu", "load", 9.5, "other processes use this machine: a load of 9.5 on 8 cores"),
        ("memory", "available", 2**30, "only 1.0 GiB of memory are available"),
        ("cache", "free", 2**30, "only 1.0 GiB are free on the disk of /x"),
        ("cache", "writable", False, "/x cannot be written"),
    ],
)
def test_advice(part: str, name: str, value: Any, message: str) -> None:
    assert doctor.advise(FAST) == []
    facts = copy.deepcopy(FAST)
    facts[part][name] = value
    advice = doctor.advise(facts)
    assert len(advice) == bool(message)
    for item in advice:
        assert message in f"{item.slow}: {item.why}. {item.do}."


def test_few_threads_and_no_gpu() -> None:
    few = copy.deepcopy(FAST) | {"gpus": [], "gpu_driver": False}
    few["environment"]["OMP_NUM_THREADS"] = "2"
    few["torch"]["threads"] = 2
    threads, gpu = doctor.advise(few)
    assert threads.why == "torch uses 2 of 8 cores, because OMP_NUM_THREADS is 2"
    assert gpu.why == "there is no GPU"
    (unseen,) = doctor.advise(FAST | {"gpus": []})
    assert (unseen.why, unseen.do) == ("the driver sees a GPU, torch does not", "Update the driver")


def test_kernels_that_were_not_compiled_or_are_switched_off() -> None:
    without = copy.deepcopy(FAST)
    without["cpu"] |= {"compiled_kernels": False, "features": {"avx2": True}}
    (advice,) = doctor.advise(without)
    assert advice.do == "Install a C compiler, such as gcc, and then qkv again"
    without["environment"]["QKV_NATIVE"] = "0"
    (advice,) = doctor.advise(without)
    assert advice.do == "Unset QKV_NATIVE"
    without["torch"]["cpu_capability"] = "DEFAULT"  # torch uses none of its fast ones, either
    (advice,) = doctor.advise(without)
    assert advice.slow == "Everything on the CPU"
    without["torch"]["cpu_capability"] = "AVX2"
    without["cpu"]["features"] = {"avx2": False}  # no kernel is for this CPU
    assert doctor.advise(without) == []


@pytest.mark.parametrize(
    ("files", "features", "cores", "memory"),
    [
        (
            {"/proc/cpuinfo": "model name\t: A CPU\nflags\t\t: fpu avx2 avx512f avx512_bf16\n",
             "/sys/fs/cgroup/cpu.max": "150000 100000\n",
             "/proc/meminfo": "MemTotal:       2048 kB\nMemAvailable:   1024 kB\n",
             "/sys/fs/cgroup/memory.max": "1048576", "/sys/fs/cgroup/memory.current": "1000000"},
            {"avx2": True, "avx512": True, "bf16": True, "amx": False}, 2, (1048576, 48576),
        ),
        ({"/proc/cpuinfo": "Features\t: fp asimd\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"},
         {"avx2": False, "avx512": False, "bf16": False, "amx": False}, 4, None),
        ({}, None, 4, None),
    ],
)  # fmt: skip
def test_facts_from_system_files(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], features: Any, cores: int, memory: Any
) -> None:
    monkeypatch.setattr(machine, "read", lambda path: files.get(path, ""))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    assert machine.cpu_features() == features
    assert machine.usable_cores() == cores
    assert machine.memory() == memory


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr("os.name", "posix")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.nvidia_gpu_visible()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not machine.nvidia_gpu_visible()
