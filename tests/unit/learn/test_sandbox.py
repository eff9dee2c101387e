"""Student's code in a child process: whatever it does, the report is a clear sentence."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from qkv.learn.course import Exercise, find_exercise
from qkv.learn.run_checks import Report
from qkv.learn.sandbox import check_limits, check_runner
from qkv.learn.sandbox.check_limits import CheckLimits
from qkv.learn.sandbox.check_runner import CAN_FORK, CheckRunner
from qkv.learn.sandbox.child_process import ForkedChild
from qkv.learn.sandbox.replaced_functions import KnownFunctions

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="the limits are those of Linux")
LIMITS = CheckLimits(seconds=3.0, patience=600.0, memory=1 << 30)
SHORT = CheckLimits(seconds=0.6, patience=600.0)
"""For loops that never end."""


@pytest.fixture(scope="module")
def lookup() -> Exercise:
    return find_exercise("lookup")


def report_on(
    exercise: Exercise, folder: Path, text: str | bytes, limits: CheckLimits = LIMITS
) -> Report:
    """The report on a file with this text."""
    path = folder / f"{exercise.stem}.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return CheckRunner(limits).run(exercise, path)


def wait_for_the_end_of(pid: int) -> None:
    """Returns when the process has ended; a process that never ends fails the test."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return

    ended, _, _ = select.select([process], [], [], 120)
    os.close(process)
    assert ended, f"process {pid} is still running"


def said(report: Report) -> str:
    """The error, or the message of the first failure."""
    failed = [result.message for result in report.results if result.state == "failed"]
    return report.error or failed[0]


