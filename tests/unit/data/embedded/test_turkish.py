"""The grammar produces correct Turkish, by rule and by hand-written sentences; its splits hold."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from qkv.data.embedded import turkish
from qkv.data.embedded.turkish import (
    NOUN_FORMS,
    TENSES,
    VERB_FORMS,
    VOWELS,
    accusative,
    alignment,
    conjugate,
    pairs,
    plural,
)
from qkv.data.embedded.turkish_lexicon import ADJECTIVES, NOUNS, VERBS

GOLDEN = {
    "cats chase mice": "kediler fareleri kovalar",
    "the cat chased the mouse": "kedi fareyi kovaladı",
    "the cat did not chase the mouse": "kedi fareyi kovalamadı",
    "the cat chases the mouse": "kedi fareyi kovalar",
    "the cats do not chase the mice": "kediler fareleri kovalamaz",
    "the cat will chase a small mouse": "kedi küçük bir fare kovalayacak",
    "the cat will not chase the small mouse": "kedi küçük fareyi kovalamayacak",
    "a hungry wolf sees a white lamb": "aç bir kurt beyaz bir kuzu görür",
    "the child saw the wolf": "çocuk kurdu gördü",
    "the wolf saw the child": "kurt çocuğu gördü",
    "the teacher does not see the students": "öğretmen öğrencileri görmez",
    "women will see the king": "kadınlar kralı görecek",
    "the farmer feeds the cow": "çiftçi ineği besler",
    "the farmers will not feed the horses": "çiftçiler atları beslemeyecek",
    "the young woman loved the clever doctor": "genç kadın akıllı doktoru sevdi",
    "the man does not love the neighbour": "adam komşuyu sevmez",
    "the dog found the red ball": "köpek kırmızı topu buldu",
    "dogs find balls": "köpekler topları bulur",
    "the monkey will find an orange": "maymun bir portakal bulacak",
    "the big dog bit the butcher": "büyük köpek kasabı ısırdı",
    "foxes bite ducks": "tilkiler ördekleri ısırır",
    "an elephant carried the tired donkey": "bir fil yorgun eşeği taşıdı",
    "the donkey will carry the boxes": "eşek kutuları taşıyacak",
    "the soldier catches the rabbit": "asker tavşanı yakalar",
    "the baby heard the birds": "bebek kuşları duydu",
    "the owls will hear the frog": "baykuşlar kurbağayı duyacak",
    "the girl hid the letter": "kız mektubu sakladı",
    "the girl draws the flower": "kız çiçeği çizer",
    "the students forgot the book": "öğrenciler kitabı unuttu",
    "students forget books": "öğrenciler kitapları unutur",
    "the villager remembers the bear": "köylü ayıyı hatırlar",
    "the lazy men will not remember the villager": "tembel adamlar köylüyü hatırlamayacak",
    "the king chose the expensive ring": "kral pahalı yüzüğü seçti",
    "the goat pushed the box": "keçi kutuyu itti",
    "the horses pull the lamps": "atlar lambaları çeker",
    "the children washed the carrot": "çocuklar havucu yıkadı",
    "a bear protects the goats": "bir ayı keçileri korur",
    "the butcher sold the pear": "kasap armudu sattı",
    "the butcher does not sell eggs": "kasap yumurtaları satmaz",
    "the doctor takes the knife": "doktor bıçağı alır",
    "the doctor took an umbrella": "doktor bir şemsiye aldı",
    "the cow did not bring the hat": "inek şapkayı getirmedi",
    "the monkeys eat the grapes": "maymunlar üzümleri yer",
    "the child will eat an apple": "çocuk bir elma yiyecek",
    "the child will not eat the onion": "çocuk soğanı yemeyecek",
    "babies want the yellow toy": "bebekler sarı oyuncağı ister",
    "the baby will want a cookie": "bebek bir kurabiye isteyecek",
    "the teacher lost the key": "öğretmen anahtarı kaybetti",
    "the teacher loses the keys": "öğretmen anahtarları kaybeder",
    "the sad teacher will lose the green umbrella": "üzgün öğretmen yeşil şemsiyeyi kaybedecek",
    "the happy duck watched the fox": "mutlu ördek tilkiyi izledi",
    "girls will kiss the beautiful cat": "kızlar güzel kediyi öpecek",
    "the girl kissed the frog": "kız kurbağayı öptü",
}


def words(sentences: list[str]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in sentence.split())


@pytest.mark.parametrize("english", GOLDEN)
def test_sentences_written_down_by_hand(english: str) -> None:
    assert turkish.translate(english) == GOLDEN[english]


def test_the_lectures_sentence_comes_first() -> None:
    lecture = ("cats chase mice", "kediler fareleri kovalar")
    assert pairs("valid")[0] == lecture
    assert lecture not in pairs("train") + pairs("test")


# Endings of words that are not in the lexicon as well


@pytest.mark.parametrize(
    ("noun", "softens", "many", "one_as_object"),
    [
        ("ev", False, "evler", "evi"),
        ("okul", False, "okullar", "okulu"),
        ("göl", False, "göller", "gölü"),
        ("ağaç", True, "ağaçlar", "ağacı"),
        ("köprü", False, "köprüler", "köprüyü"),
        ("radyo", False, "radyolar", "radyoyu"),
        ("kapı", False, "kapılar", "kapıyı"),
        ("bardak", True, "bardaklar", "bardağı"),
        ("dolap", True, "dolaplar", "dolabı"),
        ("kanat", True, "kanatlar", "kanadı"),
    ],
)
def test_endings_of_nouns(noun: str, softens: bool, many: str, one_as_object: str) -> None:
    assert plural(noun) == many
    assert accusative(noun, softens) == one_as_object


@pytest.mark.parametrize(
    ("stem", "softens", "forms"),
    [
        ("gel", False, "gelir geldi gelecek gelmez gelmedi gelmeyecek"),
        ("oku", False, "okur okudu okuyacak okumaz okumadı okumayacak"),
        ("yürü", False, "yürür yürüdü yürüyecek yürümez yürümedi yürümeyecek"),
        ("konuş", False, "konuşur konuştu konuşacak konuşmaz konuşmadı konuşmayacak"),
        ("yap", False, "yapar yaptı yapacak yapmaz yapmadı yapmayacak"),
        ("git", True, "gider gitti gidecek gitmez gitmedi gitmeyecek"),
        ("de", False, "der dedi diyecek demez demedi demeyecek"),
        ("öldür", False, "öldürür öldürdü öldürecek öldürmez öldürmedi öldürmeyecek"),
    ],
)
def test_endings_of_verbs(stem: str, softens: bool, forms: str) -> None:
    conjugated = [
        conjugate(stem, tense, negative, softens) for negative in (False, True) for tense in TENSES
    ]
    assert conjugated == forms.split()


# Vowel harmony over all forms, by the rule and not by the code under test


def endings() -> list[tuple[str, str]]:
    """The stem and the ending of every form; a softened consonant is part of the stem."""
    nouns = [
        (noun.turkish, NOUN_FORMS[noun.english, many, is_object])
        for noun in NOUNS
        for many in (False, True)
        for is_object in (False, True)
    ]
    verbs = [
        (verb.turkish, VERB_FORMS[verb.english, tense, no])
        for verb in VERBS
        for tense in TENSES
        for no in (0, 1)
    ]
    return [(form[: len(stem)], form[len(stem) :]) for stem, form in nouns + verbs]


def test_front_follows_front_and_back_follows_back() -> None:
    for stem, ending in endings():
        sounds = [letter for letter in stem + ending if letter in VOWELS]
        in_stem = sum(letter in VOWELS for letter in stem)
        for before, after in zip(sounds[in_stem - 1 :], sounds[in_stem:], strict=False):
            assert (before in "eiöü") == (after in "eiöü"), stem + ending


def test_narrow_vowels_of_endings_are_as_round_as_the_vowel_before() -> None:
    vowels = set()
    for stem, ending in endings():
        sounds = [letter for letter in stem + ending if letter in VOWELS]
        in_stem = sum(letter in VOWELS for letter in stem)
        for before, after in zip(sounds[in_stem - 1 :], sounds[in_stem:], strict=False):
            vowels.add(after)
            assert after not in "oö", stem + ending
            if after in "ıiuü":
                assert (before in "ouöü") == (after in "uü"), stem + ending
    assert vowels == set("aeıiuü")


def test_sounds_that_never_meet() -> None:
    for stem, ending in endings():
        form = stem + ending
        assert not any(one in VOWELS and two in VOWELS for one, two in pairwise(form)), form
        if ending.startswith("d"):
            assert stem[-1] not in "fstkçşhp", form
        if ending.startswith("t"):
            assert stem[-1] in "fstkçşhp", form


def test_softened_consonants_stand_before_vowels_only() -> None:
    for noun in (noun for noun in NOUNS if noun.softens):
        softened = noun.turkish[:-1] + {"k": "ğ", "p": "b", "ç": "c", "t": "d"}[noun.turkish[-1]]
        assert NOUN_FORMS[noun.english, False, True][:-1] == softened
        for many, is_object in ((False, False), (True, False), (True, True)):
            assert NOUN_FORMS[noun.english, many, is_object].startswith(noun.turkish)


# The lexicon


def test_the_lexicon_is_large_enough() -> None:
    assert sum(noun.kind in ("person", "animal") for noun in NOUNS) >= 24
    assert sum(noun.kind in ("food", "thing") for noun in NOUNS) >= 16
    assert len(VERBS) >= 20
    assert len(ADJECTIVES) >= 12


def test_no_english_form_has_two_meanings() -> None:
    forms = Counter(form for noun in NOUNS for form in (noun.english, noun.plural))
    forms.update(form for verb in VERBS for form in (verb.english, verb.third, verb.past))
    forms.update(adjective.english for adjective in ADJECTIVES)
    forms.update(["the", "a", "an", "will", "do", "does", "did", "not"])
    assert set(forms.values()) == {1}


# The splits


def test_sizes_and_distinctness() -> None:
    everything = pairs("train") + pairs("valid") + pairs("test")
    assert len(pairs("train")) >= 100_000
    assert len(pairs("valid")) == len(pairs("test")) == 2_000
    english = [source for source, _ in everything]
    assert len(set(english)) == len(english)  # so one English sentence has one translation too
    assert all(sentence == sentence.lower() for pair in everything for sentence in pair)


def test_the_parser_agrees_with_the_corpus() -> None:
    for english, target in pairs("test") + pairs("valid") + pairs("train")[::100]:
        assert turkish.translate(english) == target


def noun_verb_pairs(split: Any) -> set[tuple[str, str]]:
    nouns = {form: noun.english for noun in NOUNS for form in (noun.english, noun.plural)}
    verbs = {form: verb.english for verb in VERBS for form in (verb.english, verb.third, verb.past)}
    together = set()
    for english, _ in pairs(split):
        words = english.split()
        verb = next(verbs[word] for word in words if word in verbs)
        together |= {(nouns[word], verb) for word in words if word in nouns}
    return together


def test_the_test_split_is_compositional() -> None:
    """No noun of a test sentence occurs with its verb in training, in any role."""
    held_out = noun_verb_pairs("test")
    assert len(held_out) >= 100
    assert not held_out & noun_verb_pairs("train")
    assert not held_out & noun_verb_pairs("valid")
    assert {verb for _, verb in held_out} == {verb.english for verb in VERBS}
    assert {noun for noun, _ in held_out} == {noun.english for noun in NOUNS}


@pytest.mark.parametrize("side", [0, 1])
def test_every_word_form_occurs_often_in_training(side: int) -> None:
    train = words([pair[side] for pair in pairs("train")])
    test = words([pair[side] for pair in pairs("test") + pairs("valid")])
    assert not set(test) - set(train)
    assert min(train.values()) >= 100


def test_all_of_the_grammar_occurs() -> None:
    train = words([target for _, target in pairs("train")])
    assert set(VERB_FORMS.values()) <= set(train)
    assert {form for (_, _, is_object), form in NOUN_FORMS.items() if is_object} <= set(train)
    assert {adjective.turkish for adjective in ADJECTIVES} <= set(train)


def test_the_verb_comes_last_and_a_definite_object_has_its_ending() -> None:
    verbs = set(VERB_FORMS.values())
    objects = {form for (_, _, is_object), form in NOUN_FORMS.items() if is_object}
    english_verbs = {form for verb in VERBS for form in (verb.english, verb.third, verb.past)}
    for english, target in pairs("test"):
        words = english.split()
        *before, verb = target.split()
        verb_position = next(i for i, word in enumerate(words) if word in english_verbs)
        after_verb = words[verb_position + 1 :]
        assert verb in verbs
        assert (before[-1] in objects) == (after_verb[0] not in ("a", "an"))


# Word alignment


def test_alignment() -> None:
    assert alignment("cats chase mice") == [0, 2, 1]
    # küçük bir kedi beyaz fareyi kovalamayacak
    assert alignment("a small cat will not chase the white mouse") == [1, 0, 2, 7, 8, 5]


def test_alignment_joins_words_of_one_meaning() -> None:
    meaning = {noun.english: noun.turkish for noun in NOUNS} | {
        noun.plural: noun.turkish for noun in NOUNS
    }
    meaning |= {adjective.english: adjective.turkish for adjective in ADJECTIVES} | {
        "a": "bir",
        "an": "bir",
    }
    meaning |= {
        form: verb.turkish for verb in VERBS for form in (verb.english, verb.third, verb.past)
    }
    for english, target in pairs("test"):
        words = english.split()
        positions = alignment(english)
        assert len(set(positions)) == len(positions) == len(target.split())
        for word, position in zip(target.split(), positions, strict=True):
            stem = meaning[words[position]]
            assert word[: len(stem) - 1] == stem[:-1]


@pytest.mark.parametrize(
    ("english", "message"),
    [
        ("dragons chase mice", "expected a noun of the grammar, not 'dragons'"),
        ("cats", "expected a verb of the grammar, not ''"),
        ("cats fly mice", "expected a verb of the grammar, not 'fly'"),
        ("cats chases mice", "not a sentence of the grammar; the nearest is 'cats chase mice'"),
        ("the cat chase mice", "the nearest is 'the cat chases mice'"),
        ("cats chase mice today", "the nearest is 'cats chase mice'"),
    ],
)
def test_other_sentences_are_refused(english: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        turkish.parse(english)
