"""The version does not need the metadata of an installed package."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import qkv
from qkv.evaluation import report


def test_a_report_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(report, "version", missing, raising=False)
    assert report.software_versions()["versions"]["qkv"] == qkv.__version__


def test_no_module_looks_up_its_own_metadata() -> None:
    """importlib.metadata.version("qkv") raises if qkv is not installed."""
    lookup = re.compile(r"\b(version|distribution|metadata)\(\s*[\"']qkv[\"']")
    files = Path(qkv.__file__).parent.parent.rglob("*.py")
    assert not [str(file) for file in files if lookup.search(file.read_text(encoding="utf-8"))]
