"""What each extra installs, and what works and what is said without it, in child processes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from qkv.imports import PACKAGES, install_command, require
from support.small_evaluation import small_folder

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ATTEND_ALONE = {"torch", "numpy", "safetensors", "jaxtyping"}
CORE = ATTEND_ALONE | {"tokenizers", "jinja2", "tyro", "rich"}
FASTER_IF_INSTALLED = {"httptools", "uvloop"}
# Packages that others bring along: starlette, pydantic and h11 come with fastapi and uvicorn.
BROUGHT_ALONG = {
    "starlette": "fastapi",
    "pydantic": "fastapi",
    "h11": "uvicorn",
    "triton": "torch",
    "typing_extensions": "torch",
}

CHILD = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
{program}
"""

COMMANDS = """
import contextlib, io
from qkv.cli import main

results = []
for arguments in {commands!r}:
    sys.argv = ["qkv", *arguments]
    status, printed, errors = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as stopped:
            status = stopped.code or 0
    results.append((status, printed.getvalue(), errors.getvalue()))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("model") / "gpt", context=64)


def child(program: str, blocked: set[str]) -> str:
    """The output of a program in a process that cannot import some packages."""
    code = CHILD.format(blocked=sorted(blocked), program=program)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def commands_without(blocked: set[str], *commands: list[str]) -> list[tuple[int, str, str]]:
    """Status, output and errors of commands in a process that cannot import some packages."""
    return json.loads(child(COMMANDS.format(commands=list(commands)), blocked).splitlines()[-1])


def requirements(extra: str | None) -> set[str]:
    """The packages that an extra installs, without core; of None the core packages."""
    entries = PROJECT["dependencies"]
    if extra is not None:
        entries = PROJECT["optional-dependencies"][extra]

    names: set[str] = set()
    for entry in entries:
        nested = re.fullmatch(r"qkv\[(.*)\]", entry)
        if nested is None:
            names.add(re.match(r"[\w-]+", entry)[0].replace("-", "_"))  # type: ignore[index]
            continue

        for other in nested[1].split(","):
            names |= requirements(other)

    return names


# The tables


def test_core_is_what_nn_models_text_and_the_command_line_need() -> None:
    assert requirements(None) == CORE


def test_every_optional_package_is_in_the_extra_that_its_error_names() -> None:
    for package, (extra, _) in PACKAGES.items():
        assert package in requirements(extra)

    extras = set(PROJECT["optional-dependencies"]) - {"bench", "docs", "test"}
    assert set().union(*map(requirements, extras)) == set(PACKAGES) | FASTER_IF_INSTALLED
    for extra in ("train", "insight", "serve"):
        assert requirements(extra) <= requirements("all")


def test_every_import_of_the_package_is_installed_by_core_or_an_extra() -> None:
    known = CORE | set(PACKAGES) | set(BROUGHT_ALONG) | set(sys.stdlib_module_names) | {"qkv"}
    unknown = {}
    for path in sorted((ROOT / "src" / "qkv").rglob("*.py")):
        for package in imported_packages(path) - known:
            unknown[package] = str(path)

    assert unknown == {}


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "qkv")

    return {name.partition(".")[0] for name in names}


def test_importing_torch_runs_no_code_of_qkv() -> None:
    """The package has no entry points but its command; PyTorch loads those of torch.backends."""
    assert "entry-points" not in PROJECT
    assert PROJECT["scripts"] == {"qkv": "qkv.cli:main"}


# Without the extras


def test_attention_needs_four_packages() -> None:
    program = """
import qkv, qkv.nn, qkv.nn.attention, qkv.models, torch
ones = torch.ones(1, 1, 2, 4)
output, weights = qkv.attend(ones, ones, ones)
model = qkv.models.GPT(qkv.models.GPTConfig(vocabulary=8, width=8, heads=2, depth=1))
print(tuple(output.shape), tuple(model(torch.zeros(1, 3, dtype=torch.long)).shape))
"""
    printed = child(program, set(PACKAGES) | CORE - ATTEND_ALONE)
    assert printed == "(1, 1, 2, 4) (1, 3, 8)\n"


def test_core_loads_generates_and_saves_without_the_command_line(
    folder: Path, tmp_path: Path
) -> None:
    program = f"""
