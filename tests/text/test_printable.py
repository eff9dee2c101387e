from __future__ import annotations

from rich.cells import cell_len

from qkv.text.printable import printable, shortened


def test_signs_that_command_a_terminal_are_shown_as_unknown() -> None:
    assert printable("a\x1b[31mred\x07\x9b2J\tb\n") == "a\ufffd[31mred\ufffd\ufffd2J\tb\n"


def test_a_text_is_cut_by_the_room_it_takes() -> None:
    assert shortened(" two\n lines ", 20) == "two lines"
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert shortened("東京タワー", 6) == "東京 …"  # half a letter is none
    assert cell_len(shortened("東" * 10_000, 7)) == 7
