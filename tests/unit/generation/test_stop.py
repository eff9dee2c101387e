"""The rule that ends a sequence."""

from __future__ import annotations

import pytest

from qkv.generation.stop import Reason, StopRule


@pytest.mark.parametrize(
    ("token", "stops", "rule", "reason"),
    [
        (9, True, StopRule((8, 9), 1, 1), "end"),
        (5, True, StopRule((9,), 1, 1), "stop"),
        (5, False, StopRule((9,), 1, 1), "length"),
        (5, False, StopRule((9,), 2, 2), "context"),
        (5, False, StopRule((9,), 2, 3), None),
        (5, False, StopRule((), 2, None), None),
    ],
)
def test_the_first_of_several_reasons(
    token: int, stops: bool, rule: StopRule, reason: Reason | None
) -> None:
    """A prompt of two tokens gets its first new token; an end id is not part of the sequence."""
    sequence = [1, 2]
    seen: list[int] = []

    def stopped(new: int) -> bool:
        assert sequence[-1] == new
        seen.append(new)
        return stops

    assert rule.append(sequence, token, 2, stopped) == reason
    assert sequence == ([1, 2] if reason == "end" else [1, 2, token])
    assert seen == sequence[2:]
