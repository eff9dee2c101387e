"""What the tests of the course share."""

from __future__ import annotations

import re
import sys

import pytest


@pytest.fixture(autouse=True)
def forget_student_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported files of one test are not seen by the next, nor bytecode of a file written twice."""
    for name in list(sys.modules):
        if re.fullmatch(r"ex\d\d_\w+", name):
            monkeypatch.delitem(sys.modules, name)

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # as in the process of the checks
