"""The architecture of a model as a diagram: its parts, their sizes and the shapes between them.

The parts are read from the model itself, so that the picture shows what would be computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from torch import nn

from qkv.insight.render.diagrams.diagram import Box, Diagram, Kind, Point
from qkv.insight.render.figures.figure_style import PALE
from qkv.models.model import Model, backbone_of
from qkv.models.variants.own_gpt import OwnGPT

WIDE = 2.5  # a box
HIGH = 0.42
GAP = 0.3  # between two boxes
COLUMN = 4.3  # the distance of encoder and decoder
MARGIN = 2.3  # between the edge of the sheet and the middle of a column
BOTTOM = 0.45  # the middle of the lowest box
HEAD = 0.95  # room for the title
NORM = 0.3  # the height of a norm inside a block
PLUS = 0.22  # of the sum of a residual connection
JOINS = {"sum": "+", "product": "times", "concatenate": "beside"}
POSITIONS = {
    "learned": "learned positions",
    "sinusoidal": "sinusoidal positions",
    "rotary": "rotary positions (RoPE)",
    "alibi": "ALiBi: distances",
    "relative": "relative positions",
}
SCORES = {
    "additive": "v . tanh(W [s; h])",
    "general": "(A s) . (B h)",
    "dot": "s . h",
    "scaled_dot": "s . h / sqrt(E)",
}


class DiagramPart(NamedTuple):
    """A box of the diagram, and the shape of what leaves it."""

    title: str
    detail: str
    kind: Kind
    shape: str = ""
    name: str = ""
    """A name by which arrows find it."""


@dataclass
class PartColumn:
    """The parts of one stack, from the bottom to the top."""

    below: list[DiagramPart]
    block: list[DiagramPart] = field(default_factory=list)
    above: list[DiagramPart] = field(default_factory=list)
    repeats: int = 0
    """How often the block is repeated; 0 if there is none."""
    norm_before: bool = True
    norm: str = ""
    """The name of the norms in a block."""
    mirrored: bool = False
    """Residual connections on the right side."""

    def height(self) -> float:
        """The height of the column's boxes in inches."""
        boxes = len(self.below) + len(self.block) + len(self.above)
        space = boxes * (HIGH + GAP) + len(self.block) * (NORM + PLUS + 2 * GAP)
        return space - GAP + 2 * GAP * bool(self.block)


def draw_architecture(model: Model, name: str) -> Figure:
    """Draw a model as boxes from its input to its output.

    Args:
        model: Any model of this package; its weights may be on the device "meta".
        name: The title.

    Returns:
        A figure; `figure_style.save` writes it.

    Raises:
        ValueError: If the model is of a family that has neither stacks nor recurrent layers.

    Example:
        >>> from qkv.models import GPTConfig, build
        >>> gpt = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> draw_architecture(gpt, "tiny").get_size_inches().round().tolist()
        [5.0, 9.0]
    """
    columns = columns_of(model)
    high = BOTTOM - HIGH / 2 + max(column.height() for column in columns) + HEAD
    wide = 2 * MARGIN + COLUMN * (len(columns) - 1)
    sheet = Diagram(wide, high, name, summary_of(model))

    drawn: dict[str, Box] = {}
    for number, column in enumerate(columns):
        drawn |= draw_column(sheet, MARGIN + COLUMN * number, column)

    join_columns(sheet, drawn)
    return sheet.figure


def summary_of(model: Model) -> str:
    """The number of parameters, and the meaning of the letters."""
    letters = "B sequences, T tokens"
    if model.has_source:
        letters = "B sequences, S source and T target tokens"

    parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"{parameters / 1e6:,.1f} M parameters; {letters}"


def amount(*modules: nn.Module | None) -> str:
    """The number of parameters of modules, in short: 590 k, 2.4 M."""
    count = 0
    for module in modules:
        if module is not None:
            count += sum(parameter.numel() for parameter in module.parameters())

    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"

    return str(count)


def columns_of(model: Model) -> list[PartColumn]:
    """The columns of a model, the encoder's first."""
    backbone: Any = backbone_of(model)
    if isinstance(backbone, OwnGPT):
        raise ValueError("model: a diagram shows the package's parts, and this is your own GPT")
    if not model.stacks:
        return recurrent_columns(backbone)
    if not model.has_source:
        return [stack_column(model, "T", next(iter(model.stacks.values())))]

    encoder, decoder = model.stacks.values()
    left = stack_column(model, "S", encoder)
    right = stack_column(model, "T", decoder)
    left.above[-1] = left.above[-1]._replace(name="encoded", shape="")
    right.mirrored = True
    return [left, right]