AT_IMPORT = {
    "an endless loop": ("while True: pass", "loop that never ends.*line 1"),
    "a loop that catches errors": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "endless loop|loop that never ends",
    ),
    "a loop in C": (
        "import itertools; sum(itertools.repeat(0))",
        r"did not end within \d[\d.]* seconds of processor time",
    ),
    "sys.exit": ("import sys; sys.exit(0)", "sys.exit"),
    "os._exit": ("import os; os._exit(0)", "os._exit"),
    "a crash": ("import ctypes; ctypes.string_at(0)", "segmentation fault"),
    "recursion": ("def f(): return f()\nf()", "calls itself without end.*line 1"),
    "a fork bomb": ("import os\nwhile True: os.fork()", "start no other programs.*line 2"),
    "another program": ("import subprocess; subprocess.run(['true'])", "start no other programs"),
    "ending the parent": ("import os; os.kill(os.getppid(), 9)", "end no processes"),
    "input": ("input('name? ')", r"input\(\) has nothing to read"),
    "a missing module": ("import numpyy", "no module 'numpyy'"),
    "a missing exercise": ("import ex99_nothing", "no module 'ex99_nothing'"),
    "a syntax error": ("def f(:\n    pass", "ex01_lookup.py, line 1: Python cannot read"),
    "not UTF-8": (b"name = '\xff\xfe'\n", "not UTF-8 text"),
    "null bytes": (b"a = 1\x00\n", "ex01_lookup.py"),
    "100 GB of a tensor": ("import torch; torch.ones(25_000_000_000)", "more memory"),
    "100 GB of a list": ("x = [0] * 12_000_000_000", "more memory"),
    "a large file": (
        "import tempfile; tempfile.TemporaryFile().write(bytes(200 << 20))",
        "File too large",
    ),
    "writing to the library": (
        "import qkv; open(qkv.__file__, 'a').write('x')",
        "do not write to the course or to qkv",
    ),
    "deleting another exercise": (
        "import os; os.remove('ex02_scores.py')",
        "do not change the course",
    ),
    "deleting a copy that reset keeps": (
        "import os; os.remove('ex02_scores.copy1.py')",
        "do not change the course",
    ),
    "writing into the folder": (
        "open('notes.txt', 'w').write('x')",
        "do not write to the course",
    ),
    "no inputs for the checks": (
        "import qkv.learn.run_checks as c\nc.SIZES = ()",
        "replaces qkv.learn.run_checks.SIZES",
    ),
    "a tolerance of its own": (
        "from qkv.learn.expectations import expect_equal\n"
        "expect_equal.__kwdefaults__ = {'tolerance': 1e9}",
        "replaces qkv.learn.expectations.expect_equal",
    ),
    "replacing torch": (
        "import torch\ntorch.softmax = lambda *a, **b: a[0]",
        "replaces torch.softmax",
    ),
    "replacing a method": (
        "import torch\ntorch.Tensor.softmax = lambda *a, **b: a[0]",
        "replaces torch.Tensor.softmax",
    ),
    "replacing the check": (
        "import qkv.learn.exercises.mechanism.lookup_checks as c\nc.expect_equal = print",
        "replaces qkv.learn.exercises.mechanism.lookup_checks.expect_equal",
    ),
    "replacing the body of a function": (
        "from qkv.learn import expectations\n"
        "function = expectations.expect_equal\n"
        "function.__code__ = function.__code__.replace(co_name='mine')",
        "replaces qkv.learn.expectations.expect_equal",
    ),
    "replacing the library": (
        "from qkv.nn.attention import lookup\nlookup.softmax = print",
        "replaces qkv.nn.attention.lookup.softmax",
    ),
    "replacing a built-in": ("import builtins\nbuiltins.sum = max", "replaces builtins.sum"),
    "another default type": (
        "import torch\ntorch.set_default_dtype(torch.float64)",
        "calls torch.set_default_dtype",
    ),
    "a NotImplementedError at import": ("raise NotImplementedError", "hole is run while"),
    "an error of its own": (
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "cannot be imported: E",
    ),
}


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_hostile_file_gets_a_sentence(
    lookup: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, says = AT_IMPORT[name]
    (tmp_path / "ex02_scores.py").write_text("keep = 1")
    monkeypatch.chdir(tmp_path)

    report = report_on(lookup, tmp_path, text, SHORT if "loop" in name else LIMITS)

    assert report.state == "failed"
    assert re.search(says, report.error), report.error
    assert "\n" not in report.error
    assert (tmp_path / "ex02_scores.py").read_text() == "keep = 1"


IN_A_FUNCTION = {
    "an endless loop": ("while True: pass", r"runs too long.*\(ex01_lookup.py, line \d+\)"),
    "sys.exit": ("raise SystemExit", "sys.exit"),
    "os._exit": ("import os; os._exit(0)", "os._exit"),
    "an exception": ("1 / 0", r"ZeroDivisionError: division by zero \(ex01_lookup.py, line"),
    "a lying tensor": ("return values[0].as_subclass(Liar)", "plain tensor, not a Liar"),
    "replacing torch late": ("torch.topk = None; return values[0]", "replaces torch.topk"),
}
LIAR = """
class Liar(Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True
"""


@pytest.mark.parametrize("name", IN_A_FUNCTION)
def test_a_hostile_function_gets_a_sentence(lookup: Exercise, tmp_path: Path, name: str) -> None:
    line, says = IN_A_FUNCTION[name]
    hostile = lookup.answer.replace("    return values[(keys @ query).argmax()]", f"    {line}")
    assert hostile != lookup.answer

    limits = CheckLimits(seconds=1.2, patience=600.0) if "loop" in name else LIMITS
    report = report_on(lookup, tmp_path, hostile + LIAR, limits)

    assert re.search(says, said(report)), said(report)
    if name in ("an endless loop", "sys.exit", "an exception"):  # the other checks still ran
        assert report.held == len(report.results) - 1


def test_the_check_that_was_running_is_named(lookup: Exercise, tmp_path: Path) -> None:
    hostile = lookup.answer.replace("    weights = ", "    import os; os._exit(3); weights = ")

    report = report_on(lookup, tmp_path, hostile)

    failed = [result.part for result in report.results if result.state == "failed"]
    assert set(failed) == {"softmax", "learns"}
    assert failed[0] == "softmax"
    assert report.held == len(report.results) - len(failed)
    assert "exit status 3" in said(report)
    assert report.results[-1].message == "not run: softmax ended the process"


def test_checks_that_do_not_start_are_not_the_students_fault(
    lookup: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_runner, "SECONDS_TO_START", 0.0)
    monkeypatch.setattr(ForkedChild, "be_child", lambda *_: signal.pause())
    report = report_on(lookup, tmp_path, lookup.answer)
    assert report.error.startswith("the checks did not start within 0 seconds; your file was not")

    monkeypatch.setattr(check_runner, "SECONDS_TO_START", 600.0)
    monkeypatch.setattr(ForkedChild, "be_child", lambda *_: os._exit(3))
    report = report_on(lookup, tmp_path, lookup.answer)
    assert report.error.startswith("the process of the checks ended with status 3; your file was")


def test_a_flood_of_output_is_discarded(lookup: Exercise, tmp_path: Path) -> None:
    """64 MB are printed; 64 KiB are kept, and the results come all the same."""
    flood = "import sys\nfor i in range(64): sys.stdout.write(('y' * 63 + '\\n') * (1 << 14))\n"

    report = report_on(lookup, tmp_path, flood + lookup.answer)

    assert report.state == "passed"
    assert len(report.printed) == LIMITS.output
    assert report.printed.startswith("y" * 63)


def test_endless_printing_is_ended(lookup: Exercise, tmp_path: Path) -> None:
    report = report_on(lookup, tmp_path, "while True: print('again')", SHORT)
    assert "never ends" in report.error
    assert len(report.printed) <= LIMITS.output


def test_code_that_waits_is_ended(lookup: Exercise, tmp_path: Path) -> None:
    """Both where Python can be interrupted and where it cannot."""
    waits = report_on(lookup, tmp_path, "import time; time.sleep(900)", CheckLimits(patience=6.0))
    assert "never ends" in waits.error

    text = "import ctypes; ctypes.CDLL(None).pause()\nwhile True: ctypes.CDLL(None).pause()"
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 30))\n" + text
    # The first alarm, after half of it, must not come before the signals are blocked.
    report = report_on(lookup, tmp_path, blocked, CheckLimits(patience=2.0))
    assert "longer than 2 seconds and was ended" in report.error


