"""Notebooks as pages: their text and code, without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

BADGE = re.compile(r"\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)\n*")
"""An image from the web, which the site does not load."""


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(BADGE.sub("", source))
        else:
            parts.append(f"```python\n{source}\n```")

    return "\n\n".join(parts) + "\n"
