"""BLEU and chrF against hand-counted values and sacrebleu's own functions."""

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
    """4 of 5 unigrams, 3 of 4 bigrams, 2 of 3 trigrams and 1 of 2 4-grams match."""
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu(["a b c d e"], ["a b c d f"]).bleu == pytest.approx(expected)


def test_a_short_translation_has_a_brevity_penalty() -> None:
    """All n-grams of "a b c d" match; the penalty is exp(1 - 6 / 4)."""
    assert bleu(["a b c d"], ["a b c d e f"]).bleu == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_bleu_is_of_the_corpus_and_not_a_mean_of_sentences() -> None:
    score = bleu(["a b c d e", "x y z u v w"], ["a b c d f", "x y z u v w"]).bleu
    assert score == pytest.approx(100 * (10 / 11 * 8 / 9 * 6 / 7 * 4 / 5) ** 0.25)


def test_texts_are_tokenised_by_sacrebleu() -> None:
    """sacrebleu tokenises the texts: a full stop is a token of its own."""
    score = bleu(ENGLISH, OTHER)
    assert score.bleu == pytest.approx(sacrebleu.corpus_bleu(ENGLISH, [OTHER]).score)
    assert score.chrf == pytest.approx(sacrebleu.corpus_chrf(ENGLISH, [OTHER]).score)
    assert 0 < score.bleu < score.chrf < 100


def test_the_signature_names_the_settings() -> None:
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


def test_empty_hypotheses_score_0() -> None:
    assert bleu(["", ""], ["kediler fareleri kovalar", "kuş uçar"]).bleu == 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("hypotheses", "references", "error", "message"),
    [
        (["a"], ["a", "b"], ValueError, "references: expected 1.*not 2"),
        (["a", "b"], [], ValueError, "references: expected 2.*not 0"),
        ([], [], ValueError, "hypotheses: there is nothing to score"),
        ("a", ["a"], TypeError, "hypotheses: expected a list of texts, not one text"),
        (["a"], "a", TypeError, "references: expected a list of texts, not one text"),
    ],
)
def test_invalid_input_is_refused(
    hypotheses: list[str], references: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bleu(hypotheses, references)
