"""qkv look: attention and predictions inside a model while it reads a text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from qkv.command_line.model_opening import Machine, ModelName, float32_by_default, open_model
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.command_line.user_input import note, note_unknown, read_standard_input, read_text_or_pipe
from qkv.insight.inspect.capture import unmasked
from qkv.insight.inspect.position_encoding import position_encoding
from qkv.insight.look import FORMATS, Look, look
from qkv.insight.render import terminal
from qkv.insight.render.views import ENDINGS, View, ViewChoice

WITHOUT_ATTENTION = ("next", "lens", "norms")
"""Views that show no attention weights."""


def run(
    model: ModelName,
    text: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT [TEXT]]")
    ] = (),
    source: str | None = None,
    target: str | None = None,
    data: Path | None = None,
    view: Literal[View, "positions"] | None = None,
    kind: Literal["self", "encoder", "decoder", "cross"] | None = None,
    layer: tuple[int, ...] = (),
    head: tuple[int, ...] = (),
    words: bool = False,
    mask: Literal["causal", "none"] = "causal",
    out: Path | None = None,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """See inside a model while it reads: attention of every head, next tokens, the logit lens.

    The terminal shows one view as coloured cells; a page (.html) all views, to click and to
    search; a picture (.png, .svg, .pdf) one view, for slides; a .safetensors file the weights as
    numbers. Layers, heads and tokens are counted from 0, as in qkv edit.

    Args:
        model: The folder of a run or of transformers, a GGUF file, or smollm2 or minilm.
        text: The text to read (a BERT can take two, a translator takes the source).
        source: For a translator: the source.
        target: For a translator: the target (default: the model's translation).
        data: A file with the text.
        view: heads, an overview of all heads (the default without --layer or --head); head, its
            heat map; lines between words (each word with those it attends to most); next, the
            next tokens; lens, the prediction after each layer; norms of the residual stream and of
            gradients; numbers, the entropy and distance of each head; attribution, gradients
            beside attention; positions, the positional encoding.
        kind: For a translator: encoder, decoder or cross attention.
        layer: The layer, counted from 0; for a page the one it opens with, and for a long text
            those it contains.
        head: The head, counted from 0, or several for lines.
        words: Join the pieces of a word: attention to a word is summed over its pieces, attention
            from a word is averaged.
        mask: none removes the causal mask of a GPT, to see what it hides.
        out: Write a .html, .png, .svg, .pdf or .safetensors file instead.
        machine: Device and precision.
    """
    check_writable("out", out)
    check_not_input(out, [data] if data is not None else [], "read")
    ending = ending_of(out)
    whole = ending in (".html", ".safetensors")
    if len(layer) > 1 and not whole:
        raise ValueError(
            f"layer: one view shows one layer, not {len(layer)}; a page (--out look.html) holds "
            "several"
        )

    opened = open_model(model, float32_by_default(machine))
    if view == "positions":
        show_positions(model, opened.model, out)
        return

    texts = read_texts(text, data, source)
    note_unknown(opened.tokenizer, filter(None, [*texts, source, target]))

    # A page computes every layer and decides itself what is affordable (None).
    layers = layer or None
    attribution: bool | None = view == "attribution"
    if ending == ".html":
        layers = None
        attribution = attribution or None

    with ExitStack() as changes:
        if mask == "none":
            changes.enter_context(unmasked(opened.model))

        changes.enter_context(Console(stderr=True).status("reading the text ..."))
        result = look(
            opened.model,
            *texts,
            tokenizer=opened.tokenizer,
            source=source,
            target=target,
            layers=layers,
            at_least=layer,
            name=model,
            attention=whole or view not in WITHOUT_ATTENTION,
            lens=view == "lens" or None,
            norms=view == "norms" or None,
            attribution=attribution,
        )

    first = layer[0] if layer else None
    choice = ViewChoice(view=view, kind=kind, layer=first, head=head or None, words=words)
    show_look(result, choice, out)


def ending_of(out: Path | None) -> str | None:
    """The lower-case ending of the output file, which must be one that can be written."""
    if out is None:
        return None

    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"out: expected the name of a {', '.join(FORMATS)} file, not {out}")

    return ending


def read_texts(text: tuple[str, ...], data: Path | None, source: str | None) -> list[str]:
    """The texts of the command line, of a file, or of standard input."""
    if data is not None:
        if text:
            raise ValueError("text: a file is given as well; leave one of them out")

        return [read_text_or_pipe(data).strip()]

    if text or source is not None:
        return list(text)
    if sys.stdin.isatty():
        raise ValueError("text: expected a text to read, in quotation marks")

    return [read_standard_input().strip()]


def show_look(result: Look, choice: ViewChoice, out: Path | None) -> None:
    """Print one view, or write the file."""
    if choice.view is None and ending_of(out) in (None, *ENDINGS):
        choice = replace(choice, view=default_view(result, choice))

    if out is not None:
        print(result.save(out, **vars(choice)))
        return

    console = Console(highlight=False)
    terminal.show(result, console, choice)
    if console.is_terminal:
        note("--out look.html shows all of it, to click; --view names another view")


def default_view(result: Look, choice: ViewChoice) -> View:
    """One head if the flags choose it or there is only one, otherwise all heads."""
    heads = sum(site.depth * site.heads for site in result.attention)
    chosen = (choice.layer, choice.head, choice.kind)
    if heads == 1 or any(part is not None for part in chosen):
        return "head"
    if heads:
        return "heads"

    return "next"


def show_positions(name: str, model: Any, out: Path | None) -> None:
    """The positional encoding of the model, at the terminal or as a picture."""
    from qkv.insight.render.figures import figure_style, position_figure

    encoding = position_encoding(model)
    if out is None:
        position_figure.show(encoding, Console(highlight=False))
        return

    print(figure_style.save(lambda: position_figure.draw(encoding, name), out, "out"))
