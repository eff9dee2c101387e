"""Numbers as coloured cells in a terminal: attention as a heat map, drawn as large as there is room
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text
from torch import Tensor

from qkv.text.printable import in_one_line, shortened

# Of the 256 colours every terminal has, from dark to bright. Nothing has its colour, too: so the
# picture is the same on a dark terminal and on a light one.
BLUES = (234, 17, 18, 24, 25, 31, 38, 45, 87, 195)
BRIGHT = 6  # from this shade on, numbers are written in black
SHADES = (" .:-=+*#%@", " ░▒▓█")  # where there are no colours: in plain letters, and in blocks
EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST = 12  # cells of a column's name
LONGEST_ROW = 16
NARROW = 2  # cells wide: without its number, a cell is about as wide as high
TURNS = "\u200e"  # after a word from right to left, what follows stays at its right


def has_colours(console: Console) -> bool:
    """256 of them; with fewer, shades would run together."""
    return console.color_system in ("256", "truecolor") and not console.no_color


def has_blocks(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def step(shade: float, steps: int) -> int:
    """Which of so many steps a shade from 0 to 1 is; what is not 0 at all may still be the first."""
    return min(steps - 1, max(0, int(shade * steps)))


def style_of(shade: float) -> Style:
    at = step(shade, len(BLUES))
    letters = 16 if at >= BRIGHT else 231 if at else 245  # next to nothing is said quietly
    return Style.parse(f"color({letters}) on color({BLUES[at]})")


def cell(text: str, shade: float, console: Console) -> Text:
    return Text(text, style=style_of(shade) if has_colours(console) else "")


def ink(shade: float, console: Console) -> str:
    """A sign that is as dark as the shade, for a console without colours."""
    signs = SHADES[has_blocks(console)]
    return signs[step(shade, len(signs))]


def bar(part: float, width: int = 40, blocks: bool = True) -> str:
    """As long as the part of the whole, to an eighth of a character."""
    eighths = round(min(1.0, max(0.0, part)) * width * 8)
    if not blocks:
        return "#" * round(eighths / 8)

    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def fitted(text: str, width: int, console: Console, align: str = "left") -> str:
    """A person's or a model's word, in exactly so many cells."""
    if has_blocks(console):
        text = shortened(text, width)
    else:  # it may know neither the letters nor an ellipsis
        text = in_one_line(text).encode(console.encoding, "replace").decode(console.encoding)

    room = max(0, width - cell_len(text))
    before = room if align == "right" else room // 2 if align == "centre" else 0
    turned = (
        TURNS
        if has_blocks(console)
        and any("\u0590" <= sign <= "\u08ff" or sign == "\u200f" for sign in text)
        else ""
    )

    return set_cell_size(" " * before + text + turned, width)


def weight_said(weight: float) -> str:
    return f"{weight:.2f}"


def root(weights: Tensor) -> Tensor:
    """The shade of a weight: a few hundredths of the attention are seen, too."""
    return weights.clamp(0, 1).sqrt()


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Who looks (down) at whom (across); the brighter, the more.

    Where numbers have no room, cells are narrower; where even these have none, a cell stands for
    several words.
    """

    weights: Float[Tensor, "T S"]
    rows: Sequence[str]
    columns: Sequence[str]
    title: str = ""
    shades: Float[Tensor, "T S"] | None = None
    """From 0 to 1; the root of the weight unless given."""
    say: Callable[[float], str] = weight_said

    @property
    def digits(self) -> int:
        """How wide a number is: the least and the largest are the widest, or one that is no number."""
        known = self.weights[self.weights.isfinite()]
        ends = (
            [*known.aminmax(), *self.weights[~self.weights.isfinite()].unique()]
            if known.numel()
            else [torch.tensor(0.0)]
        )
        return max(cell_len(self.say(float(each))) for each in ends)

    @property
    def named(self) -> int:
        """How wide a cell is that has room for its number and for its column's name."""
        widest = max(map(cell_len, self.columns), default=0)
        return max(self.digits, min(widest, LONGEST)) + 2

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        names = min(max(map(cell_len, self.rows), default=0), LONGEST_ROW)
        widest = max(names + 1 + len(self.columns) * self.named, cell_len(self.title))
        return Measurement(min(24, widest), widest).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        names = min(max(map(cell_len, self.rows), default=0), LONGEST_ROW, max(1, width // 4))
        count = len(self.columns)
        marks = len(str(max(count, len(self.rows)) - 1)) + 1  # the number before a row's name
        if self.title:
            yield Text(fitted(self.title, width, console).rstrip(), style="bold", no_wrap=True)

        if names + 1 + count * self.named <= width:
            yield from self.with_names(console, names)
            return

        for wide in (self.digits + 2, self.digits + 1, NARROW):
            if names + marks + 1 + count * wide <= width:
                yield from self.with_numbers(console, names, wide)
                return

        yield from self.pooled(console, max(1, (width - names - marks - 1) // NARROW), names)

    def with_names(self, console: Console, names: int) -> Iterator[Text]:
        """Each column under its name."""
        above = Text(" " * (names + 1), no_wrap=True, end="\n")
        for column in self.columns:
            above.append(fitted(shortened(column, self.named - 1), self.named, console, "centre"))

        yield above
        yield from self.lines(
            console, [fitted(row, names, console, "right") for row in self.rows], self.named
        )

    def with_numbers(self, console: Console, names: int, width: int) -> Iterator[Text]:
        """Columns under their positions, counted from 0; these stand before the rows, or in a
        legend below.
        """
        marks = len(str(max(len(self.columns), len(self.rows)) - 1))
        alike = tuple(self.rows) == tuple(self.columns)
        rows = [
            (f"{place:>{marks}} " if alike else " " * (marks + 1)) + fitted(row, names, console)
            for place, row in enumerate(self.rows)
        ]
        yield Text(
            " " * (marks + names + 2) + ruler(len(self.columns), width), style="dim", no_wrap=True
        )
        yield from self.lines(console, rows, width)
        if not alike and tuple(self.columns) != tuple(map(str, range(len(self.columns)))):
            legend = Text("columns: ", style="dim")
            for place, column in enumerate(self.columns):
                legend.append(f"{place} ", style="dim").append(
                    fitted(column, cell_len(column), console)
                ).append("  ")

            yield legend

    def pooled(self, console: Console, room: int, names: int) -> Iterator[Text]:
        """A cell for several rows and columns: the largest weight among them."""
        several = -(-len(self.columns) // room)
        columns, rows = -(-len(self.columns) // several), -(-len(self.rows) // several)
        weights = F.max_pool2d(self.weights.unsqueeze(0), several, ceil_mode=True)[
            0
        ]  # (T, S) -> (t, s)
        shades = F.max_pool2d(self.all_shades.unsqueeze(0), several, ceil_mode=True)[0]
        firsts = [f"{place} {self.rows[place]}" for place in range(0, len(self.rows), several)]
        alike = tuple(self.rows) == tuple(self.columns)
        marks = len(str(len(self.rows) - 1)) + 1
        small = HeatMap(weights, firsts, [""] * columns, shades=shades)
        yield Text(
            " " * (marks + names + 1) + ruler(columns, NARROW, several),
            style="dim",
            no_wrap=True,
            overflow="crop",
        )

        yield from small.lines(
            console, [fitted(first, names + marks, console) for first in firsts[:rows]], NARROW
        )
        what = "words" if alike else "rows and columns"
        yield Text(
            f"Each cell: the largest weight among {several} by {several} {what}.", style="dim"
        )

    @property
    def all_shades(self) -> Tensor:
        return root(self.weights) if self.shades is None else self.shades

    def lines(self, console: Console, names: Sequence[str], width: int) -> Iterator[Text]:
        """A line for each row, cells of this width; with a number where there is room."""
        shades = self.all_shades.tolist()
        colours, numbers = has_colours(console), width > self.digits

        for name, weights, row in zip(names, self.weights.tolist(), shades, strict=True):
            line = Text(f"{name} ", no_wrap=True, overflow="crop")
            for weight, shade in zip(weights, row, strict=True):
                text = self.say(weight).rjust(self.digits).center(width) if numbers else " " * width
                if not numbers and not colours:
                    text = ink(shade, console) * width

                line.append(text, style=style_of(shade) if colours else "")

            yield line


def ruler(count: int, width: int, several: int = 1) -> str:
    """The positions of columns, counted from 0, as many as have room."""
    last = len(str((count - 1) * several))
    every = next(each for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if each * width > last)
    line = ""

    for place in range(0, count, every):
        line = line.ljust(place * width) + str(place * several).center(width if width > last else 0)

    return line


def mosaic(weights: Float[Tensor, "t s"], width: int, console: Console) -> list[Text]:
    """A head at a glance: two rows of pixels in each line, as half blocks; without colours one, as
    shades.
    """
    T, S = weights.shape
    coloured = has_colours(console) and has_blocks(console)
    high, wide = min(T, width), min(S, width)
    pixels = root(
        F.adaptive_max_pool2d(weights.unsqueeze(0), (high, wide))[0]
    )  # (t, s) -> (high, wide)
    if not coloured:
        return [Text("".join(ink(shade, console) for shade in row)) for row in pixels.tolist()]

    if high % 2:
        pixels = torch.cat(
            [pixels, pixels.new_full((1, wide), -1)]
        )  # below the last row there is nothing

    lines = []

    for above, below in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        line = Text()
        for one, other in zip(above, below, strict=True):
            ground = f" on color({BLUES[step(other, len(BLUES))]})" if other >= 0 else ""
            line.append("▀", style=f"color({BLUES[step(one, len(BLUES))]}){ground}")

        lines.append(line)

    return lines
