"""Whole tasks on small models: scores counted by hand from the model's own logits, and the command
a person types.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import sacrebleu
import torch

import qkv
from qkv import cli
from qkv.evaluation.evaluate import EvaluationResult, Protocol, Subject, evaluate, wins
from qkv.evaluation.intervals import accuracy
from qkv.evaluation.likelihood import Likelihood
from qkv.evaluation.question import Question
from qkv.evaluation.task_file import Kind, read_task
from qkv.generation.text import complete
from qkv.models import BERT, GPT, RNN, BERTConfig, RNNConfig, Transformer, TransformerConfig
from qkv.text.tokenizer_training import train
from support.shape_checks import unchecked
from support.small_evaluation import small_folder, small_gpt, small_tokenizer


@pytest.fixture(scope="module")
def subject() -> Subject:
    tokenizer = small_tokenizer()
    return Subject("small", small_gpt(tokenizer.vocabulary).double(), tokenizer)


def table(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


def log_probability(subject: Subject, context: str, continuation: str) -> tuple[float, bool]:
    """By the definition: one text, one pass."""
    _, model, tokenizer = subject
    known, whole = tokenizer.encode(context), tokenizer.encode(context + continuation)
    begin = len(known)
    if not known:
        assert tokenizer.end is not None
        whole, begin = [tokenizer.end, *whole], 1
    with torch.no_grad():
        chances = model(torch.tensor([whole]))[0].log_softmax(-1)  # type: ignore[operator]
    places = range(begin, len(whole))
    total = sum(float(chances[place - 1, whole[place]]) for place in places)
    return total, all(int(chances[place - 1].argmax()) == whole[place] for place in places)


def test_last_words(subject: Subject, tmp_path: Path) -> None:
    texts = [
        "the cat sat on the mat",
        "a dog ran to the man",
        "the man sat down",
        "who sat on the cat",
    ]
    found = evaluate(
        read_task("lambada"),
        subject,
        table(tmp_path / "t.jsonl", [{"text": text} for text in texts]),
    )
    by_hand = [
        log_probability(subject, *cut)
        for cut in (("".join(t.rpartition(" ")[:1]), " " + t.split()[-1]) for t in texts)
    ]
    accuracy, perplexity = found.scores
    assert accuracy.value == sum(greedy for _, greedy in by_hand) / 4
    assert perplexity.value == pytest.approx(math.exp(-sum(total for total, _ in by_hand) / 4))
    assert found.rows == 4
    assert found.said == ()


def test_choices_with_and_without_their_length(subject: Subject, tmp_path: Path) -> None:
    rows = [
        {
            "context": "the cat",
            "choices": ["sat on the mat.", "ran", "a dog and a man", "who?"],
            "answer": place % 4,
        }
        for place in range(8)
    ]
    found = evaluate(read_task("hellaswag"), subject, table(tmp_path / "t.jsonl", rows))
    plain = [log_probability(subject, "the cat", " " + choice)[0] for choice in rows[0]["choices"]]
    by_length = [
        total / len(choice) for total, choice in zip(plain, rows[0]["choices"], strict=True)
    ]
    assert [score.name for score in found.scores] == ["accuracy", "accuracy by characters"]
    assert [score.value for score in found.scores] == [0.25, 0.25]
    assert found.chance == 0.25
    for likeliest, score in ((plain, 0), (by_length, 1)):
        best = likeliest.index(max(likeliest))
        only = evaluate(
            read_task("hellaswag"),
            subject,
            table(tmp_path / "u.jsonl", [{**rows[0], "answer": best}]),
        )
        assert only.scores[score].value == 1.0


def test_lengths_are_of_characters_bytes_or_tokens() -> None:
    """The second choice has a worse sum, and is better by each length that it has more of."""
    asked = Question("", ("ab", "äbcd"), 1, ("ab", "äbcd"))
    answers = [Likelihood((-1.0, -1.0), False), Likelihood((-1.0, -1.0, -0.5), False)]
    assert not wins(asked, answers, "none")
    assert wins(asked, answers, "characters")
    assert wins(asked, answers, "bytes")
    assert wins(asked, answers, "tokens")
    assert not wins(
        Question("", ("a", "b"), 0, ("a", "b")), [answers[0], answers[0]], "none"
    )  # a tie is no win


def test_minimal_pairs_and_a_metric_chosen(subject: Subject) -> None:
    found = evaluate(read_task("agreement"), subject, [])
    rows = [
        json.loads(line)
        for line in Path(read_task("agreement").beside("agreement.jsonl")).read_text().splitlines()
    ]
    right = [
        log_probability(subject, "", row["sentence_good"])
        > log_probability(subject, "", row["sentence_bad"])
        for row in rows
    ]
    assert found.rows == len(rows) == 20
    assert found.scores[0].value == sum(right) / 20


def test_shots_change_the_context_and_limit_the_rows(subject: Subject) -> None:
    task = read_task("last-word")
    subject = Subject(
        "small", small_gpt(subject.tokenizer.vocabulary, context=1024), subject.tokenizer
    )
    zero, two, again, other = (
        evaluate(task, subject, [], Protocol(shots=shots, seed=seed, limit=5))
        for shots, seed in ((0, 0), (2, 0), (2, 0), (2, 1))
    )
    assert {each.rows for each in (zero, two)} == {5}
    assert two.scores == again.scores
    assert len({each.scores[1].value for each in (zero, two, other)}) == 3
    assert two.said == ("examples chosen by seed 0",)


def test_contexts_that_were_cut_are_counted_aloud(subject: Subject) -> None:
    found = evaluate(read_task("last-word"), subject, [], Protocol(shots=2, limit=5))
    assert "5 of 5 contexts were cut from the left to 48 tokens" in found.said


def test_perplexity_says_its_window_stride_and_counts(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("the cat sat on the mat.\n" * 20)
    found = evaluate(
        read_task("perplexity"), subject, [str(tmp_path / "my.txt")], Protocol(window=32, stride=8)
    )
    tokens = len(subject.tokenizer.encode("the cat sat on the mat.\n" * 20))
    assert found.said == (
        "rows: windows of 32 tokens, stride 8",
        f"{tokens:,} tokens, {tokens:,} scored",
    )
    assert [score.name for score in found.scores] == [
        "perplexity",
        "bits per character",
        "bits per byte",
    ]
    assert found.facts["bytes"] == 24 * 20


SENTENCES = [
    "the cat sat",
    "a dog ran to the man",
    "the man sat down",
    "who sat on the cat?",
    "a mat",
    "and the man",
]
ROWS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "last word": ("lambada", "", [{"text": text} for text in SENTENCES]),
    "choice": (
        "hellaswag",
        "",
        [{"context": text, "choices": ["a", "b"], "answer": 0} for text in SENTENCES],
    ),
    "cloze": (
        "cbt",
        "",
        [{"context": "a", "question": "XXXXX ran", "candidates": ["a", "b"], "answer": "a"}] * 6,
    ),
    "minimal pair": (
        "blimp",
        "",
        [{"sentence_good": text, "sentence_bad": text[::-1]} for text in SENTENCES],
    ),
    "classification": ("sst-2", "", [{"sentence": text, "label": 0} for text in SENTENCES]),
    "line": ("french", "", [{"english": text, "french": "chat"} for text in SENTENCES]),
    "translation": (
        "translation",
        "translator",
        [{"source": text, "target": "a"} for text in SENTENCES],
    ),
    "perplexity": ("perplexity", "", [{"text": text} for text in SENTENCES]),
    "masked words": ("masked-words", "encoder", [{"text": " ".join(SENTENCES)}] * 3),
}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_limit_asks_so_many_questions_of_every_kind(
    kind: str,
    subject: Subject,
    translator: Subject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    name, who, rows = ROWS[kind]
    encoder = BERT(
        BERTConfig(vocabulary=subject.tokenizer.vocabulary, context=8, width=8, depth=1, heads=1)
    )
    asked = {
        "": subject,
        "translator": translator,
        "encoder": Subject("bert", encoder, small_tokenizer()),
    }[who]
    task, data = read_task(name), table(tmp_path / "t.jsonl", rows)
    assert task.kind == kind
    whole, some = (
        evaluate(task, asked, data, Protocol(beams=1, limit=limit)) for limit in (None, 3)
    )
    assert (some.rows, whole.rows >= 6) == (3, True)


def test_limit_is_kept_in_a_plain_text_too(
    subject: Subject, translator: Subject, tmp_path: Path
) -> None:
    """A file of text is one document, and a question is a window of it; a translator's is a pair."""
    (tmp_path / "my.txt").write_text("the cat sat on the mat.\n" * 200)
    found = evaluate(
        read_task("perplexity"),
        subject,
        [str(tmp_path / "my.txt")],
        Protocol(limit=5, window=16, stride=8),
    )
    assert (found.rows, found.facts["scored"], found.facts["documents"]) == (5, 16 + 4 * 8, 1)
    (tmp_path / "a.tsv").write_text("the cat\ta man\n" * 9)
    assert (
        evaluate(
            read_task("perplexity"), translator, [str(tmp_path / "a.tsv")], Protocol(limit=5)
        ).rows
        == 5
    )