def test_memory_is_watched_where_it_cannot_be_limited(
    lookup: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_limits, "LIMITS_MEMORY", False)
    text = "large = [b'x' * (8 << 20) for _ in range(100)]\nimport time; time.sleep(900)"
    report = report_on(lookup, tmp_path, text, CheckLimits(memory=64 << 20, patience=600))
    assert "more memory than the checks allow" in report.error


def test_ctrl_c_ends_the_child(
    lookup: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = []

    def interrupted(job: object, child: object) -> None:
        children.append(child)
        monkeypatch.setattr(check_runner.time, "sleep", stop)
        return supervise(job, child)

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    supervise = check_runner.supervise
    monkeypatch.setattr(check_runner, "supervise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report_on(lookup, tmp_path, "while True: pass")

    with pytest.raises(ProcessLookupError):
        os.kill(children[0].pid, 0)


def test_printed_results_are_not_believed(
    lookup: Exercise,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither what is printed, nor what is written to the file, nor a signed line again."""
    forged = """
import glob, json, os, tempfile
for name in glob.glob(os.path.join(tempfile.gettempdir(), "qkv-check-*", "results")):
    first = json.loads(open(name).readline())
    message = json.dumps([1, "done", []])
    line = json.dumps({"proof": first["proof"], "message": message})
    print(line)
    with open(name, "a") as file: file.write(line + "\\n" + json.dumps(first) + "\\n")
os._exit(0)
"""
    # A folder in which no other program leaves results.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    report = report_on(lookup, tmp_path, forged)
    assert report.state == "failed"
    assert "os._exit" in report.error


def test_a_process_that_is_left_behind_is_ended(lookup: Exercise, tmp_path: Path) -> None:
    """libc's fork is not seen by the audit hook; the group is ended with the child."""
    pid_file = tmp_path.with_name("pid of the process")
    text = f"""
import ctypes, os, time
pid = ctypes.CDLL(None).fork()
if pid == 0:
    time.sleep(600)
open({str(pid_file)!r}, "w").write(str(pid))
"""
    report = report_on(lookup, tmp_path, text + lookup.answer)

    assert report.state == "passed"
    pid = int((pid_file).read_text())
    wait_for_the_end_of(pid)


def test_a_file_with_the_name_of_a_library_replaces_nothing(
    lookup: Exercise, tmp_path: Path
) -> None:
    for name in ("random.py", "torch.py", "qkv.py", "colorsys.py"):
        (tmp_path / name).write_text("raise RuntimeError('the wrong file')")

    report = report_on(lookup, tmp_path, "import torch, random, colorsys\n" + lookup.answer)
    assert report.state == "passed", report.error


def test_a_copy_of_the_checks_in_the_folder_is_not_used(lookup: Exercise, tmp_path: Path) -> None:
    (tmp_path / "lookup_checks.py").write_text("")
    (tmp_path / "qkv").mkdir()
    (tmp_path / "qkv" / "__init__.py").write_text("")
    assert report_on(lookup, tmp_path, lookup.template).state == "open"


def test_the_solution_leaves_no_trace(lookup: Exercise, tmp_path: Path) -> None:
    """Neither in the folder nor in this process."""
    before = {name: sys.modules[name] for name in sys.modules if name.startswith("ex01")}
    report = report_on(lookup, tmp_path, lookup.answer)
    assert report.state == "passed"
    assert [path.name for path in tmp_path.iterdir()] == ["ex01_lookup.py"]
    after = {name: sys.modules[name] for name in sys.modules if name.startswith("ex01")}
    assert after == before
    assert torch.get_default_dtype() == torch.float32


def test_the_second_of_two_fast_saves_counts(lookup: Exercise, tmp_path: Path) -> None:
    """Bytecode of a file with the same size and second would be found again."""
    wrong = lookup.answer.replace("argmax()", "argmin()")
    assert report_on(lookup, tmp_path, wrong).state == "failed"
    os.utime(tmp_path / "ex01_lookup.py", (1000, 1000))
    path = tmp_path / "ex01_lookup.py"
    path.write_text(lookup.answer)
    os.utime(path, (1000, 1000))
    assert CheckRunner(LIMITS).run(lookup, path).state == "passed"


def test_a_missing_file_says_how_to_get_it_back(lookup: Exercise, tmp_path: Path) -> None:
    report = CheckRunner(LIMITS).run(lookup, tmp_path / "ex01_lookup.py")
    assert report.error == "ex01_lookup.py does not exist; qkv learn reset lookup writes it"


def test_a_new_process_gives_the_same_report(lookup: Exercise, tmp_path: Path) -> None:
    """Where a process cannot be copied, one that waits is used; closing ends it."""
    text = "print('hello')\n" + lookup.answer.replace("argmax()", "argmin()")
    forked = report_on(lookup, tmp_path, text)
    runner = CheckRunner(LIMITS, fork=False)
    runner.warm()
    assert runner.spare is not None
    process = runner.spare.process
    try:
        spawned = runner.run(lookup, tmp_path / "ex01_lookup.py")
    finally:
        runner.close()

    assert spawned == forked
    assert spawned.printed == "hello\n"
    assert "least similar" in said(spawned)
    assert process.returncode is not None


def test_what_torch_wraps_itself_is_not_replaced(lookup: Exercise, tmp_path: Path) -> None:
    """torch's compiler, which optimizers import, wraps torch.manual_seed."""
    text = "import torch._dynamo\ntorch.optim.SGD([torch.ones(1, requires_grad=True)])\n"
    limits = CheckLimits(seconds=60, patience=600)
    report = report_on(lookup, tmp_path, text + lookup.answer, limits)
    assert report.state == "passed", report.error


def test_functions_that_are_only_used_are_not_replaced() -> None:
    known = KnownFunctions()
    torch.ones(2, requires_grad=True).softmax(0).sum().backward()
    assert known.replaced() == []
    assert known.changed_settings() == []


def test_paths_of_the_library_are_protected(tmp_path: Path) -> None:
    folders = (check_limits.PACKAGE, str(tmp_path / "course"))
    assert check_limits.is_below(f"{check_limits.PACKAGE}/learn/course.py", folders)
    assert check_limits.is_below(tmp_path / "course" / "notes.txt", folders)
    assert check_limits.is_below(os.fsencode(tmp_path / "course"), folders)
    assert not check_limits.is_below(tmp_path / "course-2" / "mine.txt", folders)
    assert not check_limits.is_below(3, folders)
