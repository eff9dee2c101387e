"""Whole tasks on small models, against scores computed from the model's logits; the command."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

import qkv
from qkv import cli
from qkv.evaluation.evaluate import EvaluationResult, Protocol, Subject, evaluate
from qkv.evaluation.evaluators import prefers_gold
from qkv.evaluation.intervals import accuracy
from qkv.evaluation.likelihood import Likelihood
from qkv.evaluation.question import Question
from qkv.evaluation.task_file import KINDS, read_task
from qkv.generation.text import complete
from qkv.models import BERT, GPT, RNN, BERTConfig, RNNConfig, Transformer, TransformerConfig
from qkv.text.tokenizer_training import train
from support.shape_checks import unchecked
from support.small_evaluation import small_folder, small_gpt, small_tokenizer


@pytest.fixture(scope="module")
def subject() -> Subject:
    tokenizer = small_tokenizer()
    return Subject("small", small_gpt(tokenizer.vocabulary).double(), tokenizer)


def write_table(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


def read_jsonl(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def log_likelihood(subject: Subject, context: str, continuation: str) -> tuple[float, bool]:
    """The log-likelihood by definition, and whether it is greedy: one text, one pass."""
    _, model, tokenizer = subject
    known = tokenizer.encode(context)
    whole = tokenizer.encode(context + continuation)
    begin = len(known)
    if not known:
        assert tokenizer.end is not None
        whole = [tokenizer.end, *whole]
        begin = 1
    with torch.no_grad():
        logprobs = model(torch.tensor([whole]))[0].log_softmax(-1)  # type: ignore[operator]
    positions = range(begin, len(whole))
    total = sum(float(logprobs[position - 1, whole[position]]) for position in positions)
    likeliest = logprobs.argmax(-1).tolist()
    return total, likeliest[begin - 1 : -1] == whole[begin:]


def test_last_words(subject: Subject, tmp_path: Path) -> None:
    texts = [
        "the cat sat on the mat",
        "a dog ran to the man",
        "the man sat down",
        "who sat on the cat",
    ]
    result = evaluate(
        read_task("lambada"),
        subject,
        write_table(tmp_path / "t.jsonl", [{"text": text} for text in texts]),
    )
    expected = [
        log_likelihood(subject, *cut)
        for cut in (("".join(t.rpartition(" ")[:1]), " " + t.split()[-1]) for t in texts)
    ]
    accuracy, perplexity = result.scores
    assert accuracy.value == sum(greedy for _, greedy in expected) / 4
    assert perplexity.value == pytest.approx(math.exp(-sum(total for total, _ in expected) / 4))
    assert result.rows == 4
    assert result.notes == ()


def test_choices_with_and_without_their_length(subject: Subject, tmp_path: Path) -> None:
    rows = [
        {
            "context": "the cat",
            "choices": ["sat on the mat.", "ran", "a dog and a man", "who?"],
            "answer": number % 4,
        }
        for number in range(8)
    ]
    result = evaluate(read_task("hellaswag"), subject, write_table(tmp_path / "t.jsonl", rows))
    plain = [log_likelihood(subject, "the cat", " " + choice)[0] for choice in rows[0]["choices"]]
    by_length = [
        total / len(choice) for total, choice in zip(plain, rows[0]["choices"], strict=True)
    ]
    assert [score.name for score in result.scores] == ["accuracy", "accuracy by characters"]
    assert [score.value for score in result.scores] == [0.25, 0.25]
    assert result.random_baseline == 0.25
    for likeliest, score in ((plain, 0), (by_length, 1)):
        best = likeliest.index(max(likeliest))
        only = evaluate(
            read_task("hellaswag"),
            subject,
            write_table(tmp_path / "u.jsonl", [{**rows[0], "answer": best}]),
        )
        assert only.scores[score].value == 1.0


def test_lengths_are_of_characters_bytes_or_tokens() -> None:
    """The second choice has a lower sum, and a higher score under each length normalisation."""
    question = Question("", ("ab", "äbcd"), 1, ("ab", "äbcd"))
    answers = [Likelihood((-1.0, -1.0), False), Likelihood((-1.0, -1.0, -0.5), False)]
    assert not prefers_gold(question, answers, "none")
    assert prefers_gold(question, answers, "characters")
    assert prefers_gold(question, answers, "bytes")
    assert prefers_gold(question, answers, "tokens")
    assert not prefers_gold(
        Question("", ("a", "b"), 0, ("a", "b")), [answers[0], answers[0]], "none"
    )  # a tie is wrong


def test_minimal_pairs_and_a_metric_chosen(subject: Subject) -> None:
    result = evaluate(read_task("agreement"), subject, [])
    rows = read_jsonl(read_task("agreement").beside("agreement.jsonl"))
    correct = [
        log_likelihood(subject, "", row["sentence_good"])
        > log_likelihood(subject, "", row["sentence_bad"])
        for row in rows
    ]
    assert result.rows == len(rows) == 20
    assert result.scores[0].value == sum(correct) / 20


def test_shots_change_the_context_and_limit_the_rows(subject: Subject) -> None:
    task = read_task("last-word")
    subject = Subject(
        "small", small_gpt(subject.tokenizer.vocabulary, context=1024), subject.tokenizer
    )
    zero, two, again, other = (
        evaluate(task, subject, [], Protocol(shots=shots, seed=seed, limit=5))
        for shots, seed in ((0, 0), (2, 0), (2, 0), (2, 1))
    )
    assert {result.rows for result in (zero, two)} == {5}
    assert two.scores == again.scores
    assert len({result.scores[1].value for result in (zero, two, other)}) == 3
    assert two.notes == ("examples chosen by seed 0",)


def test_truncated_contexts_are_noted(subject: Subject) -> None:
    result = evaluate(read_task("last-word"), subject, [], Protocol(shots=2, limit=5))
    assert "5 of 5 contexts were cut from the left to 48 tokens" in result.notes


def test_perplexity_notes_its_window_stride_and_counts(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("the cat sat on the mat.\n" * 20)
    result = evaluate(
        read_task("perplexity"), subject, [str(tmp_path / "my.txt")], Protocol(window=32, stride=8)
    )
    tokens = len(subject.tokenizer.encode("the cat sat on the mat.\n" * 20))
    assert result.notes == (
        "rows: windows of 32 tokens, stride 8",
        f"{tokens:,} tokens, {tokens:,} scored",
    )
    assert [score.name for score in result.scores] == [
        "perplexity",
        "bits per character",
        "bits per byte",
    ]
    assert result.facts["bytes"] == 24 * 20


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


@pytest.mark.parametrize("kind", list(KINDS))
def test_limit_restricts_the_questions_of_every_kind(
    kind: str,
    subject: Subject,
    translator: Subject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    name, family, rows = ROWS[kind]
    encoder = BERT(
        BERTConfig(vocabulary=subject.tokenizer.vocabulary, context=8, width=8, depth=1, heads=1)
    )
    tested = {
        "": subject,
        "translator": translator,
        "encoder": Subject("bert", encoder, small_tokenizer()),
    }[family]
    task, data = read_task(name), write_table(tmp_path / "t.jsonl", rows)
    assert task.kind == kind
    whole, some = (
        evaluate(task, tested, data, Protocol(beams=1, limit=limit)) for limit in (None, 3)
    )
    assert (some.rows, whole.rows >= 6) == (3, True)


def test_limit_applies_to_plain_text_too(
    subject: Subject, translator: Subject, tmp_path: Path
) -> None:
    """The limit counts windows of a text file for a GPT, and pairs for a translator."""
    (tmp_path / "my.txt").write_text("the cat sat on the mat.\n" * 200)
    result = evaluate(
        read_task("perplexity"),
        subject,
        [str(tmp_path / "my.txt")],
        Protocol(limit=5, window=16, stride=8),
    )
    assert (result.rows, result.facts["scored"], result.facts["documents"]) == (5, 16 + 4 * 8, 1)
    (tmp_path / "a.tsv").write_text("the cat\ta man\n" * 9)
    assert (
        evaluate(
            read_task("perplexity"), translator, [str(tmp_path / "a.tsv")], Protocol(limit=5)
        ).rows
        == 5
    )


def test_a_line_is_correct_if_it_is_an_accepted_answer(subject: Subject, tmp_path: Path) -> None:
    """The generated line itself is accepted, in other case too; a part of it is not."""
    task = replace(read_task("french"), data="", examples="")
    rows = [
        {"english": english, "french": "never generated"}
        for english in ("cat", "dog", "man", "mat")
    ]
    wrong = evaluate(task, subject, write_table(tmp_path / "a.jsonl", rows))
    assert wrong.scores[0].value == 0
    lines = wrong.facts["lines"]
    assert len(lines) == 4
    assert all(line and line == line.strip() and "\n" not in line for line in lines)
    prompts = [f"Translate English to French:\n{row['english']} =>" for row in rows]
    assert isinstance(subject.model, GPT)
    assert lines == [
        text.strip()
        for text in complete(
            subject.model,
            subject.tokenizer,
            prompts,
            length=128,
            stop=["\n"],
            temperature=0.0,
        )
    ]
    accepted = [
        ["no", f" {lines[0].swapcase()} "],
        [lines[1]],
        [lines[2] + "x"],
        [lines[3][:-1] or "no"],
    ]
    rows = [{**row, "french": french} for row, french in zip(rows, accepted, strict=True)]
    result = evaluate(task, subject, write_table(tmp_path / "b.jsonl", rows))
    assert result.scores[0] == accuracy([True, True, False, False])
    assert result.random_baseline is None


def test_french_has_five_questions_and_sixteen_examples(subject: Subject) -> None:
    task = read_task("french")
    rows = read_jsonl(task.beside(task.data))
    pool = read_jsonl(task.beside(task.examples))
    assert len(rows) == 5
    assert len({row["english"] for row in pool}) == len(pool) >= 16
    assert not {row["english"] for row in rows} & {row["english"] for row in pool}
    wide = Subject(
        "small", small_gpt(subject.tokenizer.vocabulary, context=1024), subject.tokenizer
    )
    result = evaluate(task, wide, [], Protocol(shots=16))
    assert (result.rows, result.shots) == (5, 16)


def assert_sacrebleu(result: EvaluationResult, references: list[str]) -> None:
    """The scores equal sacrebleu's own functions on the hypotheses."""
    hypotheses = result.facts["hypotheses"]
    assert len(hypotheses) == len(references)
    values = {score.name: score.value for score in result.scores}
    assert values["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert values["chrF"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert values["chrF"] > 0  # even random letters match somewhere


@pytest.mark.parametrize("name", ["perplexity", "translation"])
def test_shots_are_zero_where_examples_do_not_apply(
    translator: Subject, tmp_path: Path, name: str
) -> None:
    (tmp_path / "a.tsv").write_text("the cat\ta man\nthe dog\tthe mat\n")
    result = evaluate(
        read_task(name), translator, [str(tmp_path / "a.tsv")], Protocol(beams=1, shots=1)
    )
    assert result.shots == 0
    assert (
        result.notes[-1]
        == "no examples: they precede questions, not texts to predict or to translate"
    )


def test_unknown_tokens_are_noted(tmp_path: Path) -> None:
    tokenizer = train("words", ["the cat sat on the mat\n"] * 3, 20)
    subject = Subject("words", small_gpt(tokenizer.vocabulary), tokenizer)
    note = "are not in the vocabulary and are read as [unknown]"
    rows = write_table(tmp_path / "t.jsonl", [{"text": "the zebra sat"}, {"text": "the cat zebra"}])
    result = evaluate(read_task("lambada"), subject, rows)
    assert result.facts["unknown"] == 2
    assert f"2 of 6 tokens {note}" in result.notes
    (tmp_path / "my.txt").write_text("the zebra sat")
    result = evaluate(read_task("perplexity"), subject, [str(tmp_path / "my.txt")])
    assert result.facts["unknown"] == 1
    assert result.notes[-1] == f"1 of 3 tokens {note}"
    (tmp_path / "my.txt").write_text("the cat sat")
    assert note not in str(
        evaluate(read_task("perplexity"), subject, [str(tmp_path / "my.txt")]).notes
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
    result = evaluate(
        read_task("translation"), translator, [str(tmp_path / "a.tsv")], Protocol(beams=2)
    )
    assert [score.name for score in result.scores] == ["BLEU", "chrF"]
    assert "version:" in result.notes[1]
    assert_sacrebleu(result, ["a man", "the mat"])
    perplexity = evaluate(read_task("perplexity"), translator, [str(tmp_path / "a.tsv")])
    assert perplexity.notes[0] == "targets given their sources"


def test_a_gpt_translates_by_a_prompt(subject: Subject, tmp_path: Path) -> None:
    data = write_table(
        tmp_path / "a.jsonl",
        [{"source": "the cat", "target": "a man"}, {"source": "a", "target": "b"}],
    )
    with pytest.raises(ValueError, match=r"^small: .*translates"):
        evaluate(read_task("translation"), subject, data)
    task = tmp_path / "mine.toml"
    task.write_text(
        'name = "mine"\nkind = "translation"\ntemplate = "{source} ="\n'
        'answer = "{target}"\nseparator = "\\n"'
    )
    model = Subject(
        "small", small_gpt(subject.tokenizer.vocabulary, context=256), subject.tokenizer
    )
    result = evaluate(read_task(task), model, data, Protocol(shots=1))
    assert all("\n" not in line for line in result.facts["hypotheses"])
    assert_sacrebleu(result, ["a man", "b"])


# The command line


def run_evaluate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["qkv", "evaluate", *arguments])
    with unchecked():
        cli.main()


def test_several_models_in_one_table_with_json_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = small_folder(tmp_path / "one"), small_folder(tmp_path / "two", position="rotary")
    out, plot = tmp_path / "results" / "scores.json", tmp_path / "scores.png"
    monkeypatch.setenv("COLUMNS", "200")
    tasks = ["--task", "agreement", "--task", "last-word", "--shots", "0", "1", "--limit", "6"]
    files = ["--out", str(out), "--plot", str(plot)]
    run_evaluate(monkeypatch, str(one), str(two), *tasks, *files)
    output = capsys.readouterr().out
    for text in (
        "one",
        "two",
        "agreement",
        "last-word",
        "accuracy",
        "perplexity",
        "95% intervals",
        "examples chosen by seed 0",
    ):
        assert text in output
    written = json.loads(out.read_text())
    assert len(written["results"]) == 8
    assert {
        (result["model"], result["task"], result["shots"]) for result in written["results"]
    } == {
        (model, task, shots)
        for model in ("one", "two")
        for task in ("agreement", "last-word")
        for shots in (0, 1)
    }
    assert written["asked"]["limit"] == 6
    assert written["asked"]["shots"] == [0, 1]
    assert written["tasks"]["agreement"]["choices"] == ["{sentence_good}", "{sentence_bad}"]
    assert all(len(digest) == 64 for files in written["data"].values() for digest in files.values())
    assert (
        written["models"]["one"]["sha256 of weights"]
        != written["models"]["two"]["sha256 of weights"]
    )
    assert plot.read_bytes().startswith(b"\x89PNG")
    loaded = qkv.load(one)
    assert loaded.tokenizer is not None
    subject = Subject("one", loaded.model, loaded.tokenizer)
    again: EvaluationResult = evaluate(read_task("agreement"), subject, [], Protocol(limit=6))
    assert again.scores[0].value == next(
        result["scores"][0]["value"]
        for result in written["results"]
        if (result["model"], result["task"]) == ("one", "agreement")
    )


def test_translations_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hypotheses.txt").write_text("the cat sat on the mat\na dog\n")
    (tmp_path / "references.txt").write_text("the cat sat on the mat\na dog\n")
    files = ["--hypotheses", str(tmp_path / "hypotheses.txt")]
    files += ["--data", str(tmp_path / "references.txt")]
    run_evaluate(monkeypatch, "--task", "translation", *files)
    assert "100.00" in capsys.readouterr().out
    (tmp_path / "references.txt").write_text("the cat sat on the mat\nnothing like it\n")
    run_evaluate(monkeypatch, "--task", "translation", *files, "--limit", "1")
    assert "100.00" in capsys.readouterr().out


def test_errors_are_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every error is one line on stderr, and no output file is written."""
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
    absent = at("none.jsonl")
    lambada = [model, "--task", "lambada", "--data"]
    perplexity = [model, "--task", "perplexity", "--data", at("two.txt")]
    translations = ["--task", "translation", "--hypotheses", at("two.txt")]
    errors = [
        ([model], "task: expected one task or more"),
        (["--task", "agreement"], "models: expected one model or more"),
        ([model, "--task", "lambda"], "task: there is no task 'lambda'; did you mean lambada?"),
        ([model, "--task", at("broken.toml")], f"{at('broken.toml')}: choices: "),
        ([model, "--task", "lambada"], "data: the task lambada has none of its own; give --data"),
        ([*lambada, at("empty.jsonl")], f"{at('empty.jsonl')}: the file has no rows"),
        ([*lambada, at("other.jsonl")], f"{at('other.jsonl')}:1: no column 'text'"),
        ([*lambada, absent], f"{absent}: no such file or folder"),
        ([model, "--task", "agreement", "--limit", "0"], "limit: expected 1 or more, not 0"),
        ([model, "--task", "agreement", "--shots", "-1"], "shots: expected 0 or more, not -1"),
        ([model, "--task", "agreement", "--shots", "20"], "shots: "),
        ([*perplexity, "--stride", "0"], "stride: expected 1 to 48"),
        ([model, "--task", "agreement", "--plot", at("a.gif")], "plot: "),
        ([*lambada[:-1], "--task", "blimp", "--data", "a", "b", "c"], "data: 3 files for 2 tasks"),
        ([at("rnn"), "--task", "agreement"], "rnn: agreement needs a GPT"),
        ([at("rnn"), "--task", "french"], "rnn: french needs a GPT"),
        ([*translations, "--data", at("three.txt")], "references: expected 2"),
    ]
    for arguments, message in errors:
        with pytest.raises(SystemExit) as exit:
            run_evaluate(monkeypatch, *arguments, "--out", at("never.json"))
        assert exit.value.code in (1, 2), arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"qkv: {message}"), arguments
    assert not Path(at("never.json")).exists()
