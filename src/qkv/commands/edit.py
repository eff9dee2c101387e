"""qkv edit: change attention by hand, and see what the model then says."""

from __future__ import annotations

import json
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    finely,
    note_unknown,
    open_model,
    printable,
)
from qkv.generation.fill import Guess
from qkv.insight.inspect.attention_edits import Edit
from qkv.insight.inspect.edit_effects import Change, edit_effects
from qkv.insight.inspect.model_input import read
from qkv.insight.render.terminal_cells import bar, has_blocks
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.tables import Table

BAR = 10
MUCH = 0.1  # so far moved, a place is worth a colour; no full bar is for less


def run(
    model: ModelName,
    text: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT [TEXT]]")
    ] = (),
    change: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    source: str | None = None,
    target: str | None = None,
    length: int = 20,
    top: int = 3,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Change attention, and compare what the model says before and after: at each place, and as it
    goes on.

    qkv edit smollm2 "The capital of France is" --change 3.5=off

    qkv edit smollm2 "The cat sat on the mat" --change "3.5:4>1=off" --change 2.1=uniform

    Layers, heads and tokens are counted from 0. A change is LAYER.HEAD=off, =0.5 (what the head
    says, scaled) or =uniform, =first, =previous (where it looks, replaced); LAYER.*=off is every
    head of a layer. LAYER.HEAD:7>2=off keeps token 7 from looking at token 2, and =0.8 makes it
    look there with that weight. For a translator it begins with encoder:, decoder: or cross:.

    Args:
        model: The folder of a run or of transformers, a GGUF file, or smollm2.
        text: The text to read; of a BERT perhaps with [mask], or two; of a translator the source.
        change: What is changed; give it again for more.
        source: Of a translator: what it reads.
        target: Of a translator: what it is compared on; its own translation unless given.
        length: Go on from the text with so many tokens; 0 for none.
        top: So many of the likeliest tokens at each place.
        as_json: One line of JSON with all numbers, instead of a table.
        machine: Where and how it computes.
    """
    edits = [Edit.read(each) for each in change]
    if length < 0:
        raise ValueError(f"length: expected 0 or more, not {length}")
    if not edits:
        raise ValueError(
            "change: expected one or more, such as --change 3.5=off; qkv edit --help lists what there is"
        )

    opened = open_model(model, finely(machine), GPT, BERT, Transformer, RNN, TaskModel)
    note_unknown(opened.tokenizer, [each for each in (*text, source, target) if each is not None])
    reading = read(opened.model, opened.tokenizer, *text, source=source, target=target)

    with Console(stderr=True).status("reading twice ..."):
        found = edit_effects(opened.model, opened.tokenizer, reading, edits, top=top, length=length)

    if as_json:
        print(json.dumps(as_object(found), ensure_ascii=False))
        return

    console = Console(highlight=False)
    console.print(table(found, has_blocks(console)))
    if found.loss_before is not None and found.loss_after is not None:
        more = found.loss_after - found.loss_before
        console.print(
            f"loss of the text: {found.loss_before:.3f} before, {found.loss_after:.3f} after ({more:+.3f})"
        )

    for name, said in (("before", found.said_before), ("after", found.said_after)):
        if said is not None:
            style = "bold" if name == "after" and said != found.said_before else ""
            console.print(Text.assemble((f"{name}: ", "dim"), (printable(said), style)))


def table(found: Change, blocks: bool) -> Table:
    """A row for each place: what is likeliest there before and after, and how far it moved."""
    made = Table(header_style="bold", caption_justify="left")
    most = max(float(found.moved.max()), MUCH)
    measure = "KL divergence in nats" if found.before is not None else "1 - cosine of its vector"
    made.caption = f"moved: {measure}; a full bar is {most:.2f}"
    made.title = Text(printable(", ".join(map(str, found.edits))), style="bold")
    tokens = (
        found.reading.text.tokens
        if len(found.moved) == len(found.reading.text.tokens)
        else ("answer",)
    )
    made.add_column("", justify="right", style="dim")
    made.add_column("token")
    if found.before is not None:
        made.add_column("before")
        made.add_column("after")

    made.add_column("moved", justify="right")
    made.add_column("", no_wrap=True)

    for place, (token, moved) in enumerate(zip(tokens, found.moved.tolist(), strict=True)):
        cells: list[Any] = [str(place), Text(printable(token))]
        if found.before is not None and found.after is not None:
            before, after = found.before[place], found.after[place]
            cells += [said(before, after), said(after, before)]

        style = "red" if moved > MUCH else ""
        made.add_row(
            *cells,
            Text(f"{moved:.4f}", style=style),
            Text(bar(moved / most, BAR, blocks), style="red"),
        )

    return made


def said(guesses: list[Guess], others: list[Guess]) -> Text:
    """The likeliest first; one that was not the likeliest on the other side stands out."""
    line = Text()
    for rank, guess in enumerate(guesses):
        new = rank == 0 and guess.id != others[0].id
        line.append(
            printable(guess.text), style="bold yellow" if new else "bold" if rank == 0 else ""
        )
        line.append(f" {guess.probability:.0%}  ", style="dim")

    return line


def as_object(found: Change) -> dict[str, Any]:
    def guesses(side: list[list[Guess]] | None) -> Any:
        if side is None:
            return None

        return [
            [{"text": each.text, "probability": each.probability} for each in place]
            for place in side
        ]

    return {
        "changes": [str(each) for each in found.edits],
        "tokens": list(found.reading.text.tokens),
        "moved": found.moved.tolist(),
        "before": {
            "likeliest": guesses(found.before),
            "loss": found.loss_before,
            "text": found.said_before,
        },
        "after": {
            "likeliest": guesses(found.after),
            "loss": found.loss_after,
            "text": found.said_after,
        },
    }
