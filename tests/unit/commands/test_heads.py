from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qkv import artifact
from qkv.commands.heads import TEXTS, passages
from qkv.insight.heads.head_ablation import ablate
from qkv.insight.heads.head_patterns import head_patterns
from qkv.insight.heads.text_batches import batches_of, batches_of_pairs
from qkv.models import BERT, HeadConfig, TaskModel, TaskModelConfig
from qkv.text import Tokenizer
from support.command_fixtures import Qkv

CONLLU = """1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_
2\tcat\t_\t_\t_\t_\t3\tnsubj\t_\t_
3\tsat\t_\t_\t_\t_\t0\troot\t_\t_

"""


def test_what_heads_do(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    short = [text[:40] for text in TEXTS[:2]]
    (expected,) = head_patterns(model, tokenizer, short)
    printed = qkv("heads", models / "gpt", *short)
    assert printed.code == 0, printed.error
    for role in ("previous", "first", "self", "same", "induction"):
        (line,) = (line for line in printed.out.splitlines() if f" {role} " in line)
        layer, head, score = expected.strongest(role, 1)[0]
        assert f"{layer}.{head}\u00a0{score:.2f}" in line
    plot = tmp_path / "roles.svg"
    said = qkv("heads", models / "gpt", *short, "--json", "--plot", plot)
    (found,) = json.loads(said.out)["roles"]
    assert found["attention"] == "self"
    for role, scores in expected.scores.items():
        torch.testing.assert_close(torch.tensor(found[role]["scores"]), scores)
    assert "What heads do" in plot.read_text()


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_which_heads_matter(qkv: Qkv, models: Path, tmp_path: Path, name: str) -> None:
    model, tokenizer = artifact.load(models / name)
    assert tokenizer is not None
    texts = ["the cat sat", "the dog ran on the mat"]
    expected = ablate(model, batches_of(model, tokenizer, texts), "mean")
    plot = tmp_path / "heads.svg"
    printed = qkv("heads", models / name, *texts, "--ablate", "mean", "--plot", plot)
    assert printed.code == 0, printed.error
    best = expected.ranked()[0]
    assert f"{best.layer}.{best.head}" in printed.out
    assert f"{best.change:+.4f}" in printed.out
    assert "Which heads matter" in plot.read_text()
    said = json.loads(qkv("heads", models / name, *texts, "--ablate", "mean", "--json").out)[
        "ablation"
    ]
    assert said["unchanged"] == pytest.approx(expected.unchanged)
    assert said["heads"][0]["change"] == pytest.approx(best.change, abs=1e-6)
    assert said["heads"][0]["low"] is None  # of two texts there is no interval


def test_a_translator(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the cat sat\tthe dog ran\nthe dog\tthe cat\n")
    model, tokenizer = artifact.load(models / "one")
    assert tokenizer is not None
    expected = ablate(
        model, batches_of_pairs(tokenizer, [("the cat sat", "the dog ran"), ("the dog", "the cat")])
    )
    said = json.loads(
        qkv("heads", models / "one", "--data", pairs, "--ablate", "zero", "--json").out
    )["ablation"]
    assert {
        (each["kind"], each["layer"], each["head"]): each["change"] for each in said["heads"]
    } == pytest.approx(
        {(each.kind, each.layer, each.head): each.change for each in expected.ranked()}, abs=1e-6
    )
    printed = qkv("heads", models / "one", "--data", pairs, "--plot", tmp_path / "roles.png")
    assert "encoder" in printed.out
    assert (tmp_path / "roles.png").read_bytes()[:4] == b"\x89PNG"


def test_a_fine_tuned_model_and_a_bare_encoder(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    backbone, tokenizer = artifact.load(models / "bert")
    assert isinstance(backbone, BERT)
    assert isinstance(tokenizer, Tokenizer)
    mark = tokenizer.end or 0
    head = HeadConfig(
        task="classify",
        labels=("good", "bad"),
        pooling="first",
        delimiter=mark,
        extract=mark,
        padding=0,
    )
    artifact.save(
        TaskModel(TaskModelConfig(backbone=backbone.config, head=head)),
        tmp_path / "tuned",
        tokenizer=tokenizer,
    )
    (tmp_path / "dev.tsv").write_text("text\tlabel\nthe cat\tgood\nthe dog\tbad\n")
    printed = qkv("heads", tmp_path / "tuned", "--ablate", "zero")
    assert printed.error.startswith(
        "qkv: data: the loss of a fine-tuned model needs texts with labels"
    )
    said = json.loads(
        qkv(
            "heads",
            tmp_path / "tuned",
            "--ablate",
            "zero",
            "--data",
            tmp_path / "dev.tsv",
            "--json",
        ).out
    )
    assert (said["ablation"]["measure"], said["ablation"]["texts"]) == ("loss", 2)


def test_grammar(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "dev.conllu"
    file.write_text(CONLLU * 50)
    plot = tmp_path / "both.png"
    printed = qkv(
        "heads", models / "bert", "the cat", "--syntax", file, "--ablate", "zero", "--plot", plot
    )
    assert printed.code == 0, printed.error
    assert "nsubj" in printed.out
    assert (tmp_path / "both-syntax.png").exists()
    assert (tmp_path / "both-ablation.png").exists()
    said = json.loads(
        qkv("heads", models / "bert", "--syntax", file, "--json", "--same", "--limit", 30).out
    )["syntax"]
    assert (said["sentences"], said["halves"]) == (30, False)
    assert {each["name"]: each["words"] for each in said["relations"]} == {
        "all": 60,
        "det": 30,
        "nsubj": 30,
    }
    assert said["relations"][1]["baseline"] == 1  # the word after, always


@pytest.mark.parametrize("how", [[], ["--ablate", "zero"]])
def test_unknown_words_are_said(qkv: Qkv, models: Path, tmp_path: Path, how: list[str]) -> None:
    said = "qkv: the model does not know 'xylophones'; it reads [unknown] there\n"
    assert qkv("heads", models / "bert", "the cat sat", *how).error == ""
    assert qkv("heads", models / "bert", "the xylophones sat", *how).error == said
    assert (
        "the model does not know" in qkv("heads", models / "bert", *how).error
    )  # the sentences that it reads unasked
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the cat sat\tthe xylophones ran\n")
    assert qkv("heads", models / "one", "--data", pairs, *how).error == said


def test_a_translator_translates_sources(qkv: Qkv, models: Path) -> None:
    printed = qkv("heads", models / "one", "the cat sat")
    assert (printed.code, printed.error) == (0, "")
    assert "decoder" in printed.out


def test_the_lines_of_a_file_are_read_together(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("a line of twenty-five.\n\n" * 60)
    found = list(passages((str(file),)))
    assert len(found) == 3
    assert 600 <= len(found[0]) + 2 < 640
    assert all(found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt", "--limit", "0"], "limit: expected 1 or more, not 0"),
        (
            ["gpt", "a text", "--data", "book.txt"],
            "text: files are given, too; leave one of them out",
        ),
        (["gpt", "--same"], "same: it is about syntax; give a CoNLL-U file with --syntax"),
        (
            ["gpt", "--plot", "heads.doc"],
            "plot: expected the name of a .png, .svg or .pdf file, not heads.doc",
        ),
        (["one"], "data: a translator reads pairs; give some, such as --data turkish:test"),
        (
            ["one", "--ablate", "zero"],
            "data: a translator reads pairs; give some, such as --data turkish:test",
        ),
        (["gpt", "--syntax", "nowhere.conllu"], "nowhere.conllu"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, words: list[str], message: str) -> None:
    printed = qkv("heads", models / words[0], *words[1:])
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""
