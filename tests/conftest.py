"""Settings of all tests: seeds, shape checks, repeatable draws, and GPU tests only with a GPU.

The shapes in qkv's annotations are checked at run time in every test of a module, equal calls once
in a test. Users run without the checks: tests of error messages use `without_shape_checks`, tests
of torch.compile use `qkv_unchecked`.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from support.shape_checks import begin_test, install_shape_checks, unchecked

# Before anything imports qkv.
hook = install_shape_checks()
HERE = Path(__file__).parent

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the tensors are small: more threads would wait for each other
    # beartype checks a random member of a tuple, and hypothesis warns about any use of random.
    config.addinivalue_line(
        "filterwarnings", "ignore:Do not use the `random` module inside strategies"
    )


deselected_without_gpu = pytest.StashKey[int]()


LONGEST = (
    "unit/training/systems/test_distributed.py",
    "unit/lab/test_demo.py",
    "unit/learn/test_exercises.py",
    "unit/learn/test_beyond_exercises.py",
    "docs/test_page_code.py",
    "docs/test_notebooks.py",
    "docs/test_site_build.py",
    "unit/commands/test_serve.py",
    "unit/learn/test_sandbox.py",
    "unit/test_packaging.py",
    "unit/training/resilience/test_bad_steps.py",
    "unit/training/test_resume.py",
    "unit/training/test_loop.py",
    "golden/test_real_weights.py",
    "unit/models/test_compiled.py",
    "unit/training/resilience/test_sharded_checkpoints.py",
    "unit/evaluation/test_lm_eval_harness.py",
)
"""Files that take long for their number of tests, in the order in which workers take them.

The browser tests follow without a break, so that a worker starts Chromium once. Then come the
others, those with most tests first. So no worker begins a long file when the others have nothing
left to do.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Counter(item.path for item in items)

    longest = [HERE / name for name in LONGEST]

    def rank(item: pytest.Item) -> tuple[int, bool, int]:
        first = longest.index(item.path) if item.path in longest else len(longest)
        return first, item.path.parent != HERE / "browser", -tests[item.path]

    items.sort(key=rank)
    if torch.cuda.is_available():
        return

    need_gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.stash[deselected_without_gpu] = len(need_gpu)
    if need_gpu:
        config.hook.pytest_deselected(items=need_gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if count := config.stash.get(deselected_without_gpu, 0):
        terminalreporter.write_line(
            f"{count} tests marked gpu were deselected: there is no CUDA device here"
        )


def pytest_collection_finish() -> None:
    """Garbage collections skip the tests and modules: a full one would take a fifth of a second."""
    gc.collect()
    gc.freeze()


if not torch.cuda.is_available():
    # PyTorch's own keeps the seed for devices that are not there, with the stack as text.
    torch.manual_seed = torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


WHOLE_RUNS = (
    "browser/",
    "docs/",
    "errors/",
    "unit/commands/",
    "unit/command_line/",
    "unit/lab/",
    "unit/learn/test_notebook_checks",
    "unit/learn/test_sandbox",
    "unit/serving/",
    "unit/test_artifact",
    "unit/test_cli",
    "unit/test_readme",
    "unit/training/resilience/test_bad_steps",
    "unit/training/resilience/test_checkpoint_writer",
    "unit/training/systems/test_distributed",
    "unit/training/setup/test_run_folder",
    "unit/training/finetune/",
    "unit/training/test_loop",
    "unit/training/test_opening_checkpoints",
    "unit/training/test_resume",
    "unit/training/test_tune",
)
"""Tests of whole commands, runs and servers, which run without shape checks.

The tests of the modules inside check the shapes, except for the engine of serving, whose own test
is checked.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What test files compute when they are imported is not checked."""
    with unchecked():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Whole runs go without checks, as do the fixtures that they share."""
    begin_test()
    name = item.path.relative_to(HERE).as_posix()
    whole = name.startswith(WHOLE_RUNS) and name != "unit/serving/engine/test_engine.py"
    with unchecked() if whole else nullcontext():
        return (yield)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """PyTorch with one thread, and with several."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """qkv with only its own checks and messages, as its users run it."""
    with unchecked():
        yield


unchecked_modules: dict[str, ModuleType] = {}


@pytest.fixture
def qkv_unchecked() -> Iterator[None]:
    """A copy of qkv without shape checks, which torch.compile cannot trace."""

    def take_modules() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] == "qkv"]
        return {name: sys.modules.pop(name) for name in names}

    checked_modules = take_modules()
    sys.meta_path.remove(hook)
    # The same copy every time: torch.compile remembers modules by name.
    sys.modules.update(unchecked_modules)
    yield
    unchecked_modules.update(take_modules())
    sys.meta_path.insert(0, hook)
    sys.modules.update(checked_modules)


@pytest.fixture
def fresh_compiler() -> None:
    """Reset torch.compile, so that earlier tests do not count against its recompilation limit."""
    torch.compiler.reset()
