"""The experiments: one file each, `NAME_lab.py`, which defines `EXPERIMENT`."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from pathlib import Path

from qkv.lab.experiment import Experiment
from qkv.plugins import is_plugin, load_object

ENDING = "_lab"


@cache
def modules() -> dict[str, str]:
    """The module of each experiment, by name, in the order of the folders."""
    folder = Path(__file__).parent
    found = {}
    for path in sorted(folder.glob(f"*/*{ENDING}.py")):
        name = path.stem.removesuffix(ENDING).replace("_", "-")
        found[name] = f"{__name__}.{path.parent.name}.{path.stem}"

    return found


def find(spec: str) -> Experiment:
    """The experiment of a name, or of a file of one's own.

    Args:
        spec: The name, as "scaling"; or "mine.py:MINE" for an `Experiment` that a file defines.

    Returns:
        The experiment.

    Raises:
        ValueError: If there is no such experiment.

    Example:
        >>> from qkv.lab import find
        >>> find("lookup").name
        'lookup'
    """
    if is_plugin(spec):
        experiment = load_object(spec, "name")
        if not isinstance(experiment, Experiment):
            raise ValueError(f"name: {spec} is not a qkv.lab.Experiment")

        return experiment

    if spec not in modules():
        close = difflib.get_close_matches(spec, modules(), n=1)
        hint = "qkv lab lists all"
        if close:
            hint = f"did you mean {close[0]}?"

        raise ValueError(f"name: there is no experiment {spec!r}; {hint}")

    found: Experiment = import_module(modules()[spec]).EXPERIMENT
    return found


def every_experiment() -> list[Experiment]:
    """All experiments of the package."""
    return [find(name) for name in modules()]
