"""Links between documents lead somewhere; no page loads anything from the network."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from qkv.learn.course import course
from support.document_pages import ROOT, anchors, dead_links, links, page_paths, read_page

PAGES = page_paths()


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_and_anchors_lead_somewhere(path: Path) -> None:
    assert dead_links(path) == []


def test_a_dead_link_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[a](README.md) [b](missing.md) [c](README.md#set-up) [d](README.md#no) [e](#here)\n# H"
    monkeypatch.setattr(
        "support.document_pages.read_page",
        lambda path: text if path.name == "made.md" else read_page(path),
    )
    assert dead_links(Path("made.md")) == ["missing.md", "README.md#no", "#here"]


def test_anchors_are_those_of_github() -> None:
    headings = "# The lab: every claim, `measured`\n## A\n## A\n```sh\n# no heading\n```\n"
    assert anchors(headings) == {"the-lab-every-claim-measured", "a", "a-1"}


def test_every_page_of_docs_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    missing = []
    for path in (ROOT / "docs").rglob("*.md"):
        uri = path.relative_to(ROOT / "docs").as_posix()
        if not re.search(rf"[ :]{re.escape(uri)}$", navigation, re.MULTILINE):
            missing.append(uri)

    assert missing == []


def test_every_exercise_has_a_page_that_shows_it() -> None:
    for exercise in course().values():
        name = exercise.name.replace("_", "-")
        text = read_page(Path(f"docs/learn/{exercise.number:02}-{name}.md"))
        assert f"```exercise\n{exercise.name}\n```" in text


def test_sixteen_ideas_have_formula_code_and_picture() -> None:
    pages = sorted((ROOT / "docs" / "learn").glob("[01]*.md"))
    scripts = (ROOT / "docs" / "assets" / "pictures.js").read_text(encoding="utf-8")
    assert len(pages) == 16
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for part in ("\n$$\n", "```library\n", "```python\n", "```exercise\n", "```picture\n"):
            assert part in text, (page.name, part)

        (picture,) = re.findall(r"```picture\n(.*)\n```", text)
        assert re.search(rf'\b"?{picture}"?[,:]', scripts.rpartition("return {")[2]), picture


def test_the_site_loads_nothing_from_the_network() -> None:
    for path in (ROOT / "docs" / "assets").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text, path.name

    for path in PAGES:
        images = [link for link in links(read_page(path)) if link.endswith((".png", ".svg"))]
        assert not [link for link in images if link.startswith("http")], path


def test_the_readme_keeps_its_two_commands_and_one_screen_a_room() -> None:
    text = read_page(Path("README.md"))
    assert "\nmake demo " in text
    assert "\nmake test " in text
    rooms = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    names = [room.partition("\n")[0] for room in rooms]
    wanted = [
        "Learn",
        "Train",
        "Generate",
        "Fine-tune",
        "Evaluate",
        "Look",
        "Probe",
        "Lab",
        "Serve",
    ]
    assert [name for name in names if name in wanted] == wanted
    assert max(room.count("\n") for room in rooms) <= 40
    assert not [name for name, room in zip(names, rooms, strict=True) if "](" not in room]


def test_every_package_of_the_docs_extra_is_pinned() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for requirement in extras["project"]["optional-dependencies"]["docs"]:
        assert f"\n{requirement.partition('>')[0]}==" in pins
