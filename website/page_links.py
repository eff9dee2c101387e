"""Where links of pages lead: on GitHub they are paths of the repository, on the site its pages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = tuple(
    map(Path, ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md"))
)
"""Documents outside docs/ that are pages of the site."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def outside_fences(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it lies outside of fenced code."""
    pieces = []
    end = 0
    for fence in FENCE.finditer(text):
        pieces += [(text[end : fence.start()], True), (fence[0], False)]
        end = fence.end()

    return [*pieces, (text[end:], True)]


def links(text: str) -> list[str]:
    """The targets of all links and pictures of a page."""
    found = []
    for piece, is_text in outside_fences(text):
        if is_text:
            prose = re.sub(r"`[^`\n]*`", "code", piece)
            found += [link[2] for link in LINK.finditer(prose)]

    return found


def is_local(link: str) -> bool:
    """Whether a link leads to a file, not to the web or a place on its own page."""
    return not re.match(r"[a-z]+:|#", link)


def target(link: str, page: Path) -> Path:
    """The path in the repository of what a link of a page leads to."""
    path = link.partition("#")[0]
    return Path(posixpath.normpath(posixpath.join(page.parent.as_posix(), path)))


def site_path(path: Path) -> str:
    """Where a file of the repository is on the site."""
    if path.parts[0] == "docs":
        return Path(*path.parts[1:]).as_posix()
    if path in PROJECT_PAGES:
        return f"project/{path.name}"
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"

    return f"source/{path.as_posix()}.txt"  # browsers show text, and download Python


def source_path(uri: str) -> Path:
    """The file of the repository behind a page of the site; the reverse of `site_path`."""
    for path in PROJECT_PAGES:
        if site_path(path) == uri:
            return path

    return Path("docs") / uri


def linked_files(pages: Iterable[Path]) -> list[Path]:
    """The files outside docs/ that pages link to and that are no pages themselves."""
    found = set()
    for page in pages:
        if not (ROOT / page).is_file():
            continue  # generated pages link only to pages

        for link in filter(is_local, links((ROOT / page).read_text(encoding="utf-8"))):
            path = target(link, page)
            outside = path.parts[0] != "docs" and path not in PROJECT_PAGES
            if outside and (ROOT / path).is_file():
                found.add(path)

    return sorted(found)


def rewrite_links(text: str, uri: str) -> str:
    """The text of a page with links that work on the site."""
    page = source_path(uri)

    def moved(found: re.Match[str]) -> str:
        link = found[2]
        if not is_local(link) or not (ROOT / target(link, page)).is_file():
            return found[0]

        path = posixpath.relpath(site_path(target(link, page)), posixpath.dirname(uri) or ".")
        anchor = "#" + link.partition("#")[2] if "#" in link else ""
        return f"{found[1]}{path}{anchor}{found[3]}"

    pieces = []
    for piece, is_text in outside_fences(text):
        pieces.append(LINK.sub(moved, piece) if is_text else piece)

    return "".join(pieces)
