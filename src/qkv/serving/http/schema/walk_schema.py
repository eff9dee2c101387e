"""Request body of /v1/walk: a head, and the edits under which it is computed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from qkv.insight.walk.walk_edits import WalkEdits
from qkv.serving.http.schema.native_schema import ReadFields
from qkv.serving.http.schema.openai_schema import example

MAX_ITEMS = 256
"""Tokens of a text, and edits of each kind."""
Position = Annotated[int, Field(ge=0, le=1_000_000)]
Token = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
MovedPosition = Annotated[int, Field(strict=True, ge=-1_000_000, le=1_000_000)]
Number = Annotated[int, Field(ge=0, le=10_000)]
Weight = Annotated[float, Field(strict=True, ge=0, le=1.001)]
"""A share of 1, which may be rounded up."""
Row = Annotated[list[Weight], Field(fail_fast=True, max_length=MAX_ITEMS)]


class HeadEdits(BaseModel):
    """Numbers and switches are strict; tokens are keys of objects, which JSON has as strings."""

    model_config = ConfigDict(extra="forbid")

    divisor: Annotated[float, Field(strict=True, ge=0.01, le=10_000)] | None = Field(
        None, description="What q·k is divided by; null is the model's own, √d."
    )
    lift_mask: StrictBool = Field(False, description="Let every query see every key.")
    weights: Annotated[dict[Position, Row], Field(max_length=MAX_ITEMS)] = Field(
        default={}, description="By query: the weights of all keys, as given."
    )
    swap_keys: Annotated[list[tuple[Token, Token]], Field(fail_fast=True, max_length=MAX_ITEMS)] = (
        Field(default=[], description="Pairs of tokens whose keys change places.")
    )
    move: Annotated[dict[Position, MovedPosition], Field(max_length=MAX_ITEMS)] = Field(
        default={},
        description="By token: the position at which its key is taken to stand; below 0 where "
        "only distances count (rotary, ALiBi, relative).",
    )
    strength: Annotated[float, Field(strict=True, ge=-10, le=10)] = Field(
        1.0, description="Factor of the head's output; 0 switches it off."
    )

    @property
    def edits(self) -> WalkEdits:
        return WalkEdits(**{name: getattr(self, name) for name in HeadEdits.model_fields})


class WalkRequest(
    ReadFields,
    json_schema_extra=example(
        model="smollm2",
        text="The cat sat on the mat because it was tired",
        layer=13,
        head=8,
        edits={"divisor": 1.0},
    ),
):
    layer: Number = Field(description="The layer, counted from 0.")
    head: Number = Field(description="The head, counted from 0.")
    position: Number | None = Field(
        None,
        description="The token whose prediction is compared; null is the first mask token, or "
        "the last token.",
    )
    edits: HeadEdits | None = Field(None, description="Changes of this head; null is none.")

    @property
    def walk_edits(self) -> WalkEdits:
        return WalkEdits() if self.edits is None else self.edits.edits
