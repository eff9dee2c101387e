"""BLEU and chrF against figures counted by hand, and against sacrebleu's own command-line
functions.
"""

from __future__ import annotations

import math

import pytest
import sacrebleu

from qkv.evaluation import bleu

ENGLISH = ["the cat sat on the mat.", "a dog didn't bark", "we will see"]
OTHER = ["the cat sat on a mat.", "a dog did not bark", "we will see"]


def test_the_same_texts_score_100() -> None:
    score = bleu(ENGLISH, ENGLISH)
    assert score.bleu == pytest.approx(100)
    assert score.chrf == pytest.approx(100)


def test_bleu_counted_by_hand() -> None:
    """Of "a b c d e" in "a b c d f": 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 fours;
    equally long.
    """
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu(["a b c d e"], ["a b c d f"]).bleu == pytest.approx(expected)


def test_a_short_translation_pays_for_brevity() -> None:
    """All of "a b c d" is in "a b c d e f", at the price exp(1 - 6 / 4)."""
    assert bleu(["a b c d"], ["a b c d e f"]).bleu == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_bleu_is_of_the_corpus_and_not_a_mean_of_sentences() -> None:
    found = bleu(["a b c d e", "x y z u v w"], ["a b c d f", "x y z u v w"]).bleu
    assert found == pytest.approx(100 * (10 / 11 * 8 / 9 * 6 / 7 * 4 / 5) ** 0.25)


def test_words_are_cut_by_sacrebleu() -> None:
    """Detokenised in, so that a full stop is a word of its own whoever wrote the text."""
    score = bleu(ENGLISH, OTHER)
    assert score.bleu == pytest.approx(sacrebleu.corpus_bleu(ENGLISH, [OTHER]).score)
    assert score.chrf == pytest.approx(sacrebleu.corpus_chrf(ENGLISH, [OTHER]).score)
    assert 0 < score.bleu < score.chrf < 100


def test_the_signature_says_how_it_was_counted() -> None:
    signature = bleu(ENGLISH, OTHER).signature
    assert (
        f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
        in signature
    )
    assert (
        f"chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
        in signature
    )


def test_turkish_letters_count() -> None:
    assert bleu(["küçük kediler fareleri kovalar"], ["kucuk kediler fareleri kovalar"]).bleu < 100


def test_nothing_at_all_was_said() -> None:
    assert bleu(["", ""], ["kediler fareleri kovalar", "kuş uçar"]).bleu == 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("hypotheses", "references", "error", "message"),
    [
        (["a"], ["a", "b"], ValueError, "references: expected 1 as there are hypotheses, not 2"),
        (["a", "b"], [], ValueError, "references: expected 2 as there are hypotheses, not 0"),
        ([], [], ValueError, "hypotheses: there is nothing to score"),
        ("a", ["a"], TypeError, "hypotheses: expected a list of texts, not one text"),
        (["a"], "a", TypeError, "references: expected a list of texts, not one text"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    hypotheses: list[str], references: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bleu(hypotheses, references)
