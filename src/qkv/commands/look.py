"""qkv look: what happens inside a model while it reads a text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    check_not_read,
    check_place,
    finely,
    note,
    note_unknown,
    open_model,
    read_text,
    standard_input,
)
from qkv.insight.inspect import position_encoding
from qkv.insight.inspect.capture import unmasked
from qkv.insight.look import FORMATS, Look, look
from qkv.insight.render import terminal
from qkv.insight.render.figures import figure_style
from qkv.insight.render.views import View
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer


def run(
    model: ModelName,
    text: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT [TEXT]]")
    ] = (),
    source: str | None = None,
    target: str | None = None,
    data: Path | None = None,
    view: View | Literal["positions"] | None = None,
    kind: Literal["self", "encoder", "decoder", "cross"] | None = None,
    layer: tuple[int, ...] = (),
    head: tuple[int, ...] = (),
    words: bool = False,
    mask: Literal["causal", "none"] = "causal",
    out: Path | None = None,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """See a model read: attention of every layer and head, what comes next, the prediction after
    every layer.

    At the terminal one view, as coloured cells; as a page (.html) all of them, to click and to
    search; as a picture (.png, .svg, .pdf) one view, for slides; as numbers (.safetensors) the
    weights. Layers, heads and tokens are counted from 0, as in qkv edit.

    Args: model: The folder of a run or of transformers, a GGUF file, or smollm2 or minilm. text:
        The text to read; of a BERT perhaps two; of a translator the source. source: Of a
        translator: what it reads. target: Of a translator: what it says; its own translation unless
        given. data: A file with the text. view: heads, all at a glance, unless a layer or a head is
        named; head, its heat map; lines between words (each word with those it looks at most); the
        next tokens; the prediction after each layer (the lens); norms of the residual stream and of
        gradients; numbers, a head's entropy and distance; attribution, gradients beside attention;
        the positional encoding. kind: Of a translator: encoder, decoder or cross attention. layer:
        The layer, counted from 0; of a page the one it opens with, and of a long text those that it
        holds. head: The head, counted from 0, or several for lines. words: Join the pieces of a
        word: what is looked at is summed, who looks is averaged. mask: none takes a GPT's causal
        mask away, to see what it hides. out: Write a .html, .png, .svg, .pdf or .safetensors file
        instead. machine: Where and how it computes.
    """
    check_place("out", out)
    check_not_read(out, [data] if data is not None else [], "looked at")
    if out is not None and out.suffix.lower() not in FORMATS:
        raise ValueError(f"out: expected the name of a {', '.join(FORMATS)} file, not {out}")

    page = out is not None and out.suffix.lower() == ".html"
    whole = page or (out is not None and out.suffix.lower() == ".safetensors")
    if len(layer) > 1 and not whole:
        raise ValueError(
            f"layer: one view shows one layer, not {len(layer)}; a page (--out look.html) holds several"
        )

    opened = open_model(model, finely(machine), GPT, BERT, Transformer, RNN, TaskModel)
    if view == "positions":
        return see_positions(model, opened.model, out)

    texts = texts_of(text, data, source)
    note_unknown(opened.tokenizer, [each for each in (*texts, source, target) if each is not None])

    with ExitStack() as changes:
        if mask == "none":
            changes.enter_context(unmasked(opened.model))

        changes.enter_context(Console(stderr=True).status("looking ..."))
        seen = look(
            opened.model,
            *texts,
            tokenizer=opened.tokenizer,
            source=source,
            target=target,
            layers=None if page else layer or None,
            at_least=layer,
            name=model,
            attention=whole or view not in ("next", "lens", "norms"),
            lens_too=True if view == "lens" else None,
            norms_too=True if view == "norms" else None,
            attribution=True if view == "attribution" else None if page else False,
        )

    chosen: dict[str, Any] = {"view": view, "kind": kind, "words": words}
    chosen["layer"] = layer[0] if layer else None
    chosen["head"] = head[0] if len(head) == 1 else (head or None)
    show(seen, chosen, out)

    return None


def show(seen: Look, chosen: dict[str, Any], out: Path | None) -> None:
    given = {name: value for name, value in chosen.items() if value is not None}
    if "view" not in given and (out is None or out.suffix.lower() in figure_style.ENDINGS):
        heads = sum(each.depth * each.heads for each in seen.attention)
        chooses = {"layer", "head", "kind"} & given.keys() or heads == 1
        given["view"] = "head" if chooses else "heads" if heads else "next"

    if out is not None:
        print(seen.save(out, **given))
        return

    console = Console(highlight=False)
    terminal.show(seen, console, **given)
    if console.is_terminal:
        note("--out look.html shows all of it, to click; --view names another view")


def texts_of(text: tuple[str, ...], data: Path | None, source: str | None) -> list[str]:
    """What was given, or a file, or what comes through a pipe."""
    if data is not None:
        if text:
            raise ValueError("text: a file is given, too; leave one of them out")

        return [read_text(data).strip() if str(data) != "-" else standard_input().strip()]

    if text or source is not None:
        return list(text)
    if sys.stdin.isatty():
        raise ValueError("text: expected a text to read, in quotation marks")

    return [standard_input().strip()]


def see_positions(name: str, model: Any, out: Path | None) -> None:
    found = position_encoding.encoding(model)
    if out is None:
        position_encoding.show(found, Console(highlight=False))
        return

    figure_style.check_ending(out, "out")
    print(figure_style.save(lambda: position_encoding.draw(found, name), out))