def test_a_line_is_right_if_it_says_an_accepted_answer(subject: Subject, tmp_path: Path) -> None:
    """What the model says is taken as one of the accepted answers, in other letters; then as a part
    of it.
    """
    task = replace(read_task("french"), data="", examples="")
    words = [
        {"english": english, "french": "nothing it would say"}
        for english in ("cat", "dog", "man", "mat")
    ]
    wrong = evaluate(task, subject, table(tmp_path / "a.jsonl", words))
    assert wrong.scores[0].value == 0
    lines = wrong.facts["lines"]
    assert len(lines) == 4
    assert all(line and line == line.strip() and "\n" not in line for line in lines)
    prompts = [f"Translate English to French:\n{row['english']} =>" for row in words]
    how: dict[str, Any] = {"length": 128, "stop": ["\n"], "temperature": 0.0}
    assert isinstance(subject.model, GPT)
    assert lines == [
        text.strip() for text in complete(subject.model, subject.tokenizer, prompts, **how)
    ]
    accepted = [
        ["no", f" {lines[0].swapcase()} "],
        [lines[1]],
        [lines[2] + "x"],
        [lines[3][:-1] or "no"],
    ]
    rows = [{**row, "french": french} for row, french in zip(words, accepted, strict=True)]
    found = evaluate(task, subject, table(tmp_path / "b.jsonl", rows))
    assert found.scores[0] == accuracy([True, True, False, False])
    assert found.chance is None


