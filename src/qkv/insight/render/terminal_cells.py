"""Heat maps in a terminal: numbers as coloured cells, drawn as large as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text
from torch import Tensor

from qkv.text.printable import in_one_line, shortened

# From dark to bright, of the 256 colours that every terminal has. Zero has its own colour, so the
# heat map looks the same on a dark and on a light terminal.
BLUES = (234, 17, 18, 24, 25, 31, 38, 45, 87, 195)
BRIGHT = 6  # from this level on, numbers are written in black
SHADES = (" .:-=+*#%@", " ░▒▓█")  # without colours: in ASCII, and in block characters
EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST = 12  # cells of a column's name
LONGEST_ROW = 16
NARROW = 2  # width of a cell without its number: about as wide as high
LEFT_TO_RIGHT = "\u200e"  # keeps what follows a right-to-left text at its right


def has_colours(console: Console) -> bool:
    """True for a console with 256 colours; with fewer, shades would run together."""
    return console.color_system in ("256", "truecolor") and not console.no_color


def has_blocks(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def step(shade: float, steps: int) -> int:
    """Quantise a shade in [0, 1] to one of `steps` levels, rounding down."""
    return min(steps - 1, max(0, int(shade * steps)))


def style_of(shade: float) -> Style:
    """The background of a shade, with letters that are readable on it; those of 0 are dim."""
    level = step(shade, len(BLUES))
    letters = 231
    if level >= BRIGHT:
        letters = 16
    elif level == 0:
        letters = 245

    return Style.parse(f"color({letters}) on color({BLUES[level]})")


def cell(text: str, shade: float, console: Console) -> Text:
    """A text on the background of a shade, if the console has colours."""
    if not has_colours(console):
        return Text(text)

    return Text(text, style=style_of(shade))


def ink(shade: float, console: Console) -> str:
    """A character as dark as the shade, for a console without colours."""
    characters = SHADES[has_blocks(console)]
    return characters[step(shade, len(characters))]


def bar(part: float, width: int = 40, blocks: bool = True) -> str:
    """A bar whose length is this part of the width, to an eighth of a character."""
    eighths = round(min(1.0, max(0.0, part)) * width * 8)
    if not blocks:
        return "#" * round(eighths / 8)

    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def fitted(text: str, width: int, console: Console, align: str = "left") -> str:
    """A text of any origin in exactly `width` cells; align is left, centre or right."""
    direction = ""
    if has_blocks(console):
        text = shortened(text, width)
        direction = LEFT_TO_RIGHT * has_right_to_left(text)
    else:  # the encoding may lack the letters and the ellipsis
        text = in_one_line(text).encode(console.encoding, "replace").decode(console.encoding)

    free = max(0, width - cell_len(text))
    before = {"left": 0, "centre": free // 2, "right": free}[align]

    return set_cell_size(" " * before + text + direction, width)


def has_right_to_left(text: str) -> bool:
    return any("\u0590" <= char <= "\u08ff" or char == "\u200f" for char in text)


def root(weights: Tensor) -> Tensor:
    """The shade of a weight: its root, which makes weights of a few hundredths visible."""
    return weights.clamp(0, 1).sqrt()


def widest(names: Sequence[str]) -> int:
    return max(map(cell_len, names), default=0)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Queries down, keys across; the brighter a cell, the larger its weight.

    Where numbers have no room, cells are narrower; where even these have none, a cell stands for
    several tokens.
    """

    weights: Float[Tensor, "T S"]
    rows: Sequence[str]
    columns: Sequence[str]
    title: str = ""
    shades: Float[Tensor, "T S"] | None = None
    """From 0 to 1; by default the root of the weight."""
    format_value: Callable[[float], str] = "{:.2f}".format
    """Formats a number."""
    forbidden: Bool[Tensor, "T S"] | None = None
    """True for cells that a mask forbids; they are hatched."""

    @property
    def digits(self) -> int:
        """The width of the widest number: the smallest, the largest or a non-finite one."""
        finite = self.weights[self.weights.isfinite()]
        if finite.numel() == 0:
            return cell_len(self.format_value(0.0))

        extremes = [*finite.aminmax(), *self.weights[~self.weights.isfinite()].unique()]
        return max(cell_len(self.format_value(float(value))) for value in extremes)

    @property
    def named(self) -> int:
        """The width of a cell with room for its number and for its column's name."""
        return max(self.digits, min(widest(self.columns), LONGEST)) + 2

    @property
    def all_shades(self) -> Tensor:
        if self.shades is None:
            return root(self.weights)

        return self.shades

    @property
    def alike(self) -> bool:
        """True if rows and columns are the same tokens."""
        return tuple(self.rows) == tuple(self.columns)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        names = min(widest(self.rows), LONGEST_ROW)
        most = max(names + 1 + len(self.columns) * self.named, cell_len(self.title))
        return Measurement(min(24, most), most).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        names = min(widest(self.rows), LONGEST_ROW, max(1, width // 4))
        count = len(self.columns)
        number = len(str(max(count, len(self.rows)) - 1)) + 1  # before a row's name
        if self.title:
            yield Text(fitted(self.title, width, console).rstrip(), style="bold", no_wrap=True)

        # The widest form that fits
        if names + 1 + count * self.named <= width:
            yield from self.with_names(console, names)
            return

        for wide in (self.digits + 2, self.digits + 1, NARROW):
            if names + number + 1 + count * wide <= width:
                yield from self.with_numbers(console, names, wide)
                return

        yield from self.pooled(console, max(1, (width - names - number - 1) // NARROW), names)

    def with_names(self, console: Console, names: int) -> Iterator[Text]:
        """The columns below their names."""
        above = Text(" " * (names + 1), no_wrap=True, end="\n")
        for column in self.columns:
            above.append(fitted(shortened(column, self.named - 1), self.named, console, "centre"))

        yield above
        rows = [fitted(row, names, console, "right") for row in self.rows]
        yield from self.lines(console, rows, self.named)

    def with_numbers(self, console: Console, names: int, width: int) -> Iterator[Text]:
        """The columns below their positions, which stand before the rows or in a legend below."""
        digits = len(str(max(len(self.columns), len(self.rows)) - 1))
        rows = []
        for position, row in enumerate(self.rows):
            number = f"{position:>{digits}}" if self.alike else " " * digits
            rows.append(f"{number} {fitted(row, names, console)}")

        margin = " " * (digits + names + 2)
        yield Text(margin + ruler(len(self.columns), width), style="dim", no_wrap=True)
        yield from self.lines(console, rows, width)
        if not self.alike and list(self.columns) != list(map(str, range(len(self.columns)))):
            yield self.legend(console)

    def legend(self, console: Console) -> Text:
        """The names of the columns after their positions."""
        legend = Text("columns: ", style="dim")
        for position, column in enumerate(self.columns):
            legend.append(f"{position} ", style="dim")
            legend.append(fitted(column, cell_len(column), console)).append("  ")

        return legend

    def pooled(self, console: Console, room: int, names: int) -> Iterator[Text]:
        """A cell for several rows and columns: the largest weight among them."""
        several = -(-len(self.columns) // room)
        columns = -(-len(self.columns) // several)
        weights = max_pooled(self.weights, several)  # (T, S) -> (t, s)
        shades = max_pooled(self.all_shades, several)
        margin = len(str(len(self.rows) - 1)) + 1 + names
        firsts = []
        for position in range(0, len(self.rows), several):
            firsts.append(fitted(f"{position} {self.rows[position]}", margin, console))

        small = HeatMap(weights, firsts, [""] * columns, shades=shades)
        if self.forbidden is not None:
            allowed = max_pooled((~self.forbidden).float(), several)
            small = replace(small, forbidden=allowed == 0)

        above = " " * (margin + 1) + ruler(columns, NARROW, several)
        yield Text(above, style="dim", no_wrap=True, overflow="crop")
        yield from small.lines(console, firsts, NARROW)
        pooled = "tokens" if self.alike else "rows and columns"
        note = f"Each cell: the largest weight among {several} by {several} {pooled}."
        yield Text(note, style="dim")

    def lines(self, console: Console, names: Sequence[str], width: int) -> Iterator[Text]:
        """A line for each row with cells of this width, which have numbers where there is room."""
        shades = self.all_shades.tolist()
        has_numbers = width > self.digits
        hatch = "╱" if has_blocks(console) else "/"
        hatched = torch.zeros(self.weights.shape, dtype=torch.bool)
        if self.forbidden is not None:
            hatched = self.forbidden

        values = zip(names, self.weights.tolist(), shades, hatched.tolist(), strict=True)
        for name, weights, row, masked in values:
            line = Text(f"{name} ", no_wrap=True, overflow="crop")
            for weight, shade, is_masked in zip(weights, row, masked, strict=True):
                if is_masked:
                    line.append(hatch.center(width), style="dim")
                    continue

                text = " " * width
                if has_numbers:
                    text = self.format_value(weight).rjust(self.digits).center(width)
                elif not has_colours(console):
                    text = ink(shade, console) * width

                line.append_text(cell(text, shade, console))

            yield line


def max_pooled(values: Float[Tensor, "T S"], several: int) -> Float[Tensor, "t s"]:
    return F.max_pool2d(values.unsqueeze(0), several, ceil_mode=True)[0]


def ruler(count: int, width: int, several: int = 1) -> str:
    """The positions of columns, counted from 0, as many as have room."""
    last = len(str((count - 1) * several))
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    every = next(step for step in steps if step * width > last)
    room = width if width > last else 0
    line = ""
    for column in range(0, count, every):
        line = line.ljust(column * width) + str(column * several).center(room)

    return line


def mosaic(weights: Float[Tensor, "t s"], width: int, console: Console) -> list[Text]:
    """A small heat map of a head: half blocks hold two rows of pixels per line.

    Without colours, a line holds one row of pixels as shades.
    """
    T, S = weights.shape
    high = min(T, width)
    wide = min(S, width)
    pixels = root(F.adaptive_max_pool2d(weights.unsqueeze(0), (high, wide))[0])  # (high, wide)
    lines = []
    if not has_colours(console) or not has_blocks(console):
        for row in pixels.tolist():
            lines.append(Text("".join(ink(shade, console) for shade in row)))

        return lines

    if high % 2:  # nothing is below the last row
        pixels = torch.cat([pixels, pixels.new_full((1, wide), -1)])

    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", style=pixel_style(above, below))

        lines.append(line)

    return lines


def pixel_style(above: float, below: float) -> str:
    """The style of an upper half block; `below` is negative where there is no pixel."""
    style = f"color({BLUES[step(above, len(BLUES))]})"
    if below >= 0:
        style += f" on color({BLUES[step(below, len(BLUES))]})"

    return style
