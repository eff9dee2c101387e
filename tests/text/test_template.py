"""A chat template is a program from someone else's file: it cannot run for ever."""

from __future__ import annotations

import re

import pytest

from qkv.text import template
from qkv.text.template import rendered

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TWICE = "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}"
STEPS, BITS, REPEATED = "10,000 steps", "4,096 bits", "1,000,000 characters or items"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MOST_STEPS", 10_000)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", STEPS),
        ("{% for a in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}", STEPS),
        (TWICE, STEPS),
        ("{{ 10 ** (10 ** 10) }}", BITS),
        ("{% set n = namespace(x=3) %}{% for a in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}", BITS),
        ("{{ 'ab' * 1000001 }}", REPEATED),
        ("{{ 1000001 * [0, 1] }}", REPEATED),
    ],
)
def test_a_template_that_would_run_for_ever_is_refused(program: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape("chat_template: it does not take these messages (") + f".*{reason}"):
        rendered(program)


def test_each_rendering_has_all_its_steps() -> None:
    """What was refused before takes nothing from the next."""
    loop = "{% for a in range(n) %}{% endfor %}done"
    for _ in range(3):
        assert rendered(loop, n=9_990) == "done"
    with pytest.raises(ValueError, match=STEPS):
        rendered(loop + loop, n=9_990)
    assert rendered(loop, n=9_990) == "done"


def test_loops_are_those_of_jinja() -> None:
    """The counting of steps changes nothing that a template can see."""
    loops = (
        "{% for a in x if a != 2 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.previtem }}"
        "{{ loop.nextitem }}{{ a }} {% else %}none{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
        "{% for a in nothing %}{{ a }}{% else %} none{% endfor %}{{ 3 * 2 ** 5 }}{{ '-' * 3 }}"
    )
    assert rendered(loops, x=[1, 2, 3]) == "1/2False31 2/2True13 a1 none96---"
