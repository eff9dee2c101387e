"""Bodies of POST /v1/effects: heads at another strength and steering; what they change."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, BaseModel, Field, model_validator

from qkv.serving.http.schema.openai_schema import HeadsOff, Ids, JsonBody, Strict, Text, example
from qkv.serving.http.schema.response_schema import Token

SteeringText = Annotated[str, Field(min_length=1, max_length=2_000)]


class SteeringFields(Strict):
    """A direction: the mean residual stream of one prompt minus that of the other."""

    layer: int = Field(ge=0, le=10_000, description="The layer after which it is added.")
    away: SteeringText = Field(
        validation_alias=AliasChoices("from"), description="The prompt to steer away from."
    )
    to: SteeringText = Field(description="The prompt to steer towards.")
    strength: float = Field(
        1.0, ge=-20, le=20, allow_inf_nan=False, description="Its factor; 0 changes nothing."
    )


class EffectsRequest(
    JsonBody,
    json_schema_extra=example(
        model="smollm2",
        text="The capital of France is",
        heads=["3.5"],
        steering={"layer": 12, "from": "The cat eats.", "to": "Le chat mange.", "strength": 1.0},
    ),
):
    text: Text | Ids = Field(description="Text or ids.")
    heads: HeadsOff = Field(
        default=[],
        validation_alias=AliasChoices("heads", "heads_off"),
        description='The heads to change: "3.5" is head 5 of layer 3, "2.*" all of layer 2.',
    )
    strength: float = Field(
        0.0,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="The factor of these heads' output: 0 is off, 1 unchanged.",
    )
    steering: SteeringFields | None = None
    top: int = Field(
        10, ge=1, le=40, description="Number of next tokens on each side; both sides are joined."
    )
    length: int = Field(
        0, ge=0, le=48, description="Number of tokens to continue both texts with, greedily."
    )

    @model_validator(mode="after")
    def check_consistency(self) -> EffectsRequest:
        if not self.heads and self.steering is None:
            raise ValueError("heads: expected one or more, or steering")

        return self


class ChangedToken(Token):
    before: float | None = Field(description="Its log-probability; null for the first token.")
    after: float | None
    kl: float = Field(
        description="KL(before || after) in nats, of the predictions that follow this token."
    )


class ChangedGuess(Token):
    before: float = Field(description="Its probability as the next token.")
    after: float


class ChangedTexts(BaseModel):
    before: list[Token]
    after: list[Token]


class EffectsReply(BaseModel):
    tokens: list[ChangedToken] = Field(description="The tokens of the text.")
    next: list[ChangedGuess] = Field(
        description="The likeliest next tokens before and after, by the larger probability."
    )
    rest: tuple[float, float] = Field(description="Probability of all other tokens on each side.")
    kl: float = Field(description="KL divergence of the next token's distribution, in nats.")
    change: float | None = Field(
        description="Change of the log-probability of the whole text; null for one token."
    )
    texts: ChangedTexts | None = Field(None, description="The continuations, with length above 0.")
