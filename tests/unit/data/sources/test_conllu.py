"""CoNLL-U: words and their columns, without multiword tokens and empty nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.sources.conllu import ConlluSentence, ConlluWord, read_sentences
from qkv.data.sources.files import File

SENTENCES = """\
# newdoc id = letter
# text = I don't.
1\tI\tI\tPRON\tPRP\tCase=Nom\t2\tnsubj\t2:nsubj\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t0:root\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t2:advmod\t_
3.1\tlike\tlike\tVERB\tVB\t_\t_\t_\t0:root\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t2:punct\t_

# text = #
1\t#\t#\tSYM\tNN\t_\t_\t_\t_\t_


# a comment that belongs to none
"""


def file_of(path: Path, content: str) -> File:
    (path / "a.conllu").write_text(content)
    return File(path / "a.conllu", "a.conllu", "conllu")


def test_sentences_word_by_word(tmp_path: Path) -> None:
    first, second = read_sentences(file_of(tmp_path, SENTENCES))
    assert first.comments == ("# newdoc id = letter", "# text = I don't.")
    assert [(word.id, word.form, word.upos, word.head, word.line) for word in first.words] == [
        (1, "I", "PRON", 2, 3),
        (2, "do", "AUX", 0, 5),
        (3, "n't", "PART", 2, 6),
        (4, ".", "PUNCT", 2, 8),
    ]
    assert first.words[0] == ConlluWord(
        1, "I", "I", "PRON", "PRP", "Case=Nom", 2, "nsubj", "2:nsubj", "_", 3
    )
    assert second == ConlluSentence(
        (ConlluWord(1, "#", "#", "SYM", "NN", "_", None, "_", "_", "_", 11),), ("# text = #",)
    )
    assert (first.line, second.line) == (3, 11)


def test_no_empty_line_at_the_end_and_windows_line_ends(tmp_path: Path) -> None:
    whole = list(read_sentences(file_of(tmp_path, SENTENCES)))
    end = SENTENCES.index("\n\n\n")
    assert list(read_sentences(file_of(tmp_path, SENTENCES[:end].replace("\n", "\r\n")))) == whole


@given(
    st.lists(
        st.lists(st.text(alphabet="ab #-.0é", min_size=1).map(str.strip).filter(bool), min_size=1)
    )
)
def test_what_is_written_is_read(tmp_path: Path, sentences: list[list[str]]) -> None:
    content = "".join(
        "".join(f"{i}\t{form}" + "\t_" * 8 + "\n" for i, form in enumerate(words, 1)) + "\n"
        for words in sentences
    )
    result = read_sentences(file_of(tmp_path, content))
    assert [[word.form for word in sentence.words] for sentence in result] == sentences


def line(**columns: Any) -> str:
    names = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
    return "\t".join(str({"id": 1, "form": "a", **columns}.get(name, "_")) for name in names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 a DET", "a.conllu:1: 1 column, expected ten with tabs between them, as CoNLL-U has"),
        (
            f"{line()}\n2\tb\t_",
            "a.conllu:2: 3 columns, expected ten with tabs between them, as CoNLL-U has",
        ),
        (line(id="x"), "a.conllu:1: the first column: expected the word's number, not 'x'"),
        (line(form=" "), "a.conllu:1: the word is empty"),
        (
            line(head="b"),
            "a.conllu:1: the seventh column: expected the number of a word, 0 or _, not 'b'",
        ),
        (
            f"# c\n{line()}\n{line()}",
            "a.conllu:3: expected word 2 of the sentence, not 1; an empty line ends a sentence",
        ),
    ],
)
def test_lines_that_are_wrong(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        list(read_sentences(file_of(tmp_path, content)))
