"""JSON and JUnit XML: an entry for every check, whatever the student's code says."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from qkv.learn.course import find_exercise
from qkv.learn.expectations import FailingExample
from qkv.learn.grader_files import as_json, as_junit
from qkv.learn.run_checks import CheckResult, Report, checks_of

EVIL = "\x00\x1b]]> <b a='\"'>&amp; \ud800 \uffff ä"
RESULTS = (
    CheckResult("exact", "The value", "passed"),
    CheckResult("top", "The mean", "failed", EVIL, (FailingExample(EVIL, ((EVIL, "1"),)),)),
    CheckResult("learns", "Which", "open", "not written yet"),
)
REPORT = Report("lookup", RESULTS, printed=EVIL)
BROKEN = Report("lookup", (), "ex01_lookup.py, line 1: Python cannot read this")
TOTAL = len(checks_of(find_exercise("lookup")))


def test_json_has_the_documented_keys() -> None:
    result = json.loads(json.dumps(as_json([REPORT, BROKEN])))
    assert result["passed"] is False
    first, second = result["exercises"]
    assert (first["name"], first["number"], first["file"]) == ("lookup", 1, "ex01_lookup.py")
    assert (first["state"], first["held"], first["total"]) == ("failed", 1, 3)
    assert [check["state"] for check in first["checks"]] == ["passed", "failed", "open"]
    assert first["checks"][1]["examples"][0]["rows"] == [[EVIL, "1"]]
    assert second["error"] == BROKEN.error
    assert second["total"] == TOTAL == len(second["checks"])


def test_all_passed_is_passed() -> None:
    assert as_json([Report("lookup", RESULTS[:1])])["passed"] is True
    assert as_json([Report("lookup", RESULTS[:1]), BROKEN])["passed"] is False


def test_junit_is_valid_and_counts() -> None:
    suites = ElementTree.fromstring(as_junit([REPORT, BROKEN]).encode("utf-8"))
    first, second = suites.findall("testsuite")
    assert first.attrib["tests"] == "3"
    assert (first.attrib["failures"], first.attrib["errors"]) == ("2", "0")
    cases = first.findall("testcase")
    assert [case.attrib["name"] for case in cases] == [
        "exact: The value",
        "top: The mean",
        "learns: Which",
    ]
    assert cases[0].find("failure") is None
    message = cases[1].find("failure").attrib["message"]
    assert "<b a='\"'>&amp;" in message
    assert "\x1b" not in message
    assert cases[2].find("failure").attrib["type"] == "open"

    assert second.attrib["errors"] == str(TOTAL)
    assert len(second.findall("testcase/error")) == TOTAL
