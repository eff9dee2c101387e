"""qkv translate: the translations of the library, in order; bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qkv import artifact
from qkv.generation.translate import translate_texts
from qkv.text import Tokenizer
from support.command_fixtures import Qkv
from support.shape_checks import unchecked

LINES = [
    "the cat sat on the mat.",
    "",
    "cats chase mice",
    "the mice ran. the cat chases the mouse.",
]


def expected(models: Path, *names: str, **options: Any) -> list[list[Any]]:
    """The translations of LINES by the library."""
    opened = [artifact.load(models / name) for name in names]
    tokenizer = opened[0].tokenizer
    assert isinstance(tokenizer, Tokenizer)
    ensemble: Any = [loaded.model for loaded in opened]
    with unchecked():
        by_row = dict(translate_texts(ensemble, tokenizer, LINES, **options))

    return [by_row[row] for row in range(len(LINES))]


def test_lines_keep_their_order(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    texts = "".join(f"{translations[0].text}\n" for translations in expected(models, "one"))
    assert qkv("translate", models / "one", typed="\n".join(LINES)) == (texts, "", 0)
    assert qkv("translate", models / "one", "--data", tmp_path / "lines.txt") == (texts, "", 0)
    assert qkv("translate", models / "one", "--data", "-", typed="\r\n".join(LINES)) == (
        texts,
        "",
        0,
    )
    printed = qkv(
        "translate",
        models / "one",
        "--data",
        tmp_path / "lines.txt",
        "--out",
        tmp_path / "out" / "o.txt",
    )

    assert printed == ("", "", 0)
    assert (tmp_path / "out" / "o.txt").read_text() == texts
    assert qkv("translate", models / "one", "--text", LINES[2]).out == texts.splitlines()[2] + "\n"


def test_several_models(qkv: Qkv, models: Path) -> None:
    printed = qkv("translate", models / "one", models / "other", typed="\n".join(LINES))
    assert printed.out == "".join(
        f"{translations[0].text}\n" for translations in expected(models, "one", "other")
    )


def test_n_best_with_scores(qkv: Qkv, models: Path) -> None:
    printed = qkv("translate", models / "one", "--n-best", 2, "--beams", 3, typed="\n".join(LINES))
    lines = []
    for number, translations in enumerate(expected(models, "one", beams=3, n_best=2), start=1):
        lines += [f"{number} ||| {best.text} ||| {best.score:.4f}" for best in translations]

    assert printed.out.splitlines() == lines


def test_alignment(qkv: Qkv, models: Path) -> None:
    printed = qkv(
        "translate",
        models / "one",
        "--text",
        "cats chase mice",
        "--alignment",
        "--json",
        "--length",
        5,
    )

    values = json.loads(printed.out)
    assert values["source"] == "cats chase mice"
    assert values["translations"][0]["text"].startswith(values["alignment"][0]["word"])
    for target in values["alignment"]:
        assert {source["word"] for source in target["looked_at"]} == {
            "cats",
            "chase",
            "mice",
            "(end)",
        }

        assert sum(source["weight"] for source in target["looked_at"]) == pytest.approx(1, abs=1e-3)

    printed = qkv(
        "translate", models / "one", "--text", "cats chase mice", "--alignment", "--length", 5
    )
    _, *aligned = printed.out.splitlines()
    assert len(aligned) == len(values["alignment"])
    assert all(line.startswith("    ") and line.endswith("%") for line in aligned)


def test_unknown_words_are_listed(qkv: Qkv, models: Path) -> None:
    printed = qkv("translate", models / "one", "--text", "cats chase xyzzy")
    assert printed.error == "qkv: the model does not know 'xyzzy'; it reads [unknown] there\n"
    assert printed.code == 0


@pytest.mark.parametrize(
    ("arguments", "typed", "message"),
    [
        (["one"], "", "standard input: there is nothing to translate"),
        ([], "cats", "models: expected the folder of a translator, or several"),
        (
            ["one", "--data", "nowhere.txt"],
            "",
            "nowhere.txt: cannot be read (No such file or directory)",
        ),
        (["one", "--beams", "0"], "cats", "beams: expected 1 to 1,024, not 0"),
        (["one", "--beams", "1000000"], "cats", "beams: expected 1 to 1,024, not 1,000,000"),
        (
            ["one", "--n-best", "9"],
            "cats",
            "n_best: expected 1 to 4, the number of beams",
        ),
        (["one", "--length", "0"], "cats", "length: expected 1 to 1,000,000 tokens, not 0"),
        (
            ["one", "--length", "100000000000"],
            "cats",
            "length: expected 1 to 1,000,000 tokens, not 100,000,000,000",
        ),
        (["one", "stranger"], "cats", "its tokenizer is not that of"),
        (
            ["one", "other", "--alignment"],
            "cats",
            "alignment: ",
        ),
        (
            ["one"],
            "cats\n" + "cats " * 50,
            "line 2: 51 tokens are more than the model's context of 40",
        ),
        (["gpt"], "cats", "use qkv generate"),
        (["bert"], "cats", "use qkv fill"),
        (["one", "--text", " "], "", "text: there is nothing to translate"),
        (
            ["one", "--text", "a", "--data", "b"],
            "",
            "text: files are given as well",
        ),
    ],
)
def test_bad_input(
    qkv: Qkv, models: Path, arguments: list[str], typed: str, message: str, tmp_path: Path
) -> None:
    names = [models / name if (models / name).exists() else name for name in arguments]
    printed = qkv("translate", *names, "--out", tmp_path / "out.txt", typed=typed)
    assert printed.refused
    assert message in printed.error
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


def test_a_file_is_never_written_over_itself(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    source = tmp_path / "input.en"
    source.write_text("cats\n")
    printed = qkv("translate", models / "one", "--data", source, "--out", source)
    assert (printed.refused, source.read_text()) == (True, "cats\n")
    assert "is the file to be translated" in printed.error
    printed = qkv("translate", models / "one", "--data", source, "--out", tmp_path)
    assert "out: expected the name of a file" in printed.error