def test_french_asks_five_words_after_sixteen_others(subject: Subject) -> None:
    task = read_task("french")
    asked, pool = ([json.loads(line) for line in Path(task.beside(name)).read_text().splitlines()]
                   for name in (task.data, task.examples))  # fmt: skip
    assert len(asked) == 5
    assert len({row["english"] for row in pool}) == len(pool) >= 16
    assert not {row["english"] for row in asked} & {row["english"] for row in pool}
    wide = Subject(
        "small", small_gpt(subject.tokenizer.vocabulary, context=1024), subject.tokenizer
    )
    found = evaluate(task, wide, [], Protocol(shots=16))
    assert (found.rows, found.shots) == (5, 16)


def assert_sacrebleu(found: EvaluationResult, references: list[str]) -> None:
    """The scores are those of what was said, by sacrebleu's own functions."""
    said = found.facts["hypotheses"]
    assert len(said) == len(references)
    values = {score.name: score.value for score in found.scores}
    assert values["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(said, [references]).score)
    assert values["chrF"] == pytest.approx(sacrebleu.corpus_chrf(said, [references]).score)
    assert values["chrF"] > 0  # some letters are right even by chance


@pytest.mark.parametrize("name", ["perplexity", "translation"])
def test_where_no_examples_go_they_are_not_claimed(
    translator: Subject, tmp_path: Path, name: str
) -> None:
    (tmp_path / "a.tsv").write_text("the cat\ta man\nthe dog\tthe mat\n")
    found = evaluate(
        read_task(name), translator, [str(tmp_path / "a.tsv")], Protocol(beams=1, shots=1)
    )
    assert found.shots == 0
    assert (
        found.said[-1]
        == "no examples: they stand before questions, not before texts to predict or to translate"
    )


def test_unknown_words_are_told(tmp_path: Path) -> None:
    tokenizer = train("words", ["the cat sat on the mat\n"] * 3, 20)
    subject = Subject("words", small_gpt(tokenizer.vocabulary), tokenizer)
    told = "are not in the vocabulary and are read as [unknown]"
    rows = table(tmp_path / "t.jsonl", [{"text": "the zebra sat"}, {"text": "the cat zebra"}])
    found = evaluate(read_task("lambada"), subject, rows)
    assert found.facts["unknown"] == 2
    assert f"2 of 6 tokens {told}" in found.said
    (tmp_path / "my.txt").write_text("the zebra sat")
    found = evaluate(read_task("perplexity"), subject, [str(tmp_path / "my.txt")])
    assert found.facts["unknown"] == 1
    assert found.said[-1] == f"1 of 3 tokens {told}"
    (tmp_path / "my.txt").write_text("the cat sat")
    assert told not in str(
        evaluate(read_task("perplexity"), subject, [str(tmp_path / "my.txt")]).said
    )


@pytest.fixture(scope="module")
def translator() -> Subject:
    tokenizer = small_tokenizer()
    torch.manual_seed(1)
    model = Transformer(
        TransformerConfig(vocabulary=tokenizer.vocabulary, context=64, width=16, depth=1, heads=2)
    )
    return Subject("translator", model.eval(), tokenizer)


def test_translations_are_scored_with_a_signature(translator: Subject, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("the cat\ta man\nthe dog\tthe mat\n")
    found = evaluate(
        read_task("translation"), translator, [str(tmp_path / "a.tsv")], Protocol(beams=2)
    )
    assert [score.name for score in found.scores] == ["BLEU", "chrF"]
    assert "version:" in found.said[1]
    assert_sacrebleu(found, ["a man", "the mat"])
    surprise = evaluate(read_task("perplexity"), translator, [str(tmp_path / "a.tsv")])
    assert surprise.said[0] == "targets given their sources"


def test_a_gpt_translates_by_a_prompt(subject: Subject, tmp_path: Path) -> None:
    data = table(
        tmp_path / "a.jsonl",
        [{"source": "the cat", "target": "a man"}, {"source": "a", "target": "b"}],
    )
    with pytest.raises(
        ValueError, match=r"^small: a GPT translates by a prompt; write a task file"
    ):
        evaluate(read_task("translation"), subject, data)
    task = tmp_path / "mine.toml"
    task.write_text(
        'name = "mine"\nkind = "translation"\ntemplate = "{source} ="\nanswer = "{target}"\nseparator = "\\n"'
    )
    model = Subject(
        "small", small_gpt(subject.tokenizer.vocabulary, context=256), subject.tokenizer
    )
    found = evaluate(read_task(task), model, data, Protocol(shots=1))
    assert all("\n" not in said for said in found.facts["hypotheses"])
    assert_sacrebleu(found, ["a man", "b"])


# What a person types


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["qkv", "evaluate", *arguments])
    with unchecked():
        cli.main()


def test_several_models_in_one_table_with_json_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = small_folder(tmp_path / "one"), small_folder(tmp_path / "two", position="rotary")
    out, plot = tmp_path / "results" / "scores.json", tmp_path / "scores.png"
    monkeypatch.setenv("COLUMNS", "200")
    typed(
        monkeypatch, str(one), str(two), "--task", "agreement", "--task", "last-word", "--shots", "0", "1",
        "--limit", "6", "--out", str(out), "--plot", str(plot),
    )  # fmt: skip
    said = capsys.readouterr().out
    for word in (
        "one",
        "two",
        "agreement",
        "last-word",
        "accuracy",
        "perplexity",
        "95% intervals",
        "examples chosen by seed 0",
    ):
        assert word in said
    found = json.loads(out.read_text())
    assert len(found["results"]) == 8
    assert {(each["model"], each["task"], each["shots"]) for each in found["results"]} == {
        (model, task, shots)
        for model in ("one", "two")
        for task in ("agreement", "last-word")
        for shots in (0, 1)
    }
    assert found["asked"]["limit"] == 6
    assert found["asked"]["shots"] == [0, 1]
    assert found["tasks"]["agreement"]["choices"] == ["{sentence_good}", "{sentence_bad}"]
    assert all(len(digest) == 64 for files in found["data"].values() for digest in files.values())
    assert (
        found["models"]["one"]["sha256 of weights"] != found["models"]["two"]["sha256 of weights"]
    )
    assert plot.read_bytes().startswith(b"\x89PNG")
    loaded = qkv.load(one)
    assert loaded.tokenizer is not None
    subject = Subject("one", loaded.model, loaded.tokenizer)
    again: EvaluationResult = evaluate(read_task("agreement"), subject, [], Protocol(limit=6))
    assert again.scores[0].value == next(
        each["scores"][0]["value"]
        for each in found["results"]
        if (each["model"], each["task"]) == ("one", "agreement")
    )


def test_translations_that_are_there_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "said.txt").write_text("the cat sat on the mat\na dog\n")
    (tmp_path / "true.txt").write_text("the cat sat on the mat\na dog\n")
    said, true = str(tmp_path / "said.txt"), str(tmp_path / "true.txt")
    typed(monkeypatch, "--task", "translation", "--hypotheses", said, "--data", true)
    assert "100.00" in capsys.readouterr().out
    (tmp_path / "true.txt").write_text("the cat sat on the mat\nnothing like it\n")
    typed(
        monkeypatch, "--task", "translation", "--hypotheses", said, "--data", true, "--limit", "1"
    )
    assert "100.00" in capsys.readouterr().out


