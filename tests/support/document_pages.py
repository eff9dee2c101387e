"""The pages of the documentation, with their code blocks, links and anchors."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page_paths() -> list[Path]:
    """Every document of the repository, relative to it."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("benchmarks/*.md")]
    paths += ROOT.glob("docs/**/*.md")
    return sorted(path.relative_to(ROOT) for path in paths)


def read_page(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code of the blocks of a language, in their order."""
    return [found[2] for found in FENCE.finditer(text) if found[1] == language]


def languages(text: str) -> set[str]:
    return {found[1] for found in FENCE.finditer(text)}


def links(text: str) -> list[str]:
    """The targets of links in the prose of a page."""
    prose = re.sub(r"`[^`\n]*`", "code", FENCE.sub("", text))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site make them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1

    return names


def dead_links(path: Path) -> list[str]:
    """The links of a page that lead to no file, or to a heading that is not there."""
    dead = []
    for link in links(read_page(path)):
        if re.match(r"[a-z]+:", link):
            continue  # the web is not asked

        file, _, anchor = link.partition("#")
        found = path
        if file:
            found = Path(posixpath.normpath(posixpath.join(path.parent.as_posix(), file)))

        if not (ROOT / found).exists() or (anchor and anchor not in anchors(read_page(found))):
            dead.append(link)

    return dead
