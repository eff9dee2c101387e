"""qkv draw: the architecture of a model as a diagram, and figures of the lectures."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from matplotlib.figure import Figure

from qkv import artifact
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.insight.render.diagrams.architecture import draw_architecture
from qkv.insight.render.diagrams.attention_diagrams import draw_attention, draw_multi_head
from qkv.insight.render.diagrams.lecture_diagrams import draw_decoder_steps, draw_paths, draw_tasks
from qkv.insight.render.figures import figure_style
from qkv.insight.render.views import check_ending
from qkv.model_names import PACKAGED
from qkv.models.model import Model
from qkv.models.presets import PRESETS
from qkv.models.registry import build
from qkv.models.without_numbers import without_numbers

FIGURES: dict[str, Callable[[], Figure]] = {
    "attention": draw_attention,
    "multi-head": draw_multi_head,
    "tasks": draw_tasks,
    "decoder-steps": draw_decoder_steps,
    "paths": draw_paths,
}


@dataclass(frozen=True, kw_only=True)
class DrawCommand:
    """Draw the architecture of a model, with the sizes of its parts and the shapes between them.

    Also the figures of the lectures: attention, multi-head, tasks (how texts become rows of tokens
    for fine-tuning), decoder-steps (an RNN with attention), paths (RNN and self-attention).
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """A preset (see qkv presets), the folder of a run or of transformers, a GGUF file, smollm2 or
    minilm; or attention, multi-head, tasks, decoder-steps or paths."""
    out: Path | None = None
    """The picture, a .svg, .png or .pdf file (default: NAME.svg)."""

    def run(self) -> None:
        out = self.out or Path(f"{Path(self.name).name}.svg")
        check_ending(out, "out")
        check_writable("out", out)
        check_not_input(out, [Path(self.name)], "drawn")
        print(figure_style.save(self.figure_function(), out, "out"))

    def figure_function(self) -> Callable[[], Figure]:
        """The function that draws this name."""
        if self.name in FIGURES:
            return FIGURES[self.name]

        model = self.open()
        return lambda: draw_architecture(model, self.name)

    def open(self) -> Model:
        """The model of a preset, without memory for its weights, or a saved one."""
        if self.name in PRESETS:
            with without_numbers():
                return build(PRESETS[self.name].config)

        if self.name in PACKAGED or Path(self.name.partition("@")[0]).exists():
            return artifact.load(self.name).model

        known = [*FIGURES, *PRESETS, *PACKAGED]
        hint = "see qkv presets and qkv draw --help"
        if similar := difflib.get_close_matches(self.name, known, n=3, cutoff=0.5):
            hint = f"did you mean {' or '.join(similar)}?"

        raise ValueError(f"name: there is no model or figure {self.name!r}; {hint}")
