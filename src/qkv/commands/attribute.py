"""qkv attribute: which parts of a model, and which tokens, a prediction comes from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro
from jaxtyping import Float
from rich.console import Console, RenderableType
from rich.text import Text
from torch import Tensor

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, Opened, open_float32
from qkv.command_line.output_checks import check_writable
from qkv.insight.attribute.attention_flow import attention_rollout, value_weighted_attention
from qkv.insight.attribute.integrated_gradients import (
    STEPS,
    TokenContributions,
    integrated_gradients,
)
from qkv.insight.attribute.logit_attribution import LogitParts, logit_attribution
from qkv.insight.attribute.prompt_tokens import read_prompt, token_id
from qkv.insight.inspect.model_input import Reading, readable_token
from qkv.insight.render.signed_bars import show_signed_bars
from qkv.insight.render.terminal_cells import HeatMap
from qkv.insight.render.views import check_ending
from qkv.text.printable import printable

Method = Literal["parts", "tokens", "rollout", "values"]
Prompt = Annotated[str, tyro.conf.Positional]


class TokenMap(NamedTuple):
    """A map between tokens with its title."""

    values: Float[Tensor, "T S"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """Where a prediction comes from: layers, heads and feed-forward layers, or tokens.

    qkv attribute smollm2 "The capital of France is" --token " Paris" --against " Rome"

    qkv attribute smollm2 "The capital of France is" --method tokens

    parts: the logit as an exact sum of what every head and layer wrote (direct logit attribution).
    tokens: what each input token contributes (integrated gradients). rollout: the attention of all
    layers multiplied. values: attention weights times the norm of the values of a head.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2."""
    text: Prompt
    """A prompt; for a translator a source."""
    method: Method = "parts"
    """parts of the model, tokens, rollout of attention, or attention weighted by values."""
    token: str | None = None
    """The token to explain, with a space before it if it begins a word (default: the likeliest)."""
    against: str | None = None
    """A token whose logit is subtracted: the difference of two logits is explained."""
    position: int = -1
    """The position of the prediction (default: the last)."""
    layer: int = -1
    """With rollout: up to this layer. With values: the layer (default: the last)."""
    head: int = 0
    """With values: the head."""
    baseline: str = "mean"
    """With tokens: where the path starts: mean (of the vocabulary), zeros, or a token."""
    steps: int = STEPS
    """With tokens: the largest number of gradients on the path."""
    kind: Literal["encoder", "decoder", "cross"] | None = None
    """With rollout or values, for a translator: the kind of attention (default encoder)."""
    target: str | None = None
    """For a translator: the target so far."""
    top: int = 20
    """With parts: the number of parts that are listed."""
    plot: Path | None = None
    """Draw a .png, .svg or .pdf file."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one line of JSON with all numbers."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        check_writable("plot", self.plot)
        if self.plot is not None:
            check_ending(self.plot)
        if self.top < 1:
            raise ValueError(f"top: expected 1 or more, not {self.top}")

        opened = open_float32(self.model, self.machine)
        reading = read_prompt(*opened, self.text, self.target)
        if self.method == "parts":
            self.explain_parts(opened, reading)
        elif self.method == "tokens":
            self.explain_tokens(opened, reading)
        else:
            self.map_tokens(opened, reading)

    # The methods

    def explain_parts(self, opened: Opened, reading: Reading) -> None:
        """Direct logit attribution."""
        model, tokenizer = opened
        token = token_id(tokenizer, self.token, "token")
        against = token_id(tokenizer, self.against, "against")
        split = logit_attribution(model, reading, self.position, token, against)
        what = self.measured(opened, split.token, split.against)
        line = f"{what}: {split.total:+.3f}, the sum of {len(split.parts())} parts"

        def show(console: Console) -> None:
            show_signed_bars(split.strongest(self.top), console)

        def draw() -> Any:
            from qkv.insight.render.method_figures.attribution_figures import parts_figure

            return parts_figure(split, f"What the logit is made of: {self.model}", line)

        self.give(parts_object(split, what), line, show, draw)

    def explain_tokens(self, opened: Opened, reading: Reading) -> None:
        """Integrated gradients."""
        model, tokenizer = opened
        baseline: Any = self.baseline
        if baseline not in ("mean", "zeros"):
            baseline = token_id(tokenizer, self.baseline, "baseline")

        found = integrated_gradients(
            model,
            reading,
            self.position,
            self.class_or_token(opened, self.token, "token"),
            self.class_or_token(opened, self.against, "against"),
            baseline=baseline,
            steps=self.steps,
        )
        what = self.measured(opened, found.target, found.against)
        line = (
            f"{what}: {found.score:+.3f}; baseline ({self.baseline}): {found.baseline:+.3f}; "
            f"not accounted for: {found.gap:+.4f}"
        )
        values = []
        if found.source is not None and reading.source is not None:
            values += zip(reading.source.tokens, found.source.tolist(), strict=True)

        values += zip(reading.text.tokens, found.text.tolist(), strict=True)

        def draw() -> Any:
            from qkv.insight.render.method_figures.attribution_figures import tokens_figure

            return tokens_figure(values, f"What each token contributes: {self.model}", line)

        numbers = tokens_object(found, values, what)
        self.give(numbers, line, lambda console: show_signed_bars(values, console), draw)

    def map_tokens(self, opened: Opened, reading: Reading) -> None:
        """Rollout, or attention weighted by values."""
        found, line = self.measure_map(opened, reading)

        def show(console: Console) -> None:
            largest = float(found.values.max()) or 1.0
            shades = (found.values / largest).clamp(0, 1).sqrt()
            shown: RenderableType = HeatMap(
                found.values, found.rows, found.columns, "positions down", shades=shades
            )
            console.print(shown)

        def draw() -> Any:
            from qkv.insight.render.method_figures.attribution_figures import token_map_figure

            return token_map_figure(*found, f"Attention: {self.model}", line)

        numbers = {
            "method": self.method,
            "rows": found.rows,
            "columns": found.columns,
            "values": found.values.tolist(),
        }
        self.give(numbers, line, show, draw)

    def measure_map(self, opened: Opened, reading: Reading) -> tuple[TokenMap, str]:
        """The map of the chosen layer, and what it shows."""
        layers: Any
        if self.method == "rollout":
            layers = attention_rollout(opened.model, reading, kind=self.kind)
        else:
            layers = value_weighted_attention(opened.model, reading, kind=self.kind)

        depth = len(layers)
        if not -depth <= self.layer < depth:
            raise ValueError(
                f"layer: expected 0 to {depth - 1}, or -1 for the last, not {self.layer}"
            )

        layer = self.layer % depth
        kind = self.kind or ("encoder" if opened.model.has_source else "self")
        rows, columns = reading.queries(kind).tokens, reading.keys(kind).tokens
        if self.method == "rollout":
            line = f"attention rollout up to layer {layer}: the share of each input token"
            return TokenMap(layers[layer], rows, columns), line

        heads = len(layers[layer])
        if not 0 <= self.head < heads:
            raise ValueError(f"head: expected 0 to {heads - 1}, not {self.head}")

        line = f"layer {layer}, head {self.head}: attention weight x norm of the value"
        return TokenMap(layers[layer][self.head], rows, columns), line

    # Tokens and output

    def class_or_token(self, opened: Opened, text: str | None, name: str) -> int | None:
        """The number of a class of a task model, or the id of a token."""
        task = opened.model.task
        if text is None or task is None:
            return token_id(opened.tokenizer, text, name)

        labels = list(task.labels)
        if text not in labels:
            raise ValueError(f"{name}: expected one of {', '.join(labels)}, not {text!r}")

        return labels.index(text)

    def measured(self, opened: Opened, token: int, against: int | None) -> str:
        """What is explained: the logit of a token, or the score of a class."""
        task = opened.model.task

        def name(number: int) -> str:
            if task is None:
                return readable_token(opened.tokenizer, number)
            if task.labels:
                return str(task.labels[number])

            return "the answer"

        what = f"{'logit' if task is None else 'score'} of {name(token)}"
        if against is not None:
            what += f" less that of {name(against)}"

        return what

    def give(
        self,
        numbers: dict[str, Any],
        line: str,
        show: Callable[[Console], None],
        draw: Callable[[], Any],
    ) -> None:
        """Print the result or one line of JSON, and draw the figure."""
        if self.as_json:
            print(json.dumps(numbers, ensure_ascii=False))
        else:
            console = Console(highlight=False)
            console.print(Text(printable(line)))
            show(console)

        if self.plot is not None:
            from qkv.insight.render.figures.figure_style import save

            print(save(draw, self.plot), file=sys.stderr if self.as_json else sys.stdout)


def parts_object(split: LogitParts, what: str) -> dict[str, Any]:
    """All numbers of a logit's parts, for JSON."""
    return {
        "method": "parts",
        "measure": what,
        "position": split.position,
        "total": split.total,
        "parts": dict(split.parts()),
    }


def tokens_object(
    found: TokenContributions, values: list[tuple[str, float]], what: str
) -> dict[str, Any]:
    """All numbers of integrated gradients, for JSON."""
    return {
        "method": "tokens",
        "measure": what,
        "position": found.position,
        "score": found.score,
        "baseline": found.baseline,
        "gap": found.gap,
        "tokens": [name for name, _ in values],
        "contributions": [value for _, value in values],
    }
