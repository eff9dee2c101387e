"""Examples of every task from every file format; errors name the file and the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qkv.data.sources.examples import Example, open_examples
from unit.data.sources.test_source import piped, table, write

WORDS = "1\tA\ta\tDET\tDT\tX=1\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def examples(name: str, task: str, **options: Any) -> list[Example]:
    source = open_examples([name], task, **options)
    examples = list(source)
    assert list(source) == examples
    return examples


def one(name: str, task: str, **options: Any) -> tuple[Any, ...]:
    """The texts and the label of the only example."""
    (example,) = examples(name, task, **options)
    return example[:2]


# Tables


@pytest.mark.parametrize("kind", [".tsv", ".jsonl", ".csv", ".parquet", ".tsv.gz", ".csv.xz"])
def test_one_text(kind: str) -> None:
    name = table("a" + kind, {"sentence": ["it 's fun ", "dull"], "label": [1, 0]})
    suffixes = {".jsonl": (":1", ":2"), ".parquet": (", row 1", ", row 2")}.get(kind, (":2", ":3"))
    assert examples(name, "classify") == [
        Example(("it 's fun",), "1", name + suffixes[0]),
        Example(("dull",), "0", name + suffixes[1]),
    ]


@pytest.mark.parametrize(
    "names", ["sentence1 sentence2", "premise hypothesis", "question sentence", "text_a text_b"]
)
@pytest.mark.parametrize("task", ["pair", "similarity", "regress"])
def test_two_texts(task: str, names: str) -> None:
    first, second = names.split()
    name = table("a.tsv", {"index": [0], second: ["b"], first: ["a"], "label": [0.5]})
    assert one(name, task) == (("a", "b"), "0.5")
    assert one(name, task, labelled=False) == (("a", "b"), None)


def test_columns_by_name() -> None:
    name = table("a.jsonl", {"this": ["a"], "that": ["b"], "class": [True], "score": [2]})
    assert one(name, "pair", text="this", pair="that", label="class") == (("a", "b"), "true")
    assert one(name, "classify", text="that", label="class") == (("b",), "true")
    assert one(name, "regress", text="this") == (("a",), "2")
    assert one(name, "similarity", text="this", pair="that") == (("a", "b"), "2")
    assert one(write("b.tsv", "1\tfun\n"), "classify", text="2", label="1") == (("fun",), "1")
    assert one(write("b.tsv", "1\tfun\n"), "classify", text="2", labelled=False) == (("fun",), None)
    usual = table("c.jsonl", {"premise": ["a"], "hypothesis": ["b"], "labels": ["x"]})
    assert (
        one(usual, "pair", text="premise")
        == one(usual, "pair", pair="hypothesis")
        == (("a", "b"), "x")
    )


def test_without_labels_a_label_is_not_read() -> None:
    assert one(table("a.tsv", {"text": ["a"], "label": [""]}), "classify", labelled=False) == (
        ("a",),
        None,
    )
    assert one(table("b.tsv", {"text": ["a"]}), "classify", labelled=False) == (("a",), None)


@pytest.mark.parametrize(
    "names", ["context choices answer", "ctx endings label", "question choices gold"]
)
@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_choices(kind: str, names: str) -> None:
    context, choices, answer = names.split()
    for value in (1, "1", "yes", " yes "):
        name = table("a" + kind, {context: ["is it?"], choices: [["no", "yes"]], answer: [value]})
        assert one(name, "choice") == (("is it?", "no", "yes"), "1")
    assert one(name, "choice", labelled=False) == (("is it?", "no", "yes"), None)


def test_a_choice_that_is_a_number_itself() -> None:
    name = table("a.jsonl", {"context": ["1 + 1 ="], "choices": [["1", "2", "3"]], "answer": ["2"]})
    assert one(name, "choice") == (("1 + 1 =", "1", "2", "3"), "1")


# Tags


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_tags_of_conllu(ending: str) -> None:
    name = write("a.conllu" + ending, WORDS + "\n# c\n" + WORDS)
    expected = Example(("A", "cat"), ("DET", "NOUN"), name + ":1")
    assert examples(name, "tag") == [expected, expected._replace(where=name + ":5")]
    assert examples(name, "tag", labelled=False)[0] == expected._replace(label=None)
    unannotated = write("b.conllu", WORDS.replace("\t2\t", "\t_\t"))
    assert one(unannotated, "tag", label="head", labelled=False) == (("A", "cat"), None)
    columns = {
        "xpos": ("DT", "NN"),
        "deprel": ("det", "root"),
        "lemma": ("a", "cat"),
        "feats": ("X=1", "_"),
    }
    for column, tags in {**columns, "head": ("2", "0")}.items():
        assert examples(name, "tag", label=column)[0].label == tags


def test_tags_of_tables() -> None:
    name = table("a.jsonl", {"words": [["A", "cat"]], "tags": [["DET", 7]]})
    assert one(name, "tag") == (("A", "cat"), ("DET", "7"))
    assert one(name, "tag", labelled=False) == (("A", "cat"), None)
    name = table("a.parquet", {"tokens": [["A", "cat"]], "ner": [[0, 1]]})
    assert one(name, "tag", label="ner") == (("A", "cat"), ("0", "1"))


# Plain text and pipes


def test_lines_to_be_labelled() -> None:
    name = write("a.txt.gz", " a line\nand\tanother \n")
    assert examples(name, "classify", labelled=False) == [
        Example(("a line",), None, name + ":1"),
        Example(("and\tanother",), None, name + ":2"),
    ]
    assert [example.texts for example in examples(name, "regress", labelled=False)] == [
        ("a line",),
        ("and", "another"),
    ]
    assert [example.texts for example in examples(name, "tag", labelled=False)] == [
        ("a", "line"),
        ("and", "another"),
    ]
    pairs = write("b.txt", "one \t other\n")
    assert (
        one(pairs, "pair", labelled=False)
        == one(pairs, "similarity", labelled=False)
        == (("one", "other"), None)
    )


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"sentence\tlabel\na\t1\n")
    assert one("-", "classify") == (("a",), "1")
    piped(monkeypatch, b"a line\n")
    assert one("-", "classify", labelled=False) == (("a line",), None)
    piped(monkeypatch, WORDS.encode())
    assert one("-", "tag") == (("A", "cat"), ("DET", "NOUN"))
    piped(monkeypatch, WORDS.encode())
    assert one("-.conllu", "tag", labelled=False) == (("A", "cat"), None)
    piped(monkeypatch, b'{"context": "c", "choices": ["a", "b"]}')
    assert one("-", "choice", labelled=False) == (("c", "a", "b"), None)


def test_a_readme_beside_tables_is_skipped() -> None:
    write("rows/README.md", "# rows")
    write("rows/train.tsv", "sentence\tlabel\na\t1\n")
    assert one("rows", "classify") == (("a",), "1")


def test_the_fingerprint_depends_on_the_columns() -> None:
    name = table("a.tsv", {"text": ["a"], "other": ["b"], "label": [1]})
    words = write("b.conllu", WORDS)
    prints = [
        open_examples([name], "classify").fingerprint(),
        open_examples([name], "classify", text="other").fingerprint(),
        open_examples([words], "tag").fingerprint(),
        open_examples([words], "tag", label="xpos").fingerprint(),
    ]
    assert len({str(fingerprint) for fingerprint in prints}) == 4


# Errors


@pytest.mark.parametrize(
    ("name", "content", "task", "options", "message"),
    [
        (
            "a.tsv",
            "text\tlabel\n \t1\n",
            "classify",
            {},
            "a.tsv:2: the text is empty; leave the row out",
        ),
        ("a.tsv", "text\tlabel\na\n", "classify", {}, "a.tsv:2: 1 field, expected 2 as in line 1"),
        ("a.tsv", "text\tlabel\na\t \n", "classify", {}, "a.tsv:2: the label is empty"),
        (
            "a.tsv",
            "titel\tbody\na\tb\n",
            "classify",
            {},
            "a.tsv:1: no column is called sentence or text; name the one that is the text (--text)",
        ),
        (
            "a.tsv",
            "titel\tbody\na\tb\n",
            "classify",
            {"text": "body"},
            "a.tsv:1: no column 'label'; the columns are titel, body",
        ),
        (
            "a.tsv",
            "text\tlabel\na\tb\n",
            "classify",
            {"text": "txt"},
            "a.tsv:1: no column 'txt'; did you mean text?",
        ),
        (
            "a.tsv",
            "text\tlabel\na\tb\n",
            "pair",
            {},
            "a.tsv:1: no columns are called sentence1 and sentence2 or premise and hypothesis; "
            "name those of the two texts (--text, --pair)",
        ),
        (
            "a.tsv",
            "premise\thypothesis\tlabel\na\t\t1\n",
            "pair",
            {},
            "a.tsv:2: the text is empty; leave the row out",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "b"}\n',
            "classify",
            {},
            "a.jsonl:2: no column 'label'; it has text",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": null}\n',
            "classify",
            {},
            "a.jsonl:1: the label: expected a string or a number, not null",
        ),
        (
            "a.tsv",
            "text\tlabel\na\t1\nb\tx\n",
            "regress",
            {},
            "a.tsv:3: expected a number as the label, not 'x'",
        ),
        (
            "a.tsv",
            "text\tlabel\na\tnan\n",
            "regress",
            {},
            "a.tsv:2: expected a number as the label, not 'nan'",
        ),
        *(
            (
                "a.jsonl",
                f'{{"text": "a", "label": {value}}}',
                task,
                {},
                f"a.jsonl:1: the label: expected a number that is finite, not {shown}",
            )
            for value, shown in (("NaN", "nan"), ("-Infinity", "-inf"))
            for task in ("classify", "regress")
        ),
        (
            "a.tsv",
            "text\tlabel\na\t-inf\n",
            "regress",
            {},
            "a.tsv:2: expected a number as the label, not '-inf'",
        ),
        (
            "a.jsonl",
            '{"context": "c", "choices": ["a"], "answer": 0}',
            "choice",
            {},
            "a.jsonl:1: expected two choices or more, not 1",
        ),
        (
            "a.jsonl",
            '{"context": "c", "choices": "ab", "answer": 0}',
            "choice",
            {},
            "a.jsonl:1: the choices: expected a list of strings, not a string",
        ),
        (
            "a.jsonl",
            '{"context": "c", "choices": ["a", " "], "answer": 0}',
            "choice",
            {},
            "a.jsonl:1: a choice is empty; leave the row out",
        ),
        *(
            (
                "a.jsonl",
                f'{{"context": "c", "choices": ["a", "b"], "answer": {answer}}}',
                "choice",
                {},
                f"a.jsonl:1: the answer: expected a number from 0 to 1 or a choice, not '{shown}'",
            )
            for answer, shown in (
                ("2", "2"),
                ("-1", "-1"),
                ('"c"', "c"),
                ("1.5", "1.5"),
                ("true", "true"),
            )
        ),
        (
            "a.jsonl",
            '{"words": ["a", "b"], "tags": ["X"]}',
            "tag",
            {},
            "a.jsonl:1: 2 words and 1 tags; expected as many of both",
        ),
        (
            "a.jsonl",
            '{"words": ["a", ""], "tags": ["X", "Y"]}',
            "tag",
            {},
            "a.jsonl:1: a word is empty; leave the row",
        ),
        (
            "a.jsonl",
            '{"words": [], "tags": []}',
            "tag",
            {},
            "a.jsonl:1: the list of words is empty; leave the row out",
        ),
        (
            "a.jsonl",
            '{"words": "a b", "tags": []}',
            "tag",
            {},
            "a.jsonl:1: the words: expected a list, not a string",
        ),
        (
            "a.jsonl",
            '{"words": ["a"], "tags": "X"}',
            "tag",
            {},
            "a.jsonl:1: the tags: expected a list, not a string",
        ),
        (
            "a.conllu",
            "1\ta\tb\n",
            "tag",
            {},
            "a.conllu:1: 3 columns, expected ten with tabs between them",
        ),
        (
            "a.conllu",
            WORDS,
            "tag",
            {"label": "uposs"},
            "a.conllu: no column 'uposs'; did you mean upos?",
        ),
        (
            "a.conllu",
            WORDS,
            "classify",
            {},
            "a.conllu: CoNLL-U holds tagged words, for the task tag, not classify",
        ),
        (
            "a.conllu",
            WORDS.replace("\t2\t", "\t_\t"),
            "tag",
            {"label": "head"},
            "a.conllu:1: the column head is empty",
        ),
        ("a.conllu", "\n", "tag", {}, "a.conllu: the file has no sentences"),
        ("a.tsv", "text\tlabel\n", "classify", {}, "a.tsv: the file has no rows"),
        (
            "a.txt",
            "a",
            "classify",
            {},
            "a.txt: labelled rows are read from .tsv, .csv, .jsonl or .parquet",
        ),
        ("a.txt", "a", "tag", {}, "a.txt: labelled rows are read from .conllu or .jsonl"),
        (
            "a.txt",
            "a",
            "choice",
            {"labelled": False},
            "a.txt: choices are read from .jsonl or .parquet",
        ),
        (
            "a.txt",
            "a\n\nb",
            "classify",
            {"labelled": False},
            "a.txt:2: the text is empty; leave the line out",
        ),
        (
            "a.txt",
            " \n",
            "tag",
            {"labelled": False},
            "a.txt:1: the text is empty; leave the line out",
        ),
        (
            "a.txt",
            "a\t\n",
            "pair",
            {"labelled": False},
            "a.txt:1: the text is empty; leave the line out",
        ),
        (
            "a.txt",
            "a b\n",
            "pair",
            {"labelled": False},
            "a.txt:1: expected two texts with a tab between them, not 1",
        ),
        (
            "a.tsv",
            "text\tlabel\na\t1\n",
            "classify",
            {"pair": "text"},
            "pair: the task classify has no second text",
        ),
        (
            "a.tsv",
            "text\tlabel\na\t1\n",
            "sort",
            {},
            "task: expected one of classify, pair, similarity, choice, tag",
        ),
    ],
)
def test_mistakes(
    name: str, content: str, task: str, options: dict[str, Any], message: str
) -> None:
    write(name, content)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        list(open_examples([name], task, **options))


def test_embedded_sources_have_no_labels() -> None:
    with pytest.raises(ValueError, match=r"^turkish: .*labelled"):
        open_examples(["turkish"], "classify")
