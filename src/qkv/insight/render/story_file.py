"""A story: states of a page in their order, each with a caption, that a lecturer walks through.

    title = "How “it” finds “cat”"
    text = "The cat sat on the mat because it was tired"

    [[step]]
    caption = "All heads of the model."
    view = "heads"

What a step does not name stays as in the step before; "none" clears a choice.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.page_text import missing_views
from qkv.insight.render.views import numbered
from qkv.insight.walk.head_walk import HeadSite

VIEWS = ("walk", "model", "head", "heads", "lines", "next", "lens", "norms", "attribution")
TOP = ("title", "model", "text", "step")
"""Keys above the steps."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "scale": ("linear", "root", "log"),
    "glance": ("pattern", "entropy", "distance"),
    "theme": ("light", "dark"),
    "mean": ("layer", "all", "none"),
    "sort": ("layer", "name", "telling"),
}
ALLOWED: Mapping[str, tuple[str, ...]] = {"view": VIEWS, **CHOICES}
FLAGS = ("words", "without", "sums", "difference")
TEXTS = ("caption", "place", "edits", "only")
NUMBERS = ("layer", "head", "token", "step", "least")
HEADS = ("kept", "compare")
KEYS = ("view", "kind", *CHOICES, *FLAGS, *TEXTS, *NUMBERS, *HEADS)
CLEARED = ("token", "place", "mean", "compare", "only")
"""Keys that "none" clears."""
WALK_STEPS = 10


@dataclass(frozen=True)
class Story:
    """States of a page with captions, in their order."""

    title: str
    steps: tuple[Mapping[str, Any], ...]
    text: str | None = None
    model: str | None = None
    name: str = "story"
    """The name of the file, for errors."""

    @property
    def states(self) -> list[dict[str, Any]]:
        """What is known of each state: what a step does not name stays as before."""
        states = []
        state: dict[str, Any] = {}
        for step in self.steps:
            state = state | dict(step)
            states.append(state)

        return states

    @property
    def views(self) -> set[str]:
        """The views that the story shows."""
        return {state["view"] for state in self.states if "view" in state}

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that the story shows, each once."""
        return tuple(dict.fromkeys(step["layer"] for step in self.steps if "layer" in step))

    @property
    def walked(self) -> list[HeadSite]:
        """The heads that the story walks."""
        heads: dict[HeadSite, None] = {}
        for state in self.states:
            if state.get("view") == "walk" and "layer" in state and "head" in state:
                heads[state.get("kind"), state["layer"], state["head"]] = None

        return list(heads)


def read_story(path: Path | str) -> Story:
    """Read a story from a TOML file; an error says which step and key is wrong."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"story: no such file: {path}")

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None

    check_known(values, TOP, str(path))
    steps = values.get("step")
    if (
        not isinstance(steps, list)
        or not steps
        or not all(isinstance(step, dict) for step in steps)
    ):
        raise ValueError(f"{path}: expected one or more steps, each beginning with [[step]]")

    for name in ("title", "text", "model"):
        if not isinstance(values.get(name, ""), str):
            raise ValueError(f"{path}: {name}: expected a text in quotation marks")

    for number, step in enumerate(steps, start=1):
        try:
            check_types(step)
        except ValueError as error:
            raise ValueError(f"{path}, step {number}: {error}") from None

    title = values.get("title", path.stem)
    return Story(title, tuple(steps), values.get("text"), values.get("model"), str(path))


# What a step may say, whatever the look


def check_known(values: Mapping[str, Any], known: tuple[str, ...], place: str = "") -> None:
    """Raise if a key is unknown; the error names the nearest known one."""
    for key in values:
        if key in known:
            continue

        close = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; expected {', '.join(known)}"
        where = f"{place}: " if place else ""
        raise ValueError(f"{where}unknown key {key}{hint}")


def check_types(step: Mapping[str, Any]) -> None:
    """Raise if a key of a step is unknown or its value has the wrong type."""
    check_known(step, KEYS)
    if "caption" not in step:
        raise ValueError("expected a caption")

    for key, value in step.items():
        if value == "none" and key in CLEARED:
            continue

        expected = wrong_value(key, value)
        if expected is not None:
            raise ValueError(f"{key}: expected {expected}, not {value!r}")


