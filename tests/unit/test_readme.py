"""The version is the same everywhere; tests/docs runs the README and the pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import qkv

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    assert qkv.__version__ == version
    assert (
        re.findall(
            r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
        )[0]
        == version
    )

    assert f"\nVersion {version} has " in README.read_text(encoding="utf-8")
