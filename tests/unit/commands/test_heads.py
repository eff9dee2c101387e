"""qkv heads: patterns, ablation and syntax, as tables, figures and JSON; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qkv import artifact
from qkv.commands.heads import TEXTS, passages
from qkv.insight.heads.head_ablation import ablate
from qkv.insight.heads.head_patterns import head_patterns
from qkv.insight.heads.text_batches import batches_from_pairs, batches_from_texts
from qkv.models import BERT, HeadConfig, TaskModel, TaskModelConfig
from qkv.text import Tokenizer
from support.command_fixtures import Qkv
from support.small_training import small_job

CONLLU = """1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_
2\tcat\t_\t_\t_\t_\t3\tnsubj\t_\t_
3\tsat\t_\t_\t_\t_\t0\troot\t_\t_

"""


def test_attention_patterns(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    short = [text[:40] for text in TEXTS[:2]]
    (expected,) = head_patterns(model, tokenizer, short)
    printed = qkv("heads", models / "gpt", *short)
    assert printed.code == 0, printed.error
    for pattern in ("previous", "first", "self", "same", "induction"):
        (line,) = (line for line in printed.out.splitlines() if f" {pattern} " in line)
        layer, head, score = expected.strongest(pattern, 1)[0]
        assert f"{layer}.{head}\u00a0{score:.2f}" in line

    plot = tmp_path / "patterns.svg"
    printed = qkv("heads", models / "gpt", *short, "--json", "--plot", plot)
    (patterns,) = json.loads(printed.out)["patterns"]
    assert patterns["attention"] == "self"
    for name, scores in expected.scores.items():
        torch.testing.assert_close(torch.tensor(patterns[name]["scores"]), scores)
        assert patterns[name]["uniform"] == expected.uniform[name]

    assert "What heads do" in plot.read_text()


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_ablation(qkv: Qkv, models: Path, tmp_path: Path, name: str) -> None:
    model, tokenizer = artifact.load(models / name)
    assert tokenizer is not None
    texts = ["the cat sat", "the dog ran on the mat"]
    expected = ablate(model, batches_from_texts(model, tokenizer, texts), "mean")
    plot = tmp_path / "heads.svg"
    printed = qkv("heads", models / name, *texts, "--ablate", "mean", "--plot", plot)
    assert printed.code == 0, printed.error
    best = expected.ranked()[0]
    assert f"{best.layer}.{best.head}" in printed.out
    assert f"{best.change:+.4f}" in printed.out
    assert "Which heads matter" in plot.read_text()
    printed = qkv("heads", models / name, *texts, "--ablate", "mean", "--json")
    values = json.loads(printed.out)["ablation"]
    assert values["unchanged"] == pytest.approx(expected.unchanged)
    assert values["heads"][0]["change"] == pytest.approx(best.change, abs=1e-6)
    assert values["heads"][0]["low"] is None  # two texts are too few for an interval


def test_a_translator(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the cat sat\tthe dog ran\nthe dog\tthe cat\n")
    model, tokenizer = artifact.load(models / "one")
    assert tokenizer is not None
    expected = ablate(
        model,
        batches_from_pairs(tokenizer, [("the cat sat", "the dog ran"), ("the dog", "the cat")]),
    )
    printed = qkv("heads", models / "one", "--data", pairs, "--ablate", "zero", "--json")
    heads = json.loads(printed.out)["ablation"]["heads"]
    for head, right in zip(heads, expected.ranked(), strict=True):
        assert (head["kind"], head["layer"], head["head"]) == (right.kind, right.layer, right.head)
        assert head["change"] == pytest.approx(right.change, abs=1e-6)

    printed = qkv("heads", models / "one", "--data", pairs, "--plot", tmp_path / "patterns.png")
    assert "encoder" in printed.out
    assert (tmp_path / "patterns.png").read_bytes()[:4] == b"\x89PNG"


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
    assert printed.error.startswith("qkv: data: the loss of a fine-tuned model needs label")
    values = json.loads(
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

    assert (values["ablation"]["measure"], values["ablation"]["texts"]) == ("loss", 2)


def test_syntax(qkv: Qkv, models: Path, tmp_path: Path) -> None:
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
    values = json.loads(
        qkv("heads", models / "bert", "--syntax", file, "--json", "--same", "--limit", 30).out
    )["syntax"]
    assert (values["sentences"], values["halves"]) == (30, False)
    words = {relation["name"]: relation["words"] for relation in values["relations"]}
    assert words == {"all": 60, "det": 30, "nsubj": 30}
    assert values["relations"][1]["baseline"] == 1  # it is always the next word


@pytest.mark.parametrize("flags", [[], ["--ablate", "zero"]])
def test_unknown_words_are_noted(qkv: Qkv, models: Path, tmp_path: Path, flags: list[str]) -> None:
    note = "qkv: the model does not know 'xylophones'; it reads [unknown] there\n"
    assert qkv("heads", models / "bert", "the cat sat", *flags).error == ""
    assert qkv("heads", models / "bert", "the xylophones sat", *flags).error == note
    default_texts = qkv("heads", models / "bert", *flags)
    assert "the model does not know" in default_texts.error
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the cat sat\tthe xylophones ran\n")
    assert qkv("heads", models / "one", "--data", pairs, *flags).error == note


def test_a_translator_translates_sources(qkv: Qkv, models: Path) -> None:
    printed = qkv("heads", models / "one", "the cat sat")
    assert (printed.code, printed.error) == (0, "")
    assert "decoder" in printed.out


def test_the_lines_of_a_file_are_read_together(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("a line of twenty-five.\n\n" * 60)
    texts = list(passages((str(file),)))
    assert len(texts) == 3
    assert 600 <= len(texts[0]) + 2 < 640
    assert all(texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt", "--limit", "0"], "limit: expected 1 or more, not 0"),
        (["gpt", "a text", "--data", "book.txt"], "text: files are given as well"),
        (["gpt", "--same"], "same: it is about syntax"),
        (["gpt", "--plot", "heads.doc"], "plot: expected the name of a .png, .svg or .pdf file"),
        (["one"], "data: a translator reads pairs"),
        (["one", "--ablate", "zero"], "data: a translator reads pairs"),
        (["gpt", "--syntax", "nowhere.conllu"], "nowhere.conllu"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], message: str) -> None:
    printed = qkv("heads", models / arguments[0], *arguments[1:])
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""


def test_the_history_of_a_run(qkv: Qkv, tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, tmp_path / "run", keep="all", checkpoint_every=6)
    job.with_run(validate_every=12).start()
    plot = tmp_path / "history.svg"
    printed = qkv("heads", tmp_path / "run", "cats chase mice", "--checkpoints", "--plot", plot)
    assert printed.code == 0, printed.error
    assert "step 6" in printed.out
    assert "induction" in printed.out
    drawn = plot.read_text()
    assert "How heads came to be" in drawn
    assert "their repetition" in drawn
    assert "loss of the run" in drawn

    printed = qkv("heads", tmp_path / "run", "cats chase mice", "--checkpoints", "--json")
    (history,) = json.loads(printed.out)["history"]
    assert history["steps"] == [0, 6, 12]
    model, tokenizer = artifact.load(f"{tmp_path / 'run'}@6")
    assert tokenizer is not None
    (expected,) = head_patterns(model, tokenizer, ["cats chase mice"])
    torch.testing.assert_close(
        torch.tensor(history["scores"]["previous"][1]), expected.scores["previous"]
    )


def test_a_history_needs_checkpoints(qkv: Qkv, models: Path) -> None:
    printed = qkv("heads", models / "gpt", "--checkpoints")
    assert printed.refused
    assert "checkpoints: " in printed.error
    assert "--keep all" in printed.error
    printed = qkv("heads", models / "gpt", "--checkpoints", "--ablate", "mean")
    assert "leave --ablate and --syntax out" in printed.error
