"""The verdicts of a folder of results as a table in Markdown.

`python -m qkv.lab.report.verdict_table book docs/experiments` prints one table for both folders.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qkv.lab.report.result_files import read_result

HEAD = """| experiment | claim | size | verdict | check | effect [95% interval] | n | minutes |
|---|---|---|---|---|---|---|---|"""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results one level below a folder, in the order of the folders' names."""
    results = map(read_result, sorted(folder.iterdir()))
    return [result for result in results if result is not None]


def verdict_rows(results: Iterable[dict[str, Any]]) -> list[str]:
    """A row for each check; the experiment, its claim and its verdict stand in its first row."""
    rows = []
    for result in results:
        lead = f"{result['name']} | {result['claim']} | {result['size']} | **{result['verdict']}**"
        minutes = f"{result.get('minutes', '')}"
        for finding in result["findings"]:
            effect = finding["effect"]
            interval = f"{effect['mean']:.3g}"
            if effect["low"] is not None and not finding["exact"]:
                interval += f" [{effect['low']:.3g}, {effect['high']:.3g}]"

            check = f"{finding['verdict']}: {finding['says']}"
            rows.append(f"| {lead} | {check} | {interval} | {effect['units']} | {minutes} |")
            lead = " | | | "
            minutes = ""

    return rows


if __name__ == "__main__":
    print(HEAD)
    for name in sys.argv[1:]:
        for row in verdict_rows(read_results(Path(name))):
            print(row)
