"""The probed positions and the targets of each probe task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.tokens.token_arrays import Tokens
from qkv.insight.probing.probe_tasks import (
    draw_windows,
    position_task,
    probe_task,
)
from qkv.models import BERT, GPT, RNN, BERTConfig, GPTConfig, RNNConfig
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES

WORDS = [("the", "DET", 2), ("cats", "NOUN", 3), ("sleep", "VERB", 0), (".", "PUNCT", 3)]
SMALL: dict[str, Any] = {"width": 8, "depth": 1, "heads": 1, "context": 32}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("byte-pair", SENTENCES, 280)


def gpt(tokenizer: Tokenizer) -> GPT:
    return GPT(GPTConfig(vocabulary=tokenizer.vocabulary, **SMALL))


def bert(tokenizer: Tokenizer) -> BERT:
    return BERT(BERTConfig(vocabulary=tokenizer.vocabulary, **SMALL))


def conllu(path: Path, sentences: int = 20) -> Path:
    rows = [
        f"{n}\t{w}\t_\t{tag}\t_\t_\t{head}\t_\t_\t_"
        for n, (w, tag, head) in enumerate(WORDS, start=1)
    ]
    path.write_text(("\n".join(rows) + "\n\n") * sentences)
    return path


def tsv(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


def test_a_gpt_is_probed_at_the_last_piece_of_a_word_and_a_bert_at_the_first(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    file = conllu(tmp_path / "a.conllu")
    pieces = [
        len(tokenizer.encode(("" if n == 0 else " ") + word))
        for n, (word, _, _) in enumerate(WORDS)
    ]
    ends = np.cumsum(pieces)
    causal = probe_task(gpt(tokenizer), tokenizer, f"{file}:upos").parts[0]
    both = probe_task(bert(tokenizer), tokenizer, f"{file}:upos").parts[0]
    assert causal.positions[0].tolist() == (ends - 1).tolist()
    assert both.positions[0].tolist() == (ends - pieces + 1).tolist()  # after [start]
    assert len(causal.ids[0]) + 2 == len(both.ids[0])
    assert (both.ids[0][0], both.ids[0][-1]) == (tokenizer.start, tokenizer.end)
    assert both.ids[0][1:-1].tolist() == causal.ids[0].tolist()


def test_columns_as_classes_and_heads_as_numbers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = conllu(tmp_path / "a.conllu")
    tags = probe_task(gpt(tokenizer), tokenizer, f"{file}:upos")
    assert (tags.labels, tags.measures) == (("DET", "NOUN", "PUNCT", "VERB"), ("accuracy",))
    assert [len(part) for part in tags.parts] == [16, 2, 2]
    assert tags.parts[0].targets[:4].tolist() == [0, 1, 3, 2]
    assert tags.baseline() == {"accuracy": 0.25}
    heads = probe_task(gpt(tokenizer), tokenizer, f"{file}:head")
    assert (heads.labels, heads.measures) == ((), ("distance",))
    assert heads.parts[0].targets[:3].tolist() == [1, 1, -1]  # the verb is the root
    assert len(heads.parts[0].positions[0]) == 3
    assert heads.baseline() == {"distance": pytest.approx(2 / 3)}


def test_files_to_validate_and_to_test_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    files = [str(conllu(tmp_path / f"{n}.conllu", n)) for n in (12, 5, 3)]
    target = f"{files[0]}:upos"
    parts = probe_task(
        gpt(tokenizer), tokenizer, target, validation=files[1:2], test=files[2:], most=7
    ).parts
    assert [len(part) for part in parts] == [7, 5, 3]


def test_no_file_is_used_twice(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, file, other = (
        gpt(tokenizer),
        conllu(tmp_path / "a.conllu"),
        conllu(tmp_path / "b.conllu"),
    )
    (tmp_path / "link.conllu").symlink_to(file)
    (tmp_path / "hard.conllu").hardlink_to(file)
    for name in (
        "a.conllu",
        "link.conllu",
        "hard.conllu",
        "../" + tmp_path.name + "/a.conllu",
        "[a].conllu",
    ):
        same = [str(tmp_path / name)]
        for use in ("validation", "test"):
            with pytest.raises(ValueError, match=rf"{use}: .*file of target"):
                probe_task(model, tokenizer, f"{file}:upos", **{use: same})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"test: .*file of validation"):
        probe_task(model, tokenizer, f"{file}:upos", validation=[str(other)], test=[str(other)])
    table = tsv(tmp_path / "a.tsv", [(text, "ab"[n % 2]) for n, text in enumerate(SENTENCES[:20])])
    with pytest.raises(ValueError, match=r"test: .*file of target"):
        probe_task(model, tokenizer, str(table), test=[str(table)])


def test_words_beyond_the_context_are_not_probed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    small = GPT(GPTConfig(vocabulary=tokenizer.vocabulary, **(SMALL | {"context": 5})))
    task = probe_task(small, tokenizer, f"{conllu(tmp_path / 'a.conllu')}:upos")
    assert max(positions[-1] for positions in task.parts[0].positions) < 5
    assert "words lie beyond 5 tokens" in task.notes[0]


@pytest.mark.parametrize(("pooling", "position"), [("first", 0), ("last", -1), ("mean", 0)])
def test_a_text_is_its_first_or_last_vector_or_the_mean(
    tokenizer: Tokenizer, tmp_path: Path, pooling: Any, position: int
) -> None:
    file = tsv(tmp_path / "a.tsv", [(text, "ab"[n % 2]) for n, text in enumerate(SENTENCES[:20])])
    part = probe_task(gpt(tokenizer), tokenizer, str(file), pooling=pooling).parts[1]
    assert part.mean == (pooling == "mean")
    for positions, ids in zip(part.positions, part.ids, strict=True):
        assert int(positions[0]) == (len(ids) - 1 if position else 0)
    assert tokenizer.end not in part.ids[0].tolist()


def test_labels_are_numbers_if_one_has_a_fraction(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = gpt(tokenizer)
    counts = tsv(tmp_path / "counts.tsv", [(text, str(n)) for n, text in enumerate(SENTENCES[:20])])
    parts = tsv(
        tmp_path / "parts.tsv", [(text, str(n / 2)) for n, text in enumerate(SENTENCES[:20])]
    )
    assert len(probe_task(model, tokenizer, str(counts)).labels) > 2
    assert probe_task(model, tokenizer, str(counts), numbers=True).labels == ()
    assert probe_task(model, tokenizer, str(parts)).measures == ("distance",)
    names = tsv(
        tmp_path / "names.tsv", [(text, "ab"[n % 2]) for n, text in enumerate(SENTENCES[:20])]
    )
    with pytest.raises(ValueError, match=r"names.tsv:\d+: .*number"):
        probe_task(model, tokenizer, str(names), numbers=True)


def test_windows_begin_in_the_middle_of_texts() -> None:
    ids = np.arange(1000)
    ends = np.array([1, 2, 3, 50, 51, 400, 1000])
    tokens = Tokens([ids], ends, "f")
    windows = draw_windows(tokens, 10, 2000)
    begins = sorted(int(ids[0]) for ids in windows.ids)
    assert begins == sorted(set(range(991)) - {0, *ends.tolist()})
    assert all(ids.tolist() == list(range(ids[0], ids[0] + 10)) for ids in windows.ids)
    assert windows.targets.tolist() == list(range(10)) * len(windows)
    task = position_task(tokens, 10, 30)
    tokens_of_part = [set(np.concatenate(part.ids).tolist()) for part in task.parts]
    assert not tokens_of_part[0] & tokens_of_part[1]
    assert not tokens_of_part[1] & tokens_of_part[2]
    assert task.baseline() == {"distance": 2.5, "accuracy": pytest.approx(0.1)}


def test_bad_targets_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, file = gpt(tokenizer), conllu(tmp_path / "a.conllu")
    (tmp_path / "empty.conllu").write_text("")
    (tmp_path / "short.txt").write_text("a b c")
    same = tsv(tmp_path / "same.tsv", [(text, "a") for text in SENTENCES[:20]])
    one = tsv(tmp_path / "one.tsv", [("a text", "a")])
    for target, options, message in [
        (f"{file}:colour", {}, r"a.conllu: .*colour"),
        (f"{file}:xpos", {}, r"a.conllu:xpos: .*'_'.*two classes"),
        (str(same), {}, r"same.tsv: .*'a'.*two classes"),
        (str(one), {}, r"one.tsv: .*too few"),
        (str(tmp_path / "none.tsv"), {}, r"none.tsv: no such file or folder"),
        ("dev.conllu", {}, r"target: .*such as dev.conllu:upos"),
        ("dev.conllu:", {}, r"target: .*such as dev.conllu:upos"),
        ("a:b/dev.conllu.xz", {}, r"target: .*such as a:b/dev.conllu.xz:upos"),
        ("dev.conllu.gz", {}, r"target: .*such as dev.conllu.gz:upos"),
        ("old.conllu/labels.tsv", {}, r"^old.conllu/labels.tsv: no such file or folder"),
        (f"{tmp_path / 'empty.conllu'}:upos", {}, r"empty.conllu: the file has no sentences$"),
        (f"{file}:upos", {"data": ["x"]}, r"data: .*leave it out"),
        (f"{file}:upos", {"most": 0}, r"examples: .*not 0"),
        ("position", {}, r"data: expected texts"),
        ("position", {"data": ["python"], "test": ["x"]}, r"test: .*held out"),
        (
            "position",
            {"data": [str(tmp_path / "short.txt")], "length": 16},
            r"^held_out: |^length: a part of the text has \d tokens",
        ),
        ("position", {"data": ["python"], "length": 33}, r"length: .*2 to 32 .*not 33"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            probe_task(model, tokenizer, target, **options)  # type: ignore[arg-type]


def test_an_rnn_has_no_maximum_length(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    (tmp_path / "long.txt").write_text(" ".join(SENTENCES * 5))
    model = RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=8))
    data = [str(tmp_path / "long.txt")]
    task = probe_task(model, tokenizer, "position", data=data, length=40, windows=5)
    assert {len(ids) for ids in task.parts[0].ids} == {40}
