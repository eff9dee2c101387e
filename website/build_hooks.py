"""The hooks of mkdocs: pages are completed before they are rendered, formulas after."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
for folder in (ROOT, ROOT / "src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from website.fenced_blocks import fill_blocks  # noqa: E402
from website.formulas import as_mathml  # noqa: E402
from website.notebook_pages import notebook_page  # noqa: E402
from website.page_links import PROJECT_PAGES, linked_files, rewrite_links, site_path  # noqa: E402
from website.reference import reference_pages  # noqa: E402

QUIZ = "learn/quiz.html"


def on_files(files: Files, config: Any) -> Files:
    """Add the reference, the documents of the repository and the files that pages link to."""
    texts: dict[str, str] = dict(reference_pages())
    for path in PROJECT_PAGES:
        texts[site_path(path)] = (ROOT / path).read_text(encoding="utf-8")

    sources = [Path("docs") / file.src_uri for file in files.documentation_pages()]
    for path in linked_files([*sources, *PROJECT_PAGES]):
        if path.suffix == ".ipynb":
            texts[site_path(path)] = notebook_page(ROOT / path)
        else:
            texts[site_path(path)] = (ROOT / path).read_text(encoding="utf-8")

    quiz = quiz_page_html()
    if quiz is not None:
        texts[QUIZ] = quiz

    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))

    return files


def quiz_page_html() -> str | None:
    """The quiz of the course as a page of its own; None where the course has no quiz."""
    if find_spec("qkv.learn.quiz") is None:
        return None

    pages = import_module("qkv.learn.quiz.quiz_page")
    files = import_module("qkv.learn.quiz.quiz_files")
    return str(pages.quiz_page(files.questions()))


def on_page_markdown(markdown: str, page: Page, files: Files, **others: Any) -> str:
    """Fill in code and verdicts, and let links out of docs/ lead to the copies on the site."""
    if page.file.src_uri == "learn/index.md" and files.get_file_from_path(QUIZ) is not None:
        markdown += "\n[Test your knowledge](quiz.html): questions with explained answers.\n"

    return rewrite_links(fill_blocks(markdown), page.file.src_uri)


def on_page_content(html: str, **others: Any) -> str:
    """Turn formulas into MathML, which browsers draw without a script."""
    return as_mathml(html)
