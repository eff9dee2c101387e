"""What a client may ask over our own routes: the next token, translations, masks, classes,
attention, tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from qkv.serving.http.schema.openai_schema import (
    MOST_TEXT,
    MOST_TEXTS,
    MOST_WORDS,
    HeadsOff,
    Id,
    Ids,
    JsonBody,
    SamplingFields,
    Seed,
    Temperature,
    Text,
    Texts,
)

MOST_LISTED = 200
Inputs = Annotated[
    list[Text | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=1024)]],
    Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS),
]


class NextRequest(SamplingFields):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "prompt": "The cat sat on the"}]}
    )

    prompt: Text | Ids = Field(
        "",
        validation_alias=AliasChoices("prompt", "text"),
        description="Text or ids; an empty text asks what a text begins with. May be called text, as elsewhere.",
    )
    top: Annotated[int, Field(ge=1, le=MOST_LISTED)] = Field(
        40, description="So many tokens, the likeliest first."
    )


class TranslateRequest(JsonBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "translator", "text": "the cat sat", "alignment": True}]
        }
    )

    text: Text | Texts
    beams: Annotated[int, Field(ge=1, le=16)] = Field(
        4,
        description="So many translations are weighed against each other; 1 takes one token after another.",
    )
    n_best: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="Translations of each text, the best first."
    )
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] = Field(
        0.6, description="Above 0 favours longer translations."
    )
    max_tokens: Annotated[int, Field(ge=1, le=MOST_WORDS)] | None = Field(
        None, description="Twice as many as the source has and a few more, unless given."
    )
    temperature: Temperature = Field(0.0, description="Above 0 with one beam: tokens are drawn.")
    seed: Seed | None = None
    alignment: bool = Field(False, description="Which source words each target word looked at.")
    stream: bool = Field(False, description="As server-sent events; needs beams: 1 and one text.")
    heads_off: HeadsOff = Field(
        default=[], description="Of the decoder's own attention; needs beams: 1."
    )

    @model_validator(mode="after")
    def consistent(self) -> TranslateRequest:
        if self.temperature and self.beams > 1:
            raise ValueError("temperature: a search with beams draws nothing; it needs beams: 1")
        if self.heads_off and self.beams > 1:
            raise ValueError("heads_off: a search with beams has all heads; it needs beams: 1")
        if self.beams > 1 and self.n_best > self.beams:
            raise ValueError(
                f"n_best: expected 1 to {self.beams}, as many as there are beams, not {self.n_best}"
            )
        if self.beams == 1 and self.n_best > 1 and not self.temperature:
            raise ValueError(
                "n_best: one beam finds one translation; expected more beams, or a temperature above 0"
            )
        if self.stream and (self.beams > 1 or len(self.texts) > 1):
            raise ValueError("stream: one beam and one text can be streamed; expected beams: 1")
        if len(self.texts) * self.n_best * self.beams > 4 * MOST_TEXTS:
            raise ValueError(
                f"text: texts times n_best times beams are more than {4 * MOST_TEXTS}; send fewer at once"
            )

        return self

    @property
    def texts(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else self.text


class FillRequest(JsonBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "bert", "text": "The [mask] sat on the mat."}]}
    )

    text: Text = Field(description="With [mask] where a word is missing.")
    top: Annotated[int, Field(ge=1, le=MOST_LISTED)] = Field(
        5, description="Guesses for each mask."
    )


class ClassifyRequest(JsonBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "sst-2", "text": "a film to remember"}]}
    )

    text: Text | Inputs = Field(
        validation_alias=AliasChoices("text", "texts"),
        description="A text, or a list of them. Each may be a list itself: a pair, a context with its choices, or "
        "words to tag.",
    )

    @property
    def texts(self) -> list[str | list[str]]:
        return [self.text] if isinstance(self.text, str) else self.text


class AttentionRequest(JsonBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "smollm2", "text": "The cat sat on the mat", "layers": [0, 1]}]
        }
    )

    text: (
        Text
        | Ids
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=64)]
        | None
    ) = Field(
        None,
        validation_alias=AliasChoices("text", "texts"),
        description="What is read: a text; of a GPT also ids; of a BERT also a list of two texts.",
    )
    source: Text | None = Field(None, description="Of a translator.")
    target: Text | None = Field(
        None, description="Of a translator; its own translation unless given."
    )
    kind: Literal["self", "encoder", "decoder", "cross"] | None = Field(
        None, description="Which is shown first."
    )
    layers: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=10_000)]], Field(fail_fast=True, max_length=1000)
        ]
        | None
    ) = Field(
        None, description="Layers whose heads come in full; all unless given. A long text needs it."
    )
    lens: bool = Field(False, description="Also the prediction after each layer.")
    norms: bool = Field(False, description="Also norms of the residual stream and of gradients.")
    heads_off: HeadsOff = Field(default=[])

    @model_validator(mode="after")
    def consistent(self) -> AttentionRequest:
        if (self.text is None) == (self.source is None):
            raise ValueError("text: expected one of text and source")

        return self

    @property
    def sequence(self) -> str | list[int] | None:
        """The one text, or its ids."""
        return self.text if isinstance(self.text, str) else self.ids

    @property
    def ids(self) -> list[int] | None:
        found = [each for each in self.text or [] if isinstance(each, int)]
        return found or None

    @property
    def texts(self) -> list[str]:
        """All that are given as text, not as ids."""
        given = [self.text] if isinstance(self.text, str) else self.text or []
        return [each for each in given if isinstance(each, str)]


class TokenizeRequest(JsonBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "text": "The cat sat"}]}
    )

    text: Text | None = None
    ids: Annotated[list[Id], Field(fail_fast=True, max_length=MOST_TEXT)] | None = None

    @model_validator(mode="after")
    def consistent(self) -> TokenizeRequest:
        if (self.text is None) == (self.ids is None):
            raise ValueError("text: expected text, or ids, one of them")

        return self
