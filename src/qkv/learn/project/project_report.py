"""The report page of the project: a run's curves, samples, views and scores, and her own text."""

from __future__ import annotations

import html
import math
from pathlib import Path

from qkv import artifact, storage
from qkv.artifact import Loaded
from qkv.data.sources.source import open_texts
from qkv.insight.render.figures.run_metrics import folder_of, read_run
from qkv.lab.report.lab_page import code_text, document, html_table, section
from qkv.learn.run_views import attention_views, curves, sample_table, samples, short_look
from qkv.training.setup.run_folder import read_description

TEXT = "report.md"
PROMPT_WORDS = 4
PROMPTS = 3
HOWTO = (
    "This is the place of your own text: write report.md beside this page, and its headings become "
    "the sections here."
)


def write_report(run: Path, out: Path | None = None, text: Path | None = None) -> Path:
    """Write the report page of a run.

    Args:
        run: The folder of a run of `qkv train gpt`.
        out: The page; by default report.html beside the folder of runs.
        text: Her own text in Markdown; by default report.md beside the page.

    Returns:
        The path of the page; a page of the attention of every head is beside it.

    Raises:
        ValueError: If the folder is not a run, or its model may not be loaded.
    """
    run = folder_of(Path(run))
    page = Path(out or run.parent.parent / "report.html")
    if page.suffix != ".html":
        raise ValueError(f"out: expected the name of an .html file, not {page}")

    loaded = artifact.load(run)
    if loaded.model.predicts != "next" or loaded.tokenizer is None:
        raise ValueError(f"run: {run} holds another model; expected a run of qkv train gpt")

    prompts, looked_at = first_texts(run)
    seen = short_look(loaded, looked_at, run.name)
    look_page = page.with_name(f"{page.stem}-attention.html")
    seen.save(look_page)

    link = f'<p><a href="{html.escape(look_page.name)}">Every layer and head, to explore</a></p>'
    temperatures = {"temperature 0": 0.0, "temperature 0.8": 0.8}
    columns = {name: samples(loaded, prompts, heat) for name, heat in temperatures.items()}
    title, own = own_text(text or page.with_name(TEXT))
    sections = [
        f"<header><h1>{code_text(title or run.name)}</h1></header>",
        own,
        section("Scores", numbers(scores(run)), "table"),
        section("Curves", curves(run)),
        section("Samples", sample_table(prompts, columns)),
        section("Attention", attention_views(seen) + link),
        section("The run", numbers(facts(run, loaded))),
    ]
    place = f"Project: build your own GPT · run {run.name}"
    content = "\n".join(sections)
    storage.write_text(page, document(title or run.name, place, content, {"marks": []}))

    return page


# Numbers


def scores(run: Path) -> list[list[str]]:
    """The losses and perplexities of a run."""
    measured = read_run(run, run.name, "step")
    rows = [["last training loss", f"{measured.columns['loss'][-1]:.4f}", "nats per token"]]
    if measured.best is None:
        return [*rows, ["validation", "none yet", ""]]

    loss, step = measured.best
    return [
        *rows,
        ["best validation loss", f"{loss:.4f}", f"nats per token, at step {step:,}"],
        ["perplexity", f"{math.exp(loss):.2f}", "as unsure as among this many equal tokens"],
        ["bits per token", f"{loss / math.log(2):.3f}", ""],
    ]


def facts(run: Path, loaded: Loaded) -> list[list[str]]:
    """What was trained, and how."""
    description = read_description(run)
    model = loaded.model
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    own = getattr(config, "model", None)
    code = "the library's GPT" if own is None else f"{Path(own).name}"
    options = description["run"]
    optimizer = description["optimizer"]

    return [
        ["model", code, f"{parameters:,} parameters"],
        ["sizes", f"depth {config.depth}, width {config.width}, heads {config.heads}",
         f"vocabulary {config.vocabulary:,}, context {config.context}"],
        ["data", ", ".join(Path(name).name for name in description["data"]["data"]), ""],
        ["training", read_run(run, run.name, "step").summary,
         f"{options['batch_tokens']:,} tokens a step, seed {options['seed']}"],
        ["optimizer", optimizer["optimizer"],
         f"learning rate {optimizer['learning_rate'] or 'by width'}, {optimizer['schedule']}"],
    ]  # fmt: skip


def numbers(rows: list[list[str]]) -> str:
    """A table of names, values and remarks."""
    return f'<div class="scroller book">{html_table(["", "", ""], rows)}</div>'


def first_texts(run: Path) -> tuple[list[str], str]:
    """Beginnings of the first texts of the run's data as prompts, and a text to look at."""
    data = read_description(run)["data"]
    prompts: list[str] = []
    longest = ""
    for piece in open_texts(tuple(data["data"]), column=data["column"]):
        words = piece.text.split()
        if len(words) < PROMPT_WORDS:
            continue

        longest = longest or " ".join(words[:40])
        prompts.append(" ".join(words[:PROMPT_WORDS]))
        if len(prompts) == PROMPTS:
            break

    if not prompts:
        raise ValueError(f"{run}: no text of its data has {PROMPT_WORDS} words to begin with")

    return prompts, longest


# Her own text


def own_text(path: Path) -> tuple[str, str]:
    """The title of a text in Markdown, and its sections as HTML; a hint where there is none."""
    if not path.is_file():
        return "", section("Text", f'<p class="note">{html.escape(HOWTO)}</p>')

    title = ""
    parts: list[str] = []
    heading = ""
    lines: list[str] = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), "## "]:
        if line.startswith("# ") and not title:
            title = line[2:].strip()
        elif line.startswith("## "):
            if any(lines):
                parts.append(section(heading, markdown("\n".join(lines))))

            heading = line[3:].strip()
            lines = []
        else:
            lines.append(line)

    return title, "\n".join(parts)


def markdown(text: str) -> str:
    """Paragraphs, lists, code and smaller headings; other marks stay as they are."""
    blocks = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines:
            continue
        if all(line.lstrip().startswith(("- ", "* ")) for line in lines):
            entries = "".join(f"<li>{code_text(line.lstrip()[2:])}</li>" for line in lines)
            blocks.append(f"<ul>{entries}</ul>")
        elif lines[0].startswith("### "):
            blocks.append(f"<h3>{code_text(lines[0][4:])}</h3>{markdown(chr(10).join(lines[1:]))}")
        else:
            blocks.append(f"<p>{code_text(' '.join(lines))}</p>")

    return "".join(blocks)