import qkv, qkv.text
model, tokenizer = qkv.load({str(folder)!r})
qkv.save(model, {str(tmp_path / "copy")!r}, tokenizer=tokenizer)
print(len(qkv.generate(model, tokenizer, "the cat", length=4, temperature=0.0)) > 0)
"""
    assert child(program, set(PACKAGES) | {"rich", "tyro"}) == "True\n"


def test_the_core_command_line_works_without_extras(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("the cat sat on the mat. " * 200)
    training = f"train gpt --data {tmp_path / 'my.txt'} --out {tmp_path / 'run'} --steps 2"
    results = commands_without(
        set(PACKAGES),
        ["--help"],
        ["serve", "--help"],
        ["look", "--help"],
        ["evaluate", "--help"],
        ["look", str(folder), "the cat"],
        ["generate", str(folder), "the cat", "--length", "3"],
        [*training.split(), "--width", "16", "--heads", "2", "--depth", "1", "--context", "16"],
    )
    for status, _, errors in results:
        assert status == 0, errors


def test_the_server_needs_no_other_extra() -> None:
    others = set(PACKAGES) - requirements("serve")
    assert child("import qkv; print(qkv.serve.__name__)", others) == "serve\n"


def test_the_list_of_commands_needs_nothing() -> None:
    ((status, printed, _),) = commands_without(set(PACKAGES) | CORE, ["--help"])
    assert status == 0
    assert "qkv COMMAND" in printed


def test_commands_name_the_extra_that_is_missing(folder: Path, tmp_path: Path) -> None:
    """One sentence and status 1, without a traceback."""
    model = str(folder)
    parquet = tmp_path / "some.parquet"
    parquet.write_bytes(b"PAR1")
    gguf = tmp_path / "some.gguf"
    gguf.write_bytes(b"GGUF")
    cases = {
        "matplotlib": ["look", model, "the cat", "--out", str(tmp_path / "a.png")],
        "fastapi": ["serve", model, "--port", "0"],
        "pyarrow": ["train", "gpt", "--data", str(parquet), "--out", str(tmp_path / "run")],
        "gguf": ["generate", str(gguf), "the cat"],
        "datasets": ["train", "gpt", "--data", "hf:some", "--out", str(tmp_path / "run")],
    }
    results = commands_without(set(PACKAGES), *cases.values())
    for package, (status, _, errors) in zip(cases, results, strict=True):
        assert status == 1, errors
        assert errors.startswith("qkv: ")
        assert errors.rstrip().endswith(install_command(package))
        assert errors.count("\n") == 1


NEEDED = {
    "qkv.serve": "fastapi",
    "import qkv.insight.render.figures.attention": "matplotlib",
    "import qkv.lab.matrices": "matplotlib",
    "import qkv.serving.routes.health": "fastapi",
    "qkv.evaluation.bleu(['a'], ['a'])": "sacrebleu",
    "import qkv.evaluation.lm_eval_harness": "lm_eval",
}
"""The package that a statement needs."""


@pytest.fixture(scope="module")
def import_errors() -> list[str]:
    """What each statement says without the extras, alone in a process with `torch` and `qkv`."""
    program = f"""
import os
import qkv, torch

for statement in {list(NEEDED)}:
    if os.fork() == 0:
        try:
            exec(statement)
        except ImportError as error:
            print(error.name, error, flush=True)
        os._exit(0)

    os.wait()
"""
    return child(program, set(PACKAGES)).splitlines()


@pytest.mark.parametrize("statement", list(NEEDED))
def test_python_names_the_extra_that_is_missing(statement: str, import_errors: list[str]) -> None:
    assert len(import_errors) == len(NEEDED)
    package = NEEDED[statement]
    printed = import_errors[list(NEEDED).index(statement)]
    assert printed.startswith(f"{package} ")
    assert printed.endswith(f"the package {package} is not installed: {install_command(package)}")


def test_a_broken_package_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("import absent_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        require("broken_package")