# Stacks of blocks


def stack_column(model: Model, length: str, stack: Any) -> PartColumn:
    """The column of one stack: embedding, blocks, and what follows the last block."""
    backbone: Any = backbone_of(model)
    config = stack.config
    is_encoder = model.has_source and not stack.cross
    embedding = backbone.embedding
    if is_encoder:
        embedding = getattr(backbone, "source_embedding", None) or embedding

    shape = f"(B, {length}, {config.width:,})"
    above = list(norm_parts(stack, shape))
    if not is_encoder:
        above += output_parts(model, length)
    elif not above:
        above = [DiagramPart("encoder output", shape, "data")]

    return PartColumn(
        below=list(embedding_parts(embedding, stack, length, model.has_source, is_encoder)),
        block=list(block_parts(model, stack, shape)),
        above=above,
        repeats=len(stack.blocks),
        norm_before=config.norm_placement == "before",
        norm=norm_name(config.norm),
    )


def norm_name(kind: str) -> str:
    return "RMS norm" if kind == "rms" else "layer norm"


def embedding_parts(
    embedding: Any, stack: Any, length: str, has_source: bool, is_encoder: bool
) -> Iterator[DiagramPart]:
    """Token ids, their vectors, and what is added to these."""
    title = "token ids"
    if has_source:
        title = "source ids" if is_encoder else "target ids, shifted by one"

    limit = ""
    if stack.config.position == "learned":
        limit = f"{length} at most {embedding.context:,}"

    yield DiagramPart(title, limit, "data", f"(B, {length})")

    tokens, width = embedding.token.weight.shape
    shape = f"(B, {length}, {stack.config.width:,})"
    scaled = f", times sqrt({stack.config.width})" if embedding.scale != 1 else ""
    yield DiagramPart("token embedding", f"{tokens:,} x {width:,}{scaled}", "embedding", shape)

    if embedding.position is not None:
        title = f"{JOINS[embedding.join]} {POSITIONS[stack.config.position]}"
        yield DiagramPart(title, position_detail(embedding), "embedding", shape)

    if embedding.segment is not None:
        yield DiagramPart(
            "+ segments", f"{embedding.segment.num_embeddings} x {width:,}", "embedding", shape
        )

    if embedding.norm is not None:
        yield DiagramPart("layer norm", f"{amount(embedding.norm)} parameters", "norm", shape)


def position_detail(embedding: Any) -> str:
    """The size of learned positions; sinusoids have no parameters."""
    parameters = list(embedding.position.parameters())
    if not parameters:
        return "sines and cosines, no parameters"

    rows, width = parameters[0].shape
    return f"{rows:,} x {width:,}"


def block_parts(model: Model, stack: Any, shape: str) -> Iterator[DiagramPart]:
    """The sublayers of one block."""
    config = stack.config
    block = stack.blocks[0]
    is_encoder = model.has_source and not stack.cross
    masked = model.is_causal or stack.cross
    title = "self-attention"
    if masked and not is_encoder:
        title = "masked self-attention"

    position = ""
    if config.position in ("rotary", "alibi", "relative"):
        position = f", {config.position}"

    detail = attention_detail(block.attention) + position
    yield DiagramPart(title, detail, "attention", shape)
    if stack.cross:
        detail = attention_detail(block.cross_attention)
        yield DiagramPart("cross-attention", detail, "attention", shape, name="cross")

    hidden = f"{config.width:,} to {config.width_of_hidden:,} to {config.width:,}"
    detail = f"{hidden}, {config.activation}; {amount(block.feed_forward)}"
    yield DiagramPart("feed-forward", detail, "feed_forward", shape)


def attention_detail(attention: Any) -> str:
    """The heads of an attention layer and its parameters."""
    heads = f"{attention.heads} heads of {attention.head_width}"
    if attention.kv_heads != attention.heads:
        heads += f", {attention.kv_heads} for keys"

    return f"{heads}; {amount(attention)}"


def norm_parts(stack: Any, shape: str) -> Iterator[DiagramPart]:
    """The norm after the last block, if there is one."""
    if stack.norm is not None:
        yield DiagramPart(
            norm_name(stack.config.norm), f"{amount(stack.norm)} parameters", "norm", shape
        )


