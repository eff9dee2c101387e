"""The lexicon of the English-Turkish grammar: nouns, verbs and adjectives.

Every verb takes its object in the accusative in Turkish, and no English form belongs to two words
or two tenses: an English sentence has exactly one translation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Class = Literal["person", "animal", "food", "thing"]
BEING: tuple[Class, ...] = ("person", "animal")
OBJECT: tuple[Class, ...] = ("food", "thing")
NOT_PERSON: tuple[Class, ...] = ("animal", *OBJECT)
ANYTHING: tuple[Class, ...] = BEING + OBJECT


class Noun(NamedTuple):
    """A noun in both languages, with the class that verbs and adjectives select."""

    english: str
    plural: str
    turkish: str
    kind: Class
    softens: bool = False
    """True if its last consonant becomes voiced before a vowel: köpek, köpeği."""


class Verb(NamedTuple):
    """A verb in both languages, with the classes of its subjects and objects."""

    english: str
    third: str
    past: str
    turkish: str
    subjects: tuple[Class, ...]
    objects: tuple[Class, ...]
    indefinite: bool
    """True if its object can be indefinite, without the accusative: bir fare gördü."""
    softens: bool = False


class Adjective(NamedTuple):
    """An adjective in both languages, with the classes of the nouns it goes with."""

    english: str
    turkish: str
    kinds: tuple[Class, ...]


NOUNS = (
    Noun("child", "children", "çocuk", "person", softens=True),
    Noun("woman", "women", "kadın", "person"),
    Noun("man", "men", "adam", "person"),
    Noun("girl", "girls", "kız", "person"),
    Noun("teacher", "teachers", "öğretmen", "person"),
    Noun("student", "students", "öğrenci", "person"),
    Noun("doctor", "doctors", "doktor", "person"),
    Noun("farmer", "farmers", "çiftçi", "person"),
    Noun("king", "kings", "kral", "person"),
    Noun("neighbour", "neighbours", "komşu", "person"),
    Noun("soldier", "soldiers", "asker", "person"),
    Noun("villager", "villagers", "köylü", "person"),
    Noun("butcher", "butchers", "kasap", "person", softens=True),
    Noun("baby", "babies", "bebek", "person", softens=True),
    Noun("cat", "cats", "kedi", "animal"),
    Noun("mouse", "mice", "fare", "animal"),
    Noun("dog", "dogs", "köpek", "animal", softens=True),
    Noun("horse", "horses", "at", "animal"),
    Noun("bird", "birds", "kuş", "animal"),
    Noun("wolf", "wolves", "kurt", "animal", softens=True),
    Noun("bear", "bears", "ayı", "animal"),
    Noun("fox", "foxes", "tilki", "animal"),
    Noun("rabbit", "rabbits", "tavşan", "animal"),
    Noun("cow", "cows", "inek", "animal", softens=True),
    Noun("goat", "goats", "keçi", "animal"),
    Noun("duck", "ducks", "ördek", "animal", softens=True),
    Noun("frog", "frogs", "kurbağa", "animal"),
    Noun("monkey", "monkeys", "maymun", "animal"),
    Noun("lamb", "lambs", "kuzu", "animal"),
    Noun("elephant", "elephants", "fil", "animal"),
    Noun("owl", "owls", "baykuş", "animal"),
    Noun("donkey", "donkeys", "eşek", "animal", softens=True),
    Noun("apple", "apples", "elma", "food"),
    Noun("pear", "pears", "armut", "food", softens=True),
    Noun("egg", "eggs", "yumurta", "food"),
    Noun("carrot", "carrots", "havuç", "food", softens=True),
    Noun("orange", "oranges", "portakal", "food"),
    Noun("cookie", "cookies", "kurabiye", "food"),
    Noun("onion", "onions", "soğan", "food"),
    Noun("grape", "grapes", "üzüm", "food"),
    Noun("book", "books", "kitap", "thing", softens=True),
    Noun("ball", "balls", "top", "thing"),
    Noun("box", "boxes", "kutu", "thing"),
    Noun("flower", "flowers", "çiçek", "thing", softens=True),
    Noun("hat", "hats", "şapka", "thing"),
    Noun("ring", "rings", "yüzük", "thing", softens=True),
    Noun("toy", "toys", "oyuncak", "thing", softens=True),
    Noun("letter", "letters", "mektup", "thing", softens=True),
    Noun("umbrella", "umbrellas", "şemsiye", "thing"),
    Noun("knife", "knives", "bıçak", "thing", softens=True),
    Noun("key", "keys", "anahtar", "thing"),
    Noun("lamp", "lamps", "lamba", "thing"),
)

VERBS = (
    Verb("chase", "chases", "chased", "kovala", BEING, BEING, True),
    Verb("see", "sees", "saw", "gör", BEING, ANYTHING, True),
    Verb("love", "loves", "loved", "sev", BEING, BEING, False),
    Verb("find", "finds", "found", "bul", BEING, ANYTHING, True),
    Verb("bite", "bites", "bit", "ısır", ("animal",), ("person", "animal", "food"), True),
    Verb("carry", "carries", "carried", "taşı", BEING, ANYTHING, True),
    Verb("catch", "catches", "caught", "yakala", BEING, BEING, True),
    Verb("hear", "hears", "heard", "duy", BEING, BEING, True),
    Verb("hide", "hides", "hid", "sakla", ("person",), OBJECT, True),
    Verb("draw", "draws", "drew", "çiz", ("person",), ANYTHING, True),
    Verb("forget", "forgets", "forgot", "unut", ("person",), ANYTHING, False),
    Verb("remember", "remembers", "remembered", "hatırla", ("person",), ANYTHING, False),
    Verb("choose", "chooses", "chose", "seç", ("person",), ANYTHING, True),
    Verb("push", "pushes", "pushed", "it", BEING, ("person", "animal", "thing"), False),
    Verb("pull", "pulls", "pulled", "çek", BEING, ("person", "animal", "thing"), False),
    Verb("wash", "washes", "washed", "yıka", ("person",), NOT_PERSON, False),
    Verb("protect", "protects", "protected", "koru", BEING, BEING, False),
    Verb("feed", "feeds", "fed", "besle", ("person",), ("animal",), True),
    Verb("sell", "sells", "sold", "sat", ("person",), NOT_PERSON, True),
    Verb("take", "takes", "took", "al", ("person",), OBJECT, True),
    Verb("bring", "brings", "brought", "getir", BEING, OBJECT, True),
    Verb("eat", "eats", "ate", "ye", BEING, ("food",), True),
    Verb("want", "wants", "wanted", "iste", BEING, OBJECT, True),
    Verb("lose", "loses", "lost", "kaybet", ("person",), ("animal", "thing"), False, softens=True),
    Verb("watch", "watches", "watched", "izle", BEING, BEING, False),
    Verb("kiss", "kisses", "kissed", "öp", ("person",), ("animal",), False),
)

ADJECTIVES = (
    Adjective("big", "büyük", ANYTHING),
    Adjective("small", "küçük", ANYTHING),
    Adjective("black", "siyah", NOT_PERSON),
    Adjective("white", "beyaz", NOT_PERSON),
    Adjective("beautiful", "güzel", ANYTHING),
    Adjective("young", "genç", BEING),
    Adjective("happy", "mutlu", BEING),
    Adjective("sad", "üzgün", BEING),
    Adjective("hungry", "aç", BEING),
    Adjective("tired", "yorgun", BEING),
    Adjective("clever", "akıllı", BEING),
    Adjective("lazy", "tembel", BEING),
    Adjective("red", "kırmızı", OBJECT),
    Adjective("green", "yeşil", OBJECT),
    Adjective("yellow", "sarı", OBJECT),
    Adjective("cheap", "ucuz", OBJECT),
    Adjective("expensive", "pahalı", OBJECT),
)
