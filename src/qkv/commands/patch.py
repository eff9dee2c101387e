"""qkv patch: activation patching between two prompts, to find where an answer comes from."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, Opened, open_float32
from qkv.command_line.output_checks import check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.insight.attribute.edge_patching import EdgeScores, edge_attribution
from qkv.insight.attribute.gradient_patching import attribution_patch
from qkv.insight.attribute.prompt_tokens import read_prompt, token_id
from qkv.insight.inspect.activation_patching import PatchResult, PatchSite, patch
from qkv.insight.inspect.model_input import Reading, readable_token
from qkv.insight.render.signed_bars import show_signed_bars
from qkv.insight.render.terminal_cells import HeatMap
from qkv.insight.render.views import check_ending
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.text import Tokenizer
from qkv.text.printable import printable

Prompt = Annotated[str, tyro.conf.Positional]
Prompts = tuple[Reading, Reading, int | None, int | None]
"""The clean and the corrupted prompt, and the ids of answer and against."""
SITES = {
    "residual": "the residual stream of one token after a layer",
    "heads": "one head's output at all tokens",
    "feed_forward": "one token's feed-forward output",
}


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Run the corrupted prompt with one activation of the clean prompt at a time.

    qkv patch smollm2 "The capital of France is" "The capital of Italy is" --answer " Paris"
    --against " Rome"

    Each cell shows how much of the clean answer the patch restores: 0 is none, 1 is all of it.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2."""
    clean: Prompt
    """A prompt; with one [mask] for a BERT; a source for a translator."""
    corrupted: Prompt
    """A prompt with the same number of tokens and another answer."""
    answer: str | None = None
    """The token that the clean prompt leads to, with a space before it if it begins a word
    (default: the model's prediction)."""
    against: str | None = None
    """The token that the corrupted prompt leads to: the difference of the two logits is measured,
    otherwise the probability of the answer."""
    at: PatchSite = "residual"
    """The residual stream of each token, the output of each head, or the feed-forward output of
    each token."""
    kind: Literal["encoder", "decoder", "cross"] | None = None
    """For a translator: encoder (the default), decoder, or with heads cross-attention."""
    target: str | None = None
    """For a translator: the target so far; its next token is the answer."""
    fast: bool = False
    """Estimate all cells from one backward pass (attribution patching), instead of one forward
    pass a cell."""
    edges: int | None = None
    """List this number of edges, from what one part writes to what a later part reads, with the
    largest estimated effects."""
    plot: Path | None = None
    """Draw a .png, .svg or .pdf file."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one line of JSON with all numbers, instead of a table."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        self.check_flags()
        opened = open_float32(self.model, self.machine, GPT, BERT, Transformer, RNN)
        if not opened.model.stacks:
            raise ValueError(
                "model: an RNN has no layers of heads to patch; expected another model"
            )

        tokenizer = opened.tokenizer
        clean_prompt = read_prompt(*opened, self.clean, self.target)
        corrupted_prompt = read_prompt(*opened, self.corrupted, self.target)
        position = mask_position(opened, clean_prompt, corrupted_prompt)
        answer_id = token_id(tokenizer, self.answer, "answer")
        against_id = token_id(tokenizer, self.against, "against")
        if self.against is not None and self.answer is None:
            raise ValueError("against: expected an answer as well, to compare it with")

        prompts = (clean_prompt, corrupted_prompt, answer_id, against_id)
        if self.edges is not None:
            edges = edge_attribution(opened.model, *prompts, place=position)
            self.show_edges(edges, tokenizer, self.edges)
            return

        patched = self.patch_prompts(opened, prompts, position)
        names = token_names(clean_prompt, corrupted_prompt, patched.kind)
        if self.as_json:
            numbers = as_object(patched, tokenizer, names) | {"estimated": self.fast}
            print(json.dumps(numbers, ensure_ascii=False))
        else:
            if self.fast:
                print("estimated from one backward pass; without --fast it is exact")

            show(patched, tokenizer, names, Console(highlight=False))

        if self.plot is not None:
            from qkv.insight.render.figures.figure_style import save
            from qkv.insight.render.figures.head_figures import patched_figure

            title = f"Where the answer comes from: {self.model}"
            below = describe(patched, tokenizer)
            path = save(lambda: patched_figure(patched, names, title, below), self.plot)
            print(path, file=sys.stderr if self.as_json else sys.stdout)

    def check_flags(self) -> None:
        """Refuse bad flags before the model is loaded."""
        check_writable("plot", self.plot)
        if self.plot is not None:
            check_ending(self.plot)
        if self.edges is not None and self.edges < 1:
            raise ValueError(f"edges: expected 1 or more, not {self.edges}")
        if self.edges is not None and self.plot is not None:
            raise ValueError("plot: edges are a table; leave --plot or --edges out")

    def patch_prompts(self, opened: Opened, prompts: Prompts, position: int | None) -> PatchResult:
        """Patch exactly, or estimate it."""
        if self.fast:
            return attribution_patch(
                opened.model, *prompts, self.at, place=position, kind=self.kind
            )

        with progress_bar("patching") as advance:
            return patch(opened.model, *prompts, self.at, advance, place=position, kind=self.kind)

    def show_edges(self, edges: EdgeScores, tokenizer: Tokenizer, count: int) -> None:
        """Print the strongest edges."""
        strongest = edges.strongest(count)
        if self.as_json:
            rows = [{"from": str(a), "to": str(b), "score": score} for a, b, score in strongest]
            numbers = {"clean": edges.clean, "corrupted": edges.corrupted, "edges": rows}
            print(json.dumps(numbers))
            return

        console = Console(highlight=False)
        answer = printable(readable_token(tokenizer, edges.answer))
        line = f"estimated share of the answer {answer} that each edge restores"
        console.print(Text(f"{line}: clean {edges.clean:.3f}, corrupted {edges.corrupted:.3f}"))
        show_signed_bars([(f"{a} → {b}", score) for a, b, score in strongest], console)


# Prompts and tokens


def mask_position(opened: Opened, clean: Reading, corrupted: Reading) -> int | None:
    """The position of a BERT's mask, which both prompts must share; None for other models."""
    if opened.model.predicts != "masked":
        return None

    mask = opened.tokenizer.mask
    positions = [position for position, id in enumerate(clean.text.ids) if id == mask]
    others = [position for position, id in enumerate(corrupted.text.ids) if id == mask]
    if len(positions) != 1 or positions != others:
        raise ValueError(
            "clean: a BERT predicts a masked word; expected one [mask], at the same position in "
            "both prompts"
        )

    return positions[0]