def output_parts(model: Model, length: str) -> list[DiagramPart]:
    """The output layer for tokens, or the head of a task."""
    backbone: Any = backbone_of(model)
    if model.task is not None:
        head = model.task
        detail = f"{head.task}, {head.pooling} vector; {amount(model.head)}"
        return [DiagramPart("task head", detail, "output", f"(B, 1, {head.outputs})")]
    if backbone.predicts is None:
        return []

    matrix, _ = backbone.output_layer
    tokens, width = matrix.shape
    head = backbone.head
    parts = []
    if backbone.predicts == "masked":
        shape = f"(B, {length}, {width:,})"
        parts.append(
            DiagramPart(
                "dense, norm", f"{amount(head.dense, head.norm)} parameters", "feed_forward", shape
            )
        )

    tied = " = embedding" if matrix is backbone.embedding.token.weight else ""
    title = "output layer"
    parts.append(
        DiagramPart(title, f"{width:,} x {tokens:,}{tied}", "output", f"(B, {length}, {tokens:,})")
    )
    parts.append(DiagramPart("softmax", f"predicts the {backbone.predicts} token", "operation"))
    return parts


# Recurrent models


def recurrent_columns(model: Any) -> list[PartColumn]:
    """The columns of a recurrent model: an encoder if it has one, and the decoder."""
    config = model.config
    if not hasattr(config, "cell"):
        raise ValueError("model: expected one with blocks of attention or with recurrent layers")

    columns = []
    if model.has_source:
        columns.append(PartColumn(list(recurrent_encoder(model))))

    columns.append(PartColumn(list(recurrent_decoder(model))))
    return columns


def recurrent_encoder(model: Any) -> Iterator[DiagramPart]:
    """The parts that read the source."""
    config = model.config
    shape = f"(B, S, {config.width:,})"
    yield DiagramPart("source ids", "", "data", "(B, S)")
    yield embedding_part(model.source_embedding, shape)

    directions = "both directions, " if config.bidirectional else ""
    detail = f"{directions}{recurrent_detail(config, model.encoder)}"
    yield DiagramPart(config.cell.upper(), detail, "recurrent", shape)
    detail = "the last one starts the decoder"
    yield DiagramPart("states h_1 ... h_S", detail, "data", name="encoded")


def recurrent_decoder(model: Any) -> Iterator[DiagramPart]:
    """The parts that predict the target, or the next token of a text."""
    config = model.config
    width = config.width
    shape = f"(B, T, {width:,})"
    attends = getattr(config, "attention", "none") != "none"
    title = "target ids, shifted by one" if model.has_source else "token ids"
    yield DiagramPart(title, "", "data", "(B, T)")
    yield embedding_part(model.embedding, shape)
    if attends:
        detail = f"weights: softmax of {SCORES[config.attention]}"
        shape_read = f"(B, T, {2 * width:,})"
        yield DiagramPart("join context vector c_t", detail, "attention", shape_read, name="cross")

    layers = model.decoder if model.has_source else model.layers
    detail = recurrent_detail(config, layers)
    yield DiagramPart(config.cell.upper(), detail, "recurrent", shape, name="states")
    if attends:
        detail = f"tanh, {2 * width:,} to {width:,}"
        yield DiagramPart("join state and c_t", detail, "feed_forward", shape)

    tokens = config.vocabulary
    tied = " = embedding" if config.tied else ""
    yield DiagramPart(
        "output layer", f"{width:,} x {tokens:,}{tied}", "output", f"(B, T, {tokens:,})"
    )
    yield DiagramPart("softmax", f"predicts the {model.predicts} token", "operation")


def embedding_part(embedding: Any, shape: str) -> DiagramPart:
    tokens, width = embedding.weight.shape
    return DiagramPart("token embedding", f"{tokens:,} x {width:,}", "embedding", shape)


def recurrent_detail(config: Any, layers: nn.Module | None) -> str:
    """The number of layers and of parameters."""
    plural = "s" * (config.depth != 1)
    residual = ", residual" * bool(getattr(config, "residual", False))
    return f"{config.depth} layer{plural}{residual}; {amount(layers)}"


# Drawing


