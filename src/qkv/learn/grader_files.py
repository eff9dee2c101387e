"""Results for graders: JSON and JUnit XML, with an entry for every check of an exercise.

The JSON is an object with `passed` (whether all checks of all exercises passed) and `exercises`, a
list. Each has `name`, `number`, `title`, `file`, `state` ("passed", "failed" or "open"), `held` and
`total` (numbers of checks), `error` (why no check could run, or ""), `printed` (the beginning of
the output) and `checks`. Each check has `part`, `title`, `state`, `message` and `examples`, tables
with `title`, `header` and `rows`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from qkv.learn.course import Exercise, find_exercise
from qkv.learn.run_checks import CheckResult, Report, checks_of

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no place for."""


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """The results as an object for JSON."""
    exercises = []
    for report in reports:
        exercise = find_exercise(report.exercise)
        checks = all_results(exercise, report)
        exercises.append(
            {
                "name": exercise.name,
                "number": exercise.number,
                "title": exercise.title,
                "file": f"{exercise.stem}.py",
                "state": report.state,
                "held": report.held,
                "total": len(checks),
                "error": report.error,
                "printed": report.printed,
                "checks": [asdict(check) for check in checks],
            }
        )

    passed = all(report.state == "passed" for report in reports)
    return {"passed": passed, "exercises": exercises}


def all_results(exercise: Exercise, report: Report) -> tuple[CheckResult, ...]:
    """A result for every check, also if none could run: graders count them."""
    if not report.error:
        return report.results

    results = []
    for function in checks_of(exercise):
        part, title = function.__dict__["check"]
        results.append(CheckResult(part, title, "failed", report.error))

    return tuple(results)


def as_junit(reports: Sequence[Report]) -> str:
    """The results as JUnit XML: a test suite for each exercise, a test case for each check."""
    suites = ElementTree.Element("testsuites", name="qkv learn")
    for report in reports:
        exercise = find_exercise(report.exercise)
        results = all_results(exercise, report)
        failures = sum(result.state != "passed" for result in results)
        errors = failures if report.error else 0
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=exercise.stem,
            tests=str(len(results)),
            failures=str(failures - errors),
            errors=str(errors),
            skipped="0",
        )
        for result in results:
            add_case(suite, exercise, result, bool(report.error))

        if report.printed:
            ElementTree.SubElement(suite, "system-out").text = clean(report.printed)

    ElementTree.indent(suites)
    body = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def add_case(
    suite: ElementTree.Element, exercise: Exercise, result: CheckResult, is_error: bool
) -> None:
    """A test case; a check that is still open counts as failed."""
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"{exercise.stem}.{result.part}",
        name=clean(f"{result.part}: {result.title}"),
    )
    if result.state == "passed":
        return

    kind = "error" if is_error else "failure"
    message = clean(result.message)
    failure = ElementTree.SubElement(case, kind, message=message, type=result.state)
    failure.text = clean("\n".join([result.message, *map(table_text, result.examples)]))


def table_text(example: Any) -> str:
    """A table as plain text."""
    rows = [example.header, *example.rows] if example.header else list(example.rows)
    lines = [example.title]
    for row in rows:
        lines.append("\t".join(row))

    return "\n".join(lines)


def clean(text: str) -> str:
    """The text with � in place of characters that XML cannot hold."""
    return NOT_XML.sub("\ufffd", text)
