from __future__ import annotations

from rich.cells import cell_len

from qkv.text.printable import printable, shortened


def test_control_characters_are_replaced() -> None:
    assert printable("a\x1b[31mred\x07\x9b2J\tb\n") == "a\ufffd[31mred\ufffd\ufffd2J\tb\n"


def test_a_text_is_cut_by_its_width_in_cells() -> None:
    assert shortened(" two\n lines ", 20) == "two lines"
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert shortened("東京タワー", 6) == "東京 …"  # half a letter is none
    assert cell_len(shortened("東" * 10_000, 7)) == 7


def test_directional_marks_and_surrogates_are_replaced() -> None:
    turning = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    for sign in (*turning, "\u2028", "\u2029", "\ud800", "\udfff", "\ufffe", "\uffff"):
        assert printable(f"a{sign}b") == "a\ufffdb"
        assert sign not in shortened(f"a{sign}b", 20)


def test_every_language_stays_as_it_is() -> None:
    """Joiners of Persian and emoji, spaces of French and Chinese, combining marks, and others."""
    for text in (
        "می\u200cخواهم",
        "\U0001f469\u200d\U0001f680",
        "« oui\u202f»",
        "東\u3000京",
        "e\u0301",
        "\U0001fae8",
        "a\tb\n",
    ):
        assert printable(text) == text