def token_names(clean: Reading, corrupted: Reading, kind: str) -> list[str]:
    """The token at each position, and both tokens where the prompts differ."""
    names = []
    tokens = zip(clean.queries(kind).tokens, corrupted.queries(kind).tokens, strict=True)
    for token, other in tokens:
        name = token
        if token != other:
            name = f"{token}/{other}"

        names.append(name)

    return names


# Output


def describe(patched: PatchResult, tokenizer: Tokenizer) -> str:
    """One line: the patched site, the measure, and its value for both prompts."""
    answer = readable_token(tokenizer, patched.answer)
    measure = f"probability of {answer}"
    if patched.against is not None:
        measure = f"logit of {answer} less that of {readable_token(tokenizer, patched.against)}"

    return (
        f"{SITES[patched.at]}, from the clean prompt; {measure}: "
        f"clean {patched.clean:.3f}, corrupted {patched.corrupted:.3f}"
    )


def show(patched: PatchResult, tokenizer: Tokenizer, names: list[str], console: Console) -> None:
    """A heat map of how much each patch restores."""
    L, N = patched.restored.shape
    columns = names
    if patched.at == "heads":
        columns = list(map(str, range(N)))

    rows = list(map(str, range(L)))
    shades = patched.restored.clamp(0, 1)
    console.print(Text(printable(describe(patched, tokenizer))))
    console.print(HeatMap(patched.restored, rows, columns, "layers down", shades=shades))


def as_object(patched: PatchResult, tokenizer: Tokenizer, names: list[str]) -> dict[str, object]:
    """All numbers, for JSON."""
    against = None
    if patched.against is not None:
        against = readable_token(tokenizer, patched.against)

    return {
        "at": patched.at,
        "kind": patched.kind,
        "tokens": names,
        "answer": readable_token(tokenizer, patched.answer),
        "against": against,
        "measure": patched.measure,
        "clean": patched.clean,
        "corrupted": patched.corrupted,
        "restored": patched.restored.tolist(),
    }
