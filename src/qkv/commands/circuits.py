"""qkv circuits: what heads do by their weights alone, without a text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console, RenderableType
from rich.text import Text

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, Opened, open_float32
from qkv.command_line.output_checks import check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.insight.attribute.prompt_tokens import token_id
from qkv.insight.circuits.circuit_scores import CircuitScores, circuit_scores
from qkv.insight.circuits.composition_scores import (
    Composition,
    CompositionScores,
    composition_scores,
)
from qkv.insight.circuits.token_circuits import HeadTokens, token_circuits
from qkv.insight.inspect.model_input import readable_token
from qkv.insight.render.circuit_tables import composition_table, eigenvalue_table, token_table
from qkv.insight.render.views import check_ending
from qkv.models.model import Model, backbone_of

Compositions = dict[str, Sequence[Composition]]


@dataclass(frozen=True, kw_only=True)
class Circuits:
    """What heads do by their weights alone: copying, composition, and pairs of tokens.

    qkv circuits smollm2

    qkv circuits smollm2 --layer 29 --head 2 --token " China"

    Without --layer and --head: which heads copy what they attend to, which attend to what is alike,
    and which earlier heads write what later heads read. With both: the tokens between which this
    head has its highest scores, the tokens whose logits it raises, and its partners.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2 or minilm."""
    layer: int | None = None
    """The layer of a head."""
    head: int | None = None
    """The head."""
    token: str | None = None
    """With a head: only pairs that begin with this token, with a space before it if it begins a
    word."""
    distance: int = 1
    """With a head and rotary positions: how many positions the key lies before the query."""
    kind: Literal["encoder", "decoder", "cross"] | None = None
    """For a translator: the kind of attention (default decoder)."""
    top: int = 10
    """Heads or pairs that are listed."""
    plot: Path | None = None
    """Draw all heads as a .png, .svg or .pdf file."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one line of JSON, instead of tables."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        self.check_flags()
        opened = open_float32(self.model, self.machine)
        scores = circuit_scores(opened.model, self.kind)
        if self.layer is None or self.head is None:
            compositions = self.compose(opened.model)
            self.show_all(scores, compositions)
        else:
            self.check_head(scores)
            self.show_head(opened, scores)

    def check_flags(self) -> None:
        """Refuse bad flags before the model is loaded."""
        check_writable("plot", self.plot)
        if self.plot is not None:
            check_ending(self.plot)
        if self.top < 1:
            raise ValueError(f"top: expected 1 or more, not {self.top}")
        if (self.layer is None) != (self.head is None):
            missing = "head" if self.head is None else "layer"
            raise ValueError(f"{missing}: give --layer and --head together, or neither")
        if self.token is not None and self.head is None:
            raise ValueError("token: it is about one head; give --layer and --head")
        if self.plot is not None and self.head is not None:
            raise ValueError("plot: the figure shows all heads; leave --layer and --head out")
        if self.distance < 0:
            raise ValueError(f"distance: expected 0 or more, not {self.distance}")

    def check_head(self, scores: CircuitScores) -> None:
        """Raise if there is no such head."""
        L, H = scores.copying.shape
        if self.layer not in range(L):
            raise ValueError(f"layer: expected 0 to {L - 1}, not {self.layer}")
        if self.head not in range(H):
            raise ValueError(f"head: expected 0 to {H - 1}, not {self.head}")

    def compose(self, model: Model) -> CompositionScores | None:
        """Compositions of all heads, or with the given one; None for models that have none."""
        stack: Any = backbone_of(model).config
        if self.kind == "cross" or stack.norm_placement != "before":
            return None

        with progress_bar("comparing layers") as advance:
            return composition_scores(model, self.kind, layer=self.layer, advance=advance)

    # All heads

    def show_all(self, scores: CircuitScores, compositions: CompositionScores | None) -> None:
        """Heads and pairs of heads."""
        found = self.pairs(compositions)
        values: dict[str, Any] = {
            "model": self.model,
            "kind": scores.kind,
            "copying": scores.copying.tolist(),
            "matching": scores.matching.tolist(),
            "composition": pairs_object(found),
        }
        tables: list[RenderableType] = [eigenvalue_table(scores, self.top)]
        if compositions is not None:
            values["random"] = compositions.random
            tables.append(composition_table(found, compositions.random))

        self.give(values, tables)
        if self.plot is not None:
            from qkv.insight.render.figures.figure_style import save
            from qkv.insight.render.method_figures.circuit_figures import circuits_figure

            title = f"Circuits of heads: {self.model}"
            path = save(lambda: circuits_figure(scores, compositions, title), self.plot)
            print(path, file=sys.stderr if self.as_json else sys.stdout)

    # One head

    def show_head(self, opened: Opened, scores: CircuitScores) -> None:
        """Scores, pairs of tokens and partners of one head."""
        assert self.layer is not None
        assert self.head is not None
        model, tokenizer = opened
        copying = float(scores.copying[self.layer, self.head])
        matching = float(scores.matching[self.layer, self.head])
        values: dict[str, Any] = {
            "model": self.model,
            "kind": scores.kind,
            "layer": self.layer,
            "head": self.head,
            "copying": copying,
            "matching": matching,
        }
        line = (
            f"layer {self.layer}, head {self.head}: copying {copying:+.2f}, "
            f"matching {matching:+.2f}"
        )
        tables: list[RenderableType] = [Text(line)]

        compositions = self.compose(model)
        if compositions is not None:
            found = self.pairs(compositions)
            values["composition"] = pairs_object(found)
            values["random"] = compositions.random
            tables.append(composition_table(found, compositions.random))

        circuits = self.token_pairs(opened)
        if circuits is not None:
            token = token_id(tokenizer, self.token, "token")
            qk = circuits.qk.largest(self.top, token)
            ov = circuits.ov.largest(self.top, token)
            values["qk"] = [pair._asdict() for pair in qk]
            values["ov"] = [pair._asdict() for pair in ov]
            tables.append(token_table(qk, ov, lambda id: readable_token(tokenizer, id)))

        self.give(values, tables)

    def token_pairs(self, opened: Opened) -> HeadTokens | None:
        """The circuits between tokens of text; None for models that have none."""
        assert self.layer is not None
        assert self.head is not None
        model, tokenizer = opened
        backbone = backbone_of(model)
        norm_before = backbone.config.norm_placement == "before"
        if self.kind in ("encoder", "cross") or not norm_before or backbone.predicts == "masked":
            return None

        tokens = [id for id in range(tokenizer.vocabulary) if id not in tokenizer.special]
        return token_circuits(model, self.layer, self.head, tokens, distance=self.distance)

    # Output

    def pairs(self, compositions: CompositionScores | None) -> Compositions:
        """The strongest compositions, of all heads or of one."""
        if compositions is None:
            return {}

        head = None
        if self.layer is not None and self.head is not None:
            head = (self.layer, self.head)

        count = max(1, self.top // 2)
        return {
            "query": compositions.strongest("query", count, head),
            "key": compositions.strongest("key", count, head),
            "value": compositions.strongest("value", count, head),
        }

    def give(self, values: dict[str, Any], tables: Sequence[RenderableType]) -> None:
        """Print one line of JSON, or the tables."""
        if self.as_json:
            print(json.dumps(values, ensure_ascii=False))
            return

        console = Console(highlight=False)
        for table in tables:
            console.print(table)


def pairs_object(found: Compositions) -> dict[str, Any]:
    """Pairs of heads for JSON."""
    return {name: [pair._asdict() for pair in pairs] for name, pairs in found.items()}