def draw_column(sheet: Diagram, x: float, column: PartColumn) -> dict[str, Box]:
    """Draw a column from the bottom to the top; returns the boxes that have a name."""
    drawn: dict[str, Box] = {}
    last, y = draw_parts(sheet, x, BOTTOM, column.below, None, drawn)
    if column.block:
        assert last is not None
        y += GAP
        bottom = y - HIGH / 2 - 0.85 * GAP
        for part in column.block:
            last, y = draw_sublayer(sheet, x, y, part, column, last, drawn)

        top = y - HIGH / 2 - GAP / 2
        side = WIDE / 2 + 0.38
        label = f"{column.repeats} x"
        sheet.frame(x - side, bottom, x + side, top, label, right=column.mirrored)
        y += GAP

    draw_parts(sheet, x, y, column.above, last, drawn)
    return drawn


def draw_parts(
    sheet: Diagram,
    x: float,
    y: float,
    parts: Sequence[DiagramPart],
    last: Box | None,
    drawn: dict[str, Box],
) -> tuple[Box | None, float]:
    """Draw parts one above the other; returns the last box and the height of the next."""
    for part in parts:
        box = draw_part(sheet, x, y, part, drawn)
        if last is not None:
            sheet.arrow(last.top, box.bottom)

        last = box
        y += HIGH + GAP

    return last, y


def draw_part(sheet: Diagram, x: float, y: float, part: DiagramPart, drawn: dict[str, Box]) -> Box:
    """Draw one box, and above it the shape of what leaves it."""
    box = sheet.box(x, y, part.title, part.detail, kind=part.kind, wide=WIDE, high=HIGH)
    if part.shape:
        above = box.top[1] + GAP / 2
        sheet.text(x + 0.1, above, part.shape, size=7.5, color=PALE, ha="left")

    if part.name:
        drawn[part.name] = box

    return box


def draw_sublayer(
    sheet: Diagram,
    x: float,
    y: float,
    part: DiagramPart,
    column: PartColumn,
    last: Box,
    drawn: dict[str, Box],
) -> tuple[Box, float]:
    """Draw a sublayer with its norm and its residual connection, in the order of the model."""
    leaves = (x, y - HIGH / 2 - 0.6 * GAP)  # where the residual connection leaves the stream
    order = ("layer", "plus", "norm")
    if column.norm_before:
        order = ("norm", "layer", "plus")

    for step in order:
        if step == "norm":
            middle = y - HIGH / 2 + NORM / 2
            box = sheet.box(x, middle, column.norm, kind="norm", wide=WIDE, high=NORM, size=9)
            y += NORM + GAP
        elif step == "layer":
            box = draw_part(sheet, x, y, part, drawn)
            y += HIGH + GAP
        else:
            box = sheet.plus(x, y - HIGH / 2 + PLUS / 2)
            draw_residual(sheet, leaves, box, column.mirrored)
            y += PLUS + GAP

        sheet.arrow(last.top, box.bottom)
        last = box

    return last, y


def draw_residual(sheet: Diagram, leaves: Point, plus: Box, mirrored: bool) -> None:
    """The line around a sublayer to its sum."""
    x = leaves[0]
    edge = x - WIDE / 2 - 0.2
    end = plus.left
    if mirrored:
        edge = x + WIDE / 2 + 0.2
        end = plus.right

    sheet.path([leaves, (edge, leaves[1]), (edge, plus.y), end])


def join_columns(sheet: Diagram, drawn: dict[str, Box]) -> None:
    """The arrow from the encoder's output to the part of the decoder that reads it."""
    if "encoded" not in drawn:
        return

    source = drawn["encoded"]
    target = drawn.get("states", source)
    label = "last state"
    if "cross" in drawn:
        target = drawn["cross"]
        label = "keys, values"

    middle = (source.right[0] + target.left[0]) / 2
    sheet.path([source.right, (middle, source.y), (middle, target.y), target.left])
    sheet.text(middle, max(source.y, target.y) + 0.12, label, size=7.5, color=PALE)
    if "cross" in drawn and "states" in drawn:
        draw_query(sheet, drawn["states"], target)


def draw_query(sheet: Diagram, states: Box, target: Box) -> None:
    """The arrow from a recurrent decoder's last state to its attention."""
    edge = states.right[0] + 0.2
    middle = (states.y + target.y) / 2
    sheet.path([states.right, (edge, states.y), (edge, target.y), target.right])
    sheet.text(edge + 0.06, middle, "query s_{t-1}", size=7.5, color=PALE, ha="left")
