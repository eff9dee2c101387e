"""qkv look: attention and predictions inside a model while it reads a text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, Opened, open_float32
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.command_line.user_input import note, note_unknown, read_standard_input, read_text_or_pipe
from qkv.insight.heads.head_names import read_measurement, with_measurement
from qkv.insight.inspect.capture import unmasked
from qkv.insight.inspect.position_encoding import position_encoding
from qkv.insight.look import FORMATS, Look, look
from qkv.insight.render import terminal
from qkv.insight.render.story_file import Story, read_story
from qkv.insight.render.views import ENDINGS, View, ViewChoice
from qkv.insight.walk.head_walk import HeadSite, walk_heads
from qkv.insight.walk.walk_choice import walks_first
from qkv.models.model import Model
from qkv.storage import last_part
from qkv.text.tokenizer import Tokenizer

WITHOUT_ATTENTION = ("model", "next", "lens", "norms")
"""Views that show no attention weights."""


@dataclass(frozen=True, kw_only=True)
class LookCommand:
    """See inside a model while it reads: attention of every head, next tokens, the logit lens.

    The terminal shows one view as coloured cells; a page (.html) all views, to click and to
    search; a picture (.png, .svg, .pdf) one view, for slides; a .safetensors file the weights as
    numbers. Layers, heads and tokens are counted from 0, as in qkv edit.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2 or minilm."""
    text: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT [TEXT]]")
    ] = ()
    """The text to read (a BERT can take two, a translator takes the source)."""
    source: str | None = None
    """For a translator: the source."""
    target: str | None = None
    """For a translator: the target (default: the model's translation)."""
    data: Path | None = None
    """A file with the text."""
    view: Literal[View, "positions"] | None = None
    """heads, an overview of all heads (the default without --layer or --head); walk, one head from
    query, key and value to what it writes, number by number; model, one token on its way through
    the whole model, block by block; head, its heat map; lines between
    words (each word with those it attends to most); next, the next tokens; lens, the prediction
    after each layer; norms of the residual stream and of gradients; numbers, the entropy and
    distance of each head; attribution, gradients beside attention; positions, the positional
    encoding."""
    kind: Literal["self", "encoder", "decoder", "cross"] | None = None
    """For a translator: encoder, decoder or cross attention."""
    layer: tuple[int, ...] = ()
    """The layer, counted from 0; for a page the one it opens with, and for a long text those it
    contains."""
    head: tuple[int, ...] = ()
    """The head, counted from 0, or several for lines."""
    token: int | None = None
    """For walk: the token whose query is shown, counted from 0 (default: the last)."""
    words: bool = False
    """Join the pieces of a word: attention to a word is summed over its pieces, attention from a
    word is averaged."""
    without_first: bool = False
    """Leave out the first token and special tokens, which take much of the weight, and rescale the
    rest to 100%."""
    names: Path | None = None
    """A file that `qkv heads MODEL --json` printed: heads of a page are named by it, not by this
    text alone."""
    against: str | None = None
    """Another model that reads the same tokens: a page shows the heads of both side by side."""
    story: Path | None = None
    """A .toml file with states and captions that the page walks through, for a lecture; it may
    have the text, too."""
    mask: Literal["causal", "none"] = "causal"
    """none removes the causal mask of a GPT, to see what it hides."""
    out: Path | None = None
    """Write a .html, .png, .svg, .pdf or .safetensors file instead."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        check_writable("out", self.out)
        check_not_input(self.out, [self.data, self.story], "read")
        ending = ending_of(self.out)
        whole = ending in (".html", ".safetensors")
        if len(self.layer) > 1 and not whole:
            raise ValueError(
                f"layer: one view shows one layer, not {len(self.layer)}; a page (--out look.html) "
                "holds several"
            )

        if self.against is not None and ending != ".html":
            raise ValueError("against: two models are shown on a page; write it to --out look.html")

        story = self.read_story(ending)
        opened = open_float32(self.model, self.machine)
        if self.view == "positions":
            self.show_positions(opened.model)
            return

        texts = self.read_texts(story)
        note_unknown(opened.tokenizer, filter(None, [*texts, self.source, self.target]))

        result = self.look_at(opened, texts, last_part(self.model), story)

        first = self.layer[0] if self.layer else None
        head = self.head or None
        choice = ViewChoice(
            view=self.view,
            kind=self.kind,
            layer=first,
            head=head,
            words=self.words,
            token=self.token,
            without_first=self.without_first,
        )
        if self.names is not None:
            measured = read_measurement(self.names)
            named = [with_measurement(attention, measured) for attention in result.attention]
            result = replace(result, attention=named)

        against = None
        if self.against is not None:
            second = open_float32(self.against, self.machine)
            against = self.look_at(second, texts, last_part(self.against))

        self.show_look(result, choice, against, story)

    def read_story(self, ending: str | None) -> Story | None:
        """The story of the page, if there is one."""
        if self.story is None:
            return None
        if ending != ".html":
            raise ValueError("story: a page tells a story; write it to --out look.html")

        return read_story(self.story)

    def look_at(
        self, opened: Opened, texts: list[str], name: str, story: Story | None = None
    ) -> Look:
        """What one model does with the texts; a page has what its story shows."""
        ending = ending_of(self.out)
        shown: set[str | None] = {self.view}
        layers_shown, walked = self.layer, self.walked
        if story is not None:
            shown |= story.views
            layers_shown += story.layers
            walked += story.walked

        whole = ending in (".html", ".safetensors")

        # A page computes every layer and decides itself what is affordable (None).
        is_page = ending == ".html"
        unless_shown = None if is_page else False

        with ExitStack() as changes:
            if self.mask == "none":
                changes.enter_context(unmasked(opened.model))

            changes.enter_context(Console(stderr=True).status("reading the text ..."))
            result = look(
                opened.model,
                *texts,
                tokenizer=opened.tokenizer,
                source=self.source,
                target=self.target,
                layers=None if is_page else self.layer or None,
                at_least=layers_shown,
                name=name,
                attention=whole or self.view not in WITHOUT_ATTENTION,
                lens="lens" in shown or None,
                norms="norms" in shown or None,
                attribution="attribution" in shown or unless_shown,
                model_walk="model" in shown or unless_shown,
                walks=is_page and ("walk" in shown or None),
                walked=walked if is_page else (),
            )
            if self.view == "walk" and not whole:
                return self.with_walk(result, opened.model, opened.tokenizer)

            return result

    @property
    def walked(self) -> list[HeadSite]:
        """The heads of the flags, for their walks."""
        return [(self.kind, layer, head) for layer in self.layer for head in self.head]

    def with_walk(self, result: Look, model: Model, tokenizer: Tokenizer) -> Look:
        """The look with the walk of the chosen head, or else of the most telling one."""
        names = self.walked
        if not names:
            names = walks_first(result.of(self.kind))
            if self.head:
                names = [name for name in names if name[2] == self.head[0]]

        return replace(result, walks=walk_heads(model, result.reading, tokenizer, names[:1]))

    def read_texts(self, story: Story | None = None) -> list[str]:
        """The texts of the command line, of a file, of the story, or of standard input."""
        if self.data is not None:
            if self.text:
                raise ValueError("text: a file is given as well; leave one of them out")

            return [read_text_or_pipe(self.data).strip()]

        if self.text or self.source is not None:
            return list(self.text)
        if story is not None and story.text is not None:
            return [story.text]
        if sys.stdin.isatty():
            raise ValueError("text: expected a text to read, in quotation marks")

        return [read_standard_input().strip()]

    def show_look(
        self, result: Look, choice: ViewChoice, against: Look | None, story: Story | None
    ) -> None:
        """Print one view, or write the file."""
        if choice.view is None and ending_of(self.out) in (None, *ENDINGS):
            choice = replace(choice, view=default_view(result, choice))

        if self.out is not None:
            print(result.save(self.out, **vars(choice), against=against, story=story))
            return

        console = Console(highlight=False)
        terminal.show(result, console, choice)
        if console.is_terminal:
            note("--out look.html shows all of it, to click; --view names another view")

    def show_positions(self, model: Model) -> None:
        """The positional encoding of the model, at the terminal or as a picture."""
        from qkv.insight.render.figures import figure_style, position_figure

        encoding = position_encoding(model)
        if self.out is None:
            position_figure.show(encoding, Console(highlight=False))
            return

        picture = figure_style.save(
            lambda: position_figure.draw(encoding, self.model), self.out, "out"
        )
        print(picture)


def ending_of(out: Path | None) -> str | None:
    """The lower-case ending of the output file, which must be one that can be written."""
    if out is None:
        return None

    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"out: expected the name of a {', '.join(FORMATS)} file, not {out}")

    return ending


def default_view(result: Look, choice: ViewChoice) -> View:
    """One head if the flags choose it or there is only one, otherwise all heads."""
    heads = sum(site.depth * site.heads for site in result.attention)
    chosen = (choice.layer, choice.head, choice.kind)
    if heads == 1 or any(part is not None for part in chosen):
        return "head"
    if heads:
        return "heads"

    return "next"