def test_faults_are_one_sentence_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a person sees them: what the process says as it exits."""
    model = str(small_folder(tmp_path / "model"))
    rnn = RNN(RNNConfig(vocabulary=small_tokenizer().vocabulary, width=8))
    qkv.save(rnn, tmp_path / "rnn", tokenizer=small_tokenizer())
    (tmp_path / "broken.toml").write_text(
        'name = "x"\nkind = "choice"\ntemplate = "{text}"\nanswer = "{a}"\n'
    )
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text('{"txt": "a b"}\n')
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    at = lambda name: str(tmp_path / name)  # noqa: E731
    faults = [
        ([model], "task: expected one task or more, such as --task lambada"),
        (["--task", "agreement"], "models: expected one model or more, such as runs/mine or smollm2"),
        ([model, "--task", "lambda"], "task: there is no task 'lambda'; did you mean lambada?"),
        ([model, "--task", at("broken.toml")], f"{at('broken.toml')}: choices: this field is missing"),
        ([model, "--task", "lambada"], "data: the task lambada has none of its own; give --data FILE, a table with"),
        ([model, "--task", "lambada", "--data", at("empty.jsonl")], f"{at('empty.jsonl')}: the file has no rows"),
        ([model, "--task", "lambada", "--data", at("other.jsonl")], f"{at('other.jsonl')}:1: no column 'text'"),
        ([model, "--task", "lambada", "--data", at("none.jsonl")], f"{at('none.jsonl')}: no such file or folder"),
        ([model, "--task", "agreement", "--limit", "0"], "limit: expected 1 or more, not 0"),
        ([model, "--task", "agreement", "--shots", "-1"], "shots: expected 0 or more, not -1"),
        ([model, "--task", "agreement", "--shots", "20"], "shots: "),
        ([model, "--task", "perplexity", "--data", at("two.txt"), "--stride", "0"], "stride: expected 1 to 48"),
        ([model, "--task", "agreement", "--plot", at("a.gif")], "plot: expected the name of a .png"),
        ([model, "--task", "lambada", "--task", "blimp", "--data", "a", "b", "c"], "data: 3 files for 2 tasks"),
        ([at("rnn"), "--task", "agreement"], "rnn: agreement is asked of a GPT"),
        ([at("rnn"), "--task", "french"], "rnn: french is asked of a GPT"),
        (["--task", "translation", "--hypotheses", at("two.txt"), "--data", at("three.txt")], "references: expected 2"),
    ]  # fmt: skip
    for arguments, sentence in faults:
        with pytest.raises(SystemExit) as ended:
            typed(monkeypatch, *arguments, "--out", at("never.json"))
        assert ended.value.code in (1, 2), arguments
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"qkv: {sentence}"), arguments
    assert not Path(at("never.json")).exists()
