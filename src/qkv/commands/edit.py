"""qkv edit: change attention or steer the model, and see how the predictions change."""

from __future__ import annotations

import json
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console
from rich.text import Text

from qkv.command_line.model_opening import Machine, ModelName, open_float32
from qkv.command_line.user_input import note_unknown
from qkv.generation.fill import Guess
from qkv.insight.inspect.attention_edits import Edit
from qkv.insight.inspect.model_input import read
from qkv.insight.intervene.edit_effects import EditEffects, edit_effects
from qkv.insight.intervene.steering import Steering, steering_direction
from qkv.insight.render.terminal_cells import bar, has_blocks
from qkv.models.model import Model
from qkv.tables import Table
from qkv.text.printable import printable
from qkv.text.tokenizer import Tokenizer

BAR = 10
"""Columns of a full bar."""
LARGE = 0.1
"""The change from which a row is coloured; a full bar never stands for less."""


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
    steer_to: str | None = None,
    steer_from: str | None = None,
    steer_layer: int | None = None,
    steer_strength: float = 1.0,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Change attention, and compare the predictions before and after, at each token and onwards.

    qkv edit smollm2 "The capital of France is" --change 3.5=off

    qkv edit smollm2 "The cat sat on the mat" --change "3.5:4>1=off" --change 2.1=uniform

    Layers, heads and tokens are counted from 0. A change is LAYER.HEAD=off, =0.5 (the head's
    output, scaled) or =uniform, =first, =previous (its attention pattern, replaced); LAYER.*=off is
    every head of a layer. LAYER.HEAD:7>2=off keeps token 7 from attending to token 2, and =0.8
    gives that attention this weight. For a translator it begins with encoder:, decoder: or cross:.

    qkv edit smollm2 "I went to the market and" --steer-to "Le chat mange du pain."
    --steer-from "The cat eats bread." --steer-layer 12

    Steering adds a direction to the residual stream after a layer, at every token: the mean of one
    prompt minus that of the other.

    Args:
        model: The folder of a run or of transformers, a GGUF file, or smollm2.
        text: The text to read (a BERT can take two, with [mask] or not; a translator takes the
            source).
        change: A change; repeat the flag for more.
        source: For a translator: the source.
        target: For a translator: the target it is compared on (default: its own translation).
        length: Tokens to continue the text with; 0 for none.
        top: Most probable tokens shown at each position.
        steer_to: The prompt to steer towards.
        steer_from: The prompt to steer away from.
        steer_layer: The layer after which the direction is added.
        steer_strength: Its factor; a negative one steers away.
        as_json: Print one line of JSON with all numbers, instead of a table.
        machine: Device and precision.
    """
    edits = list(map(Edit.read, change))
    if length < 0:
        raise ValueError(f"length: expected 0 or more, not {length}")

    prompts = SteeringPrompts.of(steer_to, steer_from, steer_layer, steer_strength)
    if not edits and prompts is None:
        raise ValueError(
            "change: expected one or more, such as --change 3.5=off; "
            "qkv edit --help lists what is possible"
        )

    opened = open_float32(model, machine)
    note_unknown(opened.tokenizer, filter(None, [*text, source, target]))
    reading = read(opened.model, opened.tokenizer, *text, source=source, target=target)

    with Console(stderr=True).status("reading twice ..."):
        steering = None
        if prompts is not None:
            steering = prompts.steering(opened.model, opened.tokenizer)

        effect = edit_effects(
            opened.model,
            opened.tokenizer,
            reading,
            edits,
            top=top,
            length=length,
            steering=steering,
        )

    if as_json:
        print(json.dumps(as_object(effect), ensure_ascii=False))
    else:
        show(effect, Console(highlight=False))


class SteeringPrompts(NamedTuple):
    """What the flags of steering say."""

    plus: str
    minus: str
    layer: int
    strength: float

    @classmethod
    def of(
        cls, plus: str | None, minus: str | None, layer: int | None, strength: float
    ) -> SteeringPrompts | None:
        """The flags together; None without any of them."""
        if plus is None and minus is None and layer is None:
            return None
        if plus is None or minus is None or layer is None:
            raise ValueError(
                "steer: expected --steer-to, --steer-from and --steer-layer together; "
                "one is missing"
            )

        return cls(plus, minus, layer, strength)

    def steering(self, model: Model, tokenizer: Tokenizer) -> Steering:
        """The direction of the prompts in a model."""
        direction = steering_direction(model, tokenizer, self.plus, self.minus, self.layer)
        return Steering(self.layer, direction, self.strength)


def show(effect: EditEffects, console: Console) -> None:
    """Print the table, the loss and the continuations before and after."""
    console.print(effect_table(effect, has_blocks(console)))
    if effect.loss_before is not None and effect.loss_after is not None:
        more = effect.loss_after - effect.loss_before
        console.print(
            f"loss of the text: {effect.loss_before:.3f} before, {effect.loss_after:.3f} after "
            f"({more:+.3f})"
        )

    if effect.text_before is not None:
        console.print(Text.assemble(("before: ", "dim"), printable(effect.text_before)))

    if effect.text_after is not None:
        style = ""
        if effect.text_after != effect.text_before:
            style = "bold"

        console.print(Text.assemble(("after: ", "dim"), (printable(effect.text_after), style)))


def effect_table(effect: EditEffects, blocks: bool) -> Table:
    """A row for each position: the most probable tokens before and after, and the change."""
    table = Table(header_style="bold", caption_justify="left")
    most = max(float(effect.moved.max()), LARGE)
    measure = "1 - cosine of its vector"
    if effect.before is not None:
        measure = "KL divergence in nats"

    table.caption = f"moved: {measure}; a full bar is {most:.2f}"
    table.title = Text(printable(", ".join(effect.changes)), style="bold")
    table.add_column("", justify="right", style="dim")
    for name in ("token", "before", "after") if effect.before is not None else ("token",):
        table.add_column(name)

    table.add_column("moved", justify="right")
    table.add_column("", no_wrap=True)

    # A fine-tuned model has one prediction for the whole text.
    tokens = effect.reading.text.tokens
    if len(effect.moved) != len(tokens):
        tokens = ("answer",)

    for position, (token, moved) in enumerate(zip(tokens, effect.moved.tolist(), strict=True)):
        cells: list[Any] = [str(position), Text(printable(token))]
        if effect.before is not None and effect.after is not None:
            before = effect.before[position]
            after = effect.after[position]
            cells += [guess_cell(before, after), guess_cell(after, before)]

        style = "red" if moved > LARGE else ""
        cells.append(Text(f"{moved:.4f}", style=style))
        cells.append(Text(bar(moved / most, BAR, blocks), style="red"))
        table.add_row(*cells)

    return table


def guess_cell(guesses: list[Guess], others: list[Guess]) -> Text:
    """The most probable tokens; the first stands out, more so if the other side's differs."""
    line = Text()
    for rank, guess in enumerate(guesses):
        style = ""
        if rank == 0:
            style = "bold" if guess.id == others[0].id else "bold yellow"

        line.append(printable(guess.text), style=style)
        line.append(f" {guess.probability:.0%}  ", style="dim")

    return line


def as_object(effect: EditEffects) -> dict[str, Any]:
    """All numbers, for JSON."""
    return {
        "changes": list(effect.changes),
        "tokens": list(effect.reading.text.tokens),
        "moved": effect.moved.tolist(),
        "before": {
            "likeliest": guess_values(effect.before),
            "loss": effect.loss_before,
            "text": effect.text_before,
        },
        "after": {
            "likeliest": guess_values(effect.after),
            "loss": effect.loss_after,
            "text": effect.text_after,
        },
    }


def guess_values(positions: list[list[Guess]] | None) -> list[list[dict[str, Any]]] | None:
    """The guesses at each position as JSON values."""
    if positions is None:
        return None

    values = []
    for guesses in positions:
        values.append([{"text": g.text, "probability": g.probability} for g in guesses])

    return values
