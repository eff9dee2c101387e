"""Sizes of experiments and their settings."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.lab import find
from support.planted_experiment import PLANTED, SPEC


def test_settings_replace_those_of_the_size() -> None:
    size = PLANTED.size("small", 7, effect=2)
    assert size.seeds == 7
    assert size.effect == 2
    assert size.settings == {"effect": 2, "noise": 0.05, "fault": ""}
    assert PLANTED.small.seeds == 3
    assert PLANTED.size("large").seeds == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 5}, "steps: planted has no such setting; it has seeds, minutes, effect"),
        ({"effect": "much"}, "effect: expected float, such as 1.0, not 'much'"),
        ({"fault": 1}, "fault: expected str, such as '', not 1"),
        ({"seeds": 0}, "seeds: expected 1 or more, not 0"),
        ({"seeds": True}, "seeds: expected int"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PLANTED.size("small", **settings)


def test_experiments_are_found_by_name_and_by_file() -> None:
    assert find("lookup").name == "lookup"
    assert find(SPEC).claim == PLANTED.claim
    with pytest.raises(ValueError, match="there is no experiment 'lokup'; did you mean lookup"):
        find("lokup")
    with pytest.raises(ValueError, match=r"is not a qkv\.lab\.Experiment"):
        find(SPEC.replace(":PLANTED", ":ARMS"))
    with pytest.raises(ValueError, match="there is no file"):
        find("missing.py:MINE")
