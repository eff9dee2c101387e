"""Every code block of the README and of the site runs, or is a command with flags that exist."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from qkv.command_line.listing import COMMANDS
from support.document_pages import ROOT, blocks, languages, page_paths, read_page

SEPARATE = {
    Path("docs/extending.md"),  # test_extending
    Path("docs/serve/index.md"),  # test_serve_page
    Path("docs/lectures.md"),  # test_lectures
    Path("ARCHITECTURE.md"),  # a signature
}
"""Pages whose Python is run by tests of their own."""
PAGES = [path for path in page_paths() if path not in SEPARATE]
TRAIN = Path("docs/train/index.md")
WITH_PYTHON = [path for path in PAGES if path != TRAIN and blocks(read_page(path), "python")]
FLAGS: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "src/qkv/commands/completion.json").read_text(encoding="utf-8")
)
KNOWN = {
    "python",
    "sh",
    "bash",
    "yaml",
    "json",
    "toml",
    "text",
    "library",
    "experiment",
    "exercise",
    "picture",
    "",
}


def run_page(path: Path) -> dict[str, Any]:
    """Run the Python of a page from top to bottom; return its names."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(read_page(path), "python"):
        exec(compile(block, str(path), "exec"), names)

    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all pages run, with the run `runs/mine` of the page Train."""
    made = tmp_path_factory.mktemp("pages")
    with contextlib.chdir(made):
        run_page(TRAIN)

    return made


def check_readme(names: dict[str, Any]) -> None:
    assert names["weights"].triu(1).sum() == 0
    assert names["observed"].attention[0].layers[0].shape[0] == 2


def check_finetune(names: dict[str, Any]) -> None:
    assert [answer.label for answer in names["answers"]] == ["brave", "afraid"]


def check_models(names: dict[str, Any]) -> None:
    torch.testing.assert_close(names["last"], names["logits"][:, 19:])
    written = torch.cat(names["tokens"], dim=1)
    assert (written == names["target"]).float().mean() > 0.99
    assert names["grouped"].config.kv_heads == 2


def check_weights(names: dict[str, Any]) -> None:
    ids = torch.randint(1000, (2, 20))
    assert torch.equal(names["same"](ids), names["gpt"](ids))
    theirs = AutoTokenizer.from_pretrained("mine-for-transformers")
    ours = names["its_tokenizer"].encode("cats fear mice")
    assert theirs("cats fear mice")["input_ids"] == ours != []


def check_look(names: dict[str, Any]) -> None:
    assert names["observed"].attention[0].layers[0].shape[0] == 2
    assert Path("look.html").is_file()


def check_hooks(names: dict[str, Any]) -> None:
    assert names["captured"]["stack.blocks.0.attention.weights"].shape == (2, 4, 20, 20)
    assert names["alignment"].shape == (64, 1, 6, 6)


CHECKS = {
    "README.md": check_readme,
    "docs/train/finetune.md": check_finetune,
    "docs/train/models.md": check_models,
    "docs/train/weights.md": check_weights,
    "docs/look/index.md": check_look,
    "docs/look/hooks.md": check_hooks,
}


@pytest.mark.parametrize("path", WITH_PYTHON, ids=str)
def test_the_python_of_a_page_runs(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if path == Path("README.md"):
        monkeypatch.chdir(Path(tempfile.mkdtemp(dir=folder)))  # it trains the same run

    names = run_page(path)
    check = CHECKS.get(path.as_posix())
    if check is not None:
        check(names)


def test_pages_with_checks_have_python() -> None:
    assert set(CHECKS) <= {path.as_posix() for path in WITH_PYTHON}
    assert len(WITH_PYTHON) > 20


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_blocks_say_their_language(path: Path) -> None:
    if path.parts[0] == "docs" or path.name == "README.md":
        assert languages(read_page(path)) <= KNOWN


def command_lines() -> list[Any]:
    """Each line of a shell block that calls qkv, with its page."""
    found = []
    for path in page_paths():
        text = read_page(path)
        for block in [*blocks(text, "sh"), *blocks(text, "bash")]:
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.findall(r"(?:^|\| |&& )((?:\w+=\S+ )*qkv .*)", line):
                    found.append(pytest.param(command, id=f"{path}: {command[:60]}"))

    return found


def flag_problems(command: str) -> list[str]:
    """What is wrong with the command and the flags of a line."""
    words = shlex.split(command, comments=True)
    words = words[words.index("qkv") + 1 :]
    for end in ("|", ">", "&&"):
        if end in words:
            words = words[: words.index(end)]

    if not words:
        return ["no command"]
    if words[0] not in COMMANDS:
        return [f"there is no command {words[0]}"]

    key = " ".join(words[:2]) if " ".join(words[:2]) in FLAGS else words[0]
    if words[0] == "lab":
        key = "lab all"

    known = FLAGS.get(key, {})
    problems = []
    for index, word in enumerate(words):
        if not re.match(r"--?[a-zA-Z]", word):
            continue
        if word not in known and word not in ("--help",):
            problems.append(f"{key} has no flag {word}")
        elif known.get(word, {}).get("kind") == "choice":
            if words[index + 1] not in map(str, known[word]["choices"]):
                problems.append(f"{word} does not take {words[index + 1]}")
        elif known.get(word, {}).get("kind") == "number":
            float(words[index + 1])

    return problems


@pytest.mark.parametrize("command", command_lines())
def test_the_flags_of_a_command_exist(command: str) -> None:
    assert flag_problems(command) == []


def test_a_wrong_flag_is_found() -> None:
    assert flag_problems("qkv generate runs/mine --temprature 1") == [
        "generate has no flag --temprature"
    ]
    assert flag_problems("qkv generat runs/mine") == ["there is no command generat"]
    assert flag_problems("A=b qkv look x --help | head") == []
