"""qkv patch: where in a model an answer comes from, by activation patching between two prompts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    Opened,
    check_place,
    finely,
    open_model,
    printable,
)
from qkv.commands.heads import advancing
from qkv.insight.inspect.activation_patching import At, Patched, patch
from qkv.insight.inspect.model_input import Reading, read, readable, side
from qkv.insight.render.figures.figure_style import check_ending
from qkv.insight.render.figures.head_figures import draw_patched
from qkv.insight.render.terminal_cells import HeatMap
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.text import Tokenizer

Prompt = Annotated[str, tyro.conf.Positional]
WHAT = {
    "residual": "the residual stream of one token after a layer",
    "heads": "one head's output at all tokens",
    "feed_forward": "one token's feed-forward output",
}


def run(
    model: ModelName,
    clean: Prompt,
    corrupted: Prompt,
    answer: str | None = None,
    against: str | None = None,
    at: At = "residual",
    kind: Literal["encoder", "decoder", "cross"] | None = None,
    target: str | None = None,
    plot: Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Where an answer comes from: the corrupted prompt is read with one activation of the clean one
    at a time.

    qkv patch smollm2 "The capital of France is" "The capital of Italy is" --answer " Paris"
    --against " Rome"

    Of each place it is said how much of the clean answer comes back: 0 is none of it, 1 is all.

    Args: model: The folder of a run or of transformers, a GGUF file, or smollm2. clean: A prompt;
        of a BERT with one [mask]; of a translator a source. corrupted: One of as many tokens, with
        another answer. answer: The token that the clean prompt leads to, with a space before it if
        it is a word; the model's own unless given. against: The token that the corrupted prompt
        leads to: then the difference of their logits is measured, else the answer's probability.
        at: The residual stream of each token, the output of each head, or of the feed-forward layer
        at each token. kind: Of a translator: the encoder, unless given, or the decoder, or with
        heads cross-attention. target: Of a translator: what was said already; the next word is
        asked. plot: Draw a .png, .svg or .pdf file. as_json: One line of JSON with all numbers,
        instead of a table. machine: Where and how it computes.
    """
    check_place("plot", plot)
    if plot is not None:
        check_ending(plot)

    opened = open_model(model, finely(machine), GPT, BERT, Transformer, RNN)
    if isinstance(opened.model, RNN):
        raise ValueError(
            "model: an RNN has no layers of heads, so nothing in it can be patched; expected another"
        )

    tokenizer = opened.tokenizer
    prompts = [prompt_of(opened, each, target) for each in (clean, corrupted)]
    place = mask_of(opened, *prompts)
    right, wrong = (
        one_token(tokenizer, text, name)
        for text, name in ((answer, "answer"), (against, "against"))
    )
    if against is not None and answer is None:
        raise ValueError("against: expected an answer, too, to be compared with it")

    with advancing("patching") as advance:
        found = patch(
            opened.model, prompts[0], prompts[1], right, wrong, at, advance, place=place, kind=kind
        )

    read_side = prompts[1].source if found.kind == "encoder" else prompts[1].text
    clean_side = prompts[0].source if found.kind == "encoder" else prompts[0].text
    assert read_side is not None
    assert clean_side is not None
    both = zip(clean_side.tokens, read_side.tokens, strict=True)
    names = [one if one == other else f"{one}/{other}" for one, other in both]
    if as_json:
        print(json.dumps(as_object(found, tokenizer, names), ensure_ascii=False))
    else:
        show(found, tokenizer, names, Console(highlight=False))

    if plot is not None:
        title = f"Where the answer comes from: {model}"
        out = draw_patched(found, names, plot, title, told(found, tokenizer))
        print(out, file=sys.stderr if as_json else sys.stdout)


def prompt_of(opened: Opened, text: str, target: str | None) -> Reading:
    model, tokenizer = opened.model, opened.tokenizer
    if not isinstance(model, Transformer):
        if target is not None:
            raise ValueError("target: only a translator has one; leave it out")

        return read(model, tokenizer, text)

    if target is not None:
        return read(model, tokenizer, source=text, target=target)

    found = read(model, tokenizer, source=text, target=text)  # of which the start alone is kept

    return found._replace(text=side(tokenizer, found.text.ids[:1]))


def mask_of(opened: Opened, clean: Reading, corrupted: Reading) -> int | None:
    """Where a BERT is asked: at its mask."""
    if not isinstance(opened.model, BERT):
        return None

    places = [
        [at for at, id in enumerate(each.text.ids) if id == opened.tokenizer.mask]
        for each in (clean, corrupted)
    ]
    if len(places[0]) != 1 or places[0] != places[1]:
        raise ValueError(
            "clean: a BERT is asked for a masked word; expected one [mask], at the same place in both prompts"
        )

    return places[0][0]


def one_token(tokenizer: Tokenizer, text: str | None, name: str) -> int | None:
    if text is None:
        return None

    ids = tokenizer.encode(text)
    if len(ids) != 1:
        parts = printable(" | ".join(readable(tokenizer, id) for id in ids))
        raise ValueError(f"{name}: expected one token, and {text!r} is {len(ids)}: {parts}")

    return ids[0]


def told(found: Patched, tokenizer: Tokenizer) -> str:
    answer = readable(tokenizer, found.answer)
    if found.against is not None:
        what = f"logit of {answer} less that of {readable(tokenizer, found.against)}"
    else:
        what = f"probability of {answer}"

    return f"{WHAT[found.at]}, from the clean prompt; {what}: clean {found.clean:.3f}, corrupted {found.corrupted:.3f}"


def show(found: Patched, tokenizer: Tokenizer, names: list[str], console: Console) -> None:
    L, N = found.restored.shape
    columns = [str(head) for head in range(N)] if found.at == "heads" else names
    rows = [str(layer) for layer in range(L)]
    console.print(Text(printable(told(found, tokenizer))))
    console.print(
        HeatMap(found.restored, rows, columns, "layers down", shades=found.restored.clamp(0, 1))
    )


def as_object(found: Patched, tokenizer: Tokenizer, names: list[str]) -> dict[str, object]:
    against = None if found.against is None else readable(tokenizer, found.against)
    return {
        "at": found.at,
        "kind": found.kind,
        "tokens": names,
        "answer": readable(tokenizer, found.answer),
        "against": against,
        "measure": found.measure,
        "clean": found.clean,
        "corrupted": found.corrupted,
        "restored": found.restored.tolist(),
    }
