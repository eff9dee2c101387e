"""The pages' pure modules, tested in Node without a browser: tests/web/*.test.mjs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.browser_fixtures import skip_without
from support.node import node_program

FOLDER = Path(__file__).parents[2] / "web"


def test_the_pure_modules_of_the_pages() -> None:
    node = node_program()
    if node is None:
        skip_without("Node.js")

    names = FOLDER / "module_names.mjs"
    tests = sorted(map(str, FOLDER.glob("*.test.mjs")))
    assert tests
    run = subprocess.run(
        [node, "--import", names.as_uri(), "--test", "--test-reporter=tap", *tests],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# fail 0\n" in run.stdout
