"""Chat templates run in a sandbox with limits on steps and sizes."""

from __future__ import annotations

import pytest

from qkv.text import jinja_sandbox
from qkv.text.jinja_sandbox import rendered
from support.small_hf_folders import refused

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TWICE = (
    "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}"
    "{{ twice(60) }}"
)
GROWS = "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = BODY %}{% endfor %}"
BLOCKS = (
    "{% set n = namespace(x='ab') %}"
    "{% for a in range(60) %}{% set n.x %}BODY{% endset %}{% endfor %}"
)
SQUARES = (
    "{% set n = namespace(x=3) %}{% for a in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}"
)
STEPS = "10,000 steps"
BITS = "4,096 bits"
REPEATED = "1,000,000 characters or items"
MILLION = "{% set s = 'a' * 1000000 %}"
WIDTH = "a width or count of more than 1,000,000"
TEXT = "more than 16,000,000 characters or items"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_sandbox, "MOST_STEPS", 10_000)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", STEPS),
        ("{% for a in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}", STEPS),
        (TWICE, STEPS),
        ("{{ 10 ** (10 ** 10) }}", BITS),
        (SQUARES, BITS),
        ("{{ 'ab' * 1000001 }}", REPEATED),
        ("{{ 1000001 * [0, 1] }}", REPEATED),
    ],
)
def test_a_template_that_would_run_forever(program: str, reason: str) -> None:
    with refused(f"chat_template: it does not accept these messages (...{reason}"):
        rendered(program)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("{{ '%1000000000d' % 1 }}", WIDTH),
        ("{{ '%.1000000000f' % 1 }}", WIDTH),
        ("{{ '%*d' % (1000000000, 1) }}", WIDTH),
        ("{{ '%(a)-1000000000d' % {'a': 1} }}", WIDTH),
        ("{{ '%1000000000d'|format(1) }}", WIDTH),
        ("{{ '{:>1000000000}'.format(1) }}", WIDTH),
        ("{{ '{:{}}'.format('x', 1000000000) }}", WIDTH),
        *(
            (f"{{{{ 'x'.{name}(1000000000) }}}}", WIDTH)
            for name in ("center", "ljust", "rjust", "zfill")
        ),
        ("{{ '\t'.expandtabs(1000000000) }}", WIDTH),
        ("{{ 'x'|center(1000000000) }}", WIDTH),
        ("{{ 'x'|center(width=1000000000) }}", WIDTH),
        ("{{ 'x'|indent(1000000000, true) }}", WIDTH),
        ("{{ ['x']|batch(1000000000, 0)|list }}", WIDTH),
        ("{{ ['x']|tojson(indent=1000000000) }}", WIDTH),
        ("{{ lipsum(1000000000) }}", "'lipsum' is undefined"),
        (GROWS.replace("BODY", "n.x + n.x"), TEXT),
        (GROWS.replace("BODY", "n.x ~ n.x"), TEXT),
        (GROWS.replace("BODY", "'-' ~ (n.x ~ n.x)"), TEXT),
        (GROWS.replace("BODY", "'%s%s' % (n.x, n.x)"), TEXT),
        (GROWS.replace("BODY", "'{0}{0}'.format(n.x)"), TEXT),
        (GROWS.replace("BODY", "[n.x, n.x]|join"), TEXT),
        (GROWS.replace("BODY", "''.join([n.x, n.x])"), TEXT),
        (BLOCKS.replace("BODY", "{{ n.x }}{{ n.x }}"), TEXT),
        (MILLION + "{{ s.replace('a', s) }}", TEXT),
        (MILLION + "{{ s|replace('a', s) }}", TEXT),
        (MILLION + "{% for a in range(17) %}{{ s }}{% endfor %}", TEXT),
    ],
)
def test_a_template_whose_text_would_be_huge(program: str, reason: str) -> None:
    with refused(f"chat_template: it does not accept these messages (...{reason}"):
        rendered(program)


def test_texts_of_ordinary_size_are_those_of_jinja() -> None:
    texts = (
        "{{ '%5.1f|%s|%-3d|%%' % (2.5, 'a', 7) }} {{ 7 % 4 }} "
        "{{ '%s %s'|format('a', 1700000000) }} {{ '{:>4}{:{}}'.format(1, 'b', 3) }} "
        "{{ 'x'.center(5) }}{{ 'x'|center(3) }}{{ '7'.zfill(3) }} "
        "{{ 'a\nb'|indent(2) }} {{ [1, 'b']|join(', ') }} {{ ['a', 'b']|join }} "
        "{{ 'aba'.replace('a', 'c') }} {{ 'aba'|replace('a', 'd', 1) }} "
        "{{ 1 ~ 'a' ~ none ~ (2 ~ 3) }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 1 + 2 }} "
        "{{ {'a': [1]}|tojson(indent=1) }} {{ [1, 2, 3]|batch(2)|list }} "
        "{{ m|join(', ', attribute='a') }}"
    )
    assert rendered(texts, m=[{"a": 1}, {"a": 2}]) == (
        "  2.5|a|7  |% 3 a 1700000000    1b     x   x 007 "
        "a\n  b 1, b ab cbc dba 1aNone23 ab [1, 2] 3 "
        '{\n "a": [\n  1\n ]\n} [[1, 2], [3]] 1, 2'
    )


def test_every_rendering_starts_with_all_steps() -> None:
    """A rendering that failed does not leave fewer steps for the next."""
    loop = "{% for a in range(n) %}{% endfor %}done"
    for _ in range(3):
        assert rendered(loop, n=9_990) == "done"

    with pytest.raises(ValueError, match=STEPS):
        rendered(loop + loop, n=9_990)

    assert rendered(loop, n=9_990) == "done"


def test_loops_are_those_of_jinja() -> None:
    """Counting steps changes nothing that a template can observe."""
    loops = (
        "{% for a in x if a != 2 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
        "{{ loop.previtem }}{{ loop.nextitem }}{{ a }} {% else %}none{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
        "{% for a in nothing %}{{ a }}{% else %} none{% endfor %}{{ 3 * 2 ** 5 }}{{ '-' * 3 }}"
    )
    assert rendered(loops, x=[1, 2, 3]) == "1/2False31 2/2True13 a1 none96---"
