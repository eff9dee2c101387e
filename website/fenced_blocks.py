"""Blocks of pages that the build fills in: code, an experiment's verdict, an exercise, a picture.

A page names what it shows, so that it cannot go out of date:

    library      nn/attention/lookup.py: exact, softmax
    experiment   scaling
    exercise     lookup
    picture      lookup
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from qkv.learn.course import course
from website.library_code import library_code

RESULTS = Path(__file__).parents[1] / "docs" / "experiments"
BLOCK = re.compile(r"^```(library|experiment|exercise|picture)\n(.*?)^```$", re.M | re.DOTALL)
STYLES = {"holds": "success", "does not hold": "failure", "cannot be told": "warning"}


def fill_blocks(text: str) -> str:
    """The text of a page with its blocks filled in."""
    fill = {"library": library, "experiment": experiment, "exercise": exercise, "picture": picture}

    def one(found: re.Match[str]) -> str:
        lines = found[2].strip().splitlines()
        return "\n\n".join(fill[found[1]](line) for line in lines)

    return BLOCK.sub(one, text)


def library(line: str) -> str:
    """Code of the library, by path and names."""
    path, _, names = line.partition(":")
    code = library_code(path.strip(), [name.strip() for name in names.split(",")])
    return f'```python title="src/qkv/{path.strip()}"\n{code}\n```'


def experiment(name: str) -> str:
    """The claim, the verdict and the effects of an experiment, as they were measured."""
    path = RESULTS / name / "result.json"
    if not path.is_file():
        return f'!!! note "Experiment"\n\n    `qkv lab {name}` measures it.'

    result = json.loads(path.read_text(encoding="utf-8"))
    verdict = result["verdict"]
    minutes = max(1, round(result["minutes"]))
    unit = "minute" if minutes == 1 else "minutes"
    lines = [
        f'!!! {STYLES[verdict]} "qkv lab {name}: {verdict}"',
        "",
        f"    **{result['claim']}**",
        "",
    ]
    lines += [f"    - {finding(check)}" for check in result["findings"]]
    lines += ["", f"    {result['seeds']} seeds, {minutes} {unit}, {result['machine']}."]

    return "\n".join(lines)


def finding(check: dict[str, Any]) -> str:
    """One check of an experiment with its effect and interval."""
    effect = check.get("effect")
    numbers = ""
    if effect and effect["low"] is not None:
        numbers = f" ({effect['mean']:.3g} [{effect['low']:.3g}, {effect['high']:.3g}])"

    return f"*{check['verdict']}*: {check['says']}{numbers}"


def exercise(name: str) -> str:
    """The exercise of the course: its file, minutes and parts."""
    found = course().get(name)
    if found is None:
        return f'!!! example "Exercise: {name}"\n\n    `qkv learn` checks it.'

    parts = ", ".join(f"`{part.name}`" for part in found.parts)
    return (
        f'!!! example "Exercise {found.number}: {found.title}"\n\n'
        f"    Your file is `{found.stem}.py`; it takes about {found.minutes} minutes. You write "
        f"{parts}. `qkv learn` checks it whenever you save. Slides: {', '.join(found.slides)} "
        "([from slide to code](../lectures.md))."
    )


def picture(name: str) -> str:
    """The place of a picture that assets/pictures.js draws."""
    return (
        f'<div class="picture" data-picture="{name}">'
        "<noscript>This picture needs JavaScript.</noscript></div>"
    )