def wrong_value(key: str, value: Any) -> str | None:
    """What is expected of a key instead of its value; None if the value is right."""
    expected = None
    if key in ALLOWED and value not in ALLOWED[key]:
        expected = ", ".join(ALLOWED[key])
    elif key in FLAGS and not isinstance(value, bool):
        expected = "true or false"
    elif key in (*TEXTS, "kind") and not isinstance(value, str):
        expected = "a text in quotation marks"
    elif key in NUMBERS and (isinstance(value, bool) or not isinstance(value, int)):
        expected = "a whole number"
    elif key == "compare" and not is_head(value):
        expected = "[layer, head]"
    elif key == "kept" and not is_list_of_heads(value):
        expected = "a list of [layer, head]"

    return expected


def is_list_of_heads(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_head, value))


def is_head(value: Any) -> bool:
    """True for a list of two whole numbers."""
    if not isinstance(value, list) or len(value) != 2:
        return False

    return all(isinstance(number, int) and not isinstance(number, bool) for number in value)


# What the look has


def opened_story(look: LookData, story: Story) -> dict[str, Any]:
    """The start of a page that opens with the first step of a story, and has the story.

    Raises:
        ValueError: If a step shows a view, kind, layer, head or token that the look does not have.
    """
    steps = []
    kind = look.attention[0].kind if look.attention else None
    for number, step in enumerate(story.steps, start=1):
        kind = step.get("kind", kind)
        try:
            steps.append(checked(look, step, kind))
        except ValueError as error:
            raise ValueError(f"{story.name}, step {number}: {error}") from None

    check_walks(look, story, steps)
    first = {key: value for key, value in steps[0].items() if key != "caption"}
    for key in CLEARED:
        if first.get(key) == "none":
            first[key] = None

    told = {"title": story.title, "model": story.model, "text": story.text, "steps": steps}
    return {**first, "told": 0, "story": told}


def checked(look: LookData, step: Mapping[str, Any], kind: str | None) -> dict[str, Any]:
    """A step with its numbers counted from 0; an error if the look does not have them."""
    values = dict(step)
    missing = missing_views(look)
    view = step.get("view")
    if view in missing:
        raise ValueError(f"view: {view} is not on this page. {missing[view]}")
    if "step" in step and not 1 <= step["step"] <= WALK_STEPS:
        raise ValueError(f"step: expected 1 to {WALK_STEPS}, not {step['step']}")
    if "least" in step and not 0 <= step["least"] <= 100:
        raise ValueError(f"least: expected 0 to 100 percent, not {step['least']}")

    if isinstance(step.get("token"), int):
        values["token"] = numbered("token", step["token"], longest_text(look, kind))

    if kind is None:
        return values

    attention = look.of(kind)
    for name, count in (("layer", attention.depth), ("head", attention.heads)):
        if name in step:
            values[name] = numbered(name, step[name], count)

    if "kept" in step:
        values["kept"] = [existing_head("kept", site, attention) for site in step["kept"]]
    if isinstance(step.get("compare"), list):
        values["compare"] = existing_head("compare", step["compare"], attention)

    return values


def longest_text(look: LookData, kind: str | None) -> int:
    """The number of tokens that can be chosen: queries of the attention, or tokens of the text."""
    count = len(look.reading.text.ids)
    if kind is not None:
        count = max(count, len(look.of(kind).rows.ids))

    return count


def existing_head(name: str, site: list[int], attention: CapturedAttention) -> list[int]:
    """A layer and a head, counted from 0."""
    layer, head = site
    return [
        numbered(f"{name}: layer", layer, attention.depth),
        numbered(f"{name}: head", head, attention.heads),
    ]


def check_walks(look: LookData, story: Story, steps: list[dict[str, Any]]) -> None:
    """Raise if a step walks a head whose numbers the page does not have."""
    walked = set()
    for _, layer, head in look.walks or {}:
        walked.add((layer, head))

    state: dict[str, Any] = {}
    for number, step in enumerate(steps, start=1):
        state = state | step
        site = (state.get("layer"), state.get("head"))
        if state.get("view") != "walk" or None in site or site in walked:
            continue

        raise ValueError(
            f"{story.name}, step {number}: this look has no walk of layer {site[0]}, head "
            f"{site[1]}; look again with walked=[(None, {site[0]}, {site[1]})]"
        )
