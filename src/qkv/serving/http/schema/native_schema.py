"""Request bodies of qkv's own routes: next, translate, fill, classify, attention, tokenize."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field, model_validator

from qkv.serving.http.schema.openai_schema import (
    MAX_CHARACTERS,
    MAX_TEXTS,
    MAX_TOKENS,
    ChatMessage,
    HeadsOff,
    Id,
    Ids,
    JsonBody,
    Penalty,
    SamplingFields,
    Seed,
    Temperature,
    Text,
    Texts,
    as_list,
    example,
)

MAX_CANDIDATES = 200
Kind = Literal["self", "encoder", "decoder", "cross"]
Inputs = Annotated[
    list[Text | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=1024)]],
    Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS),
]


class NextRequest(
    SamplingFields, json_schema_extra=example(model="smollm2", prompt="The cat sat on the")
):
    prompt: Text | Ids = Field(
        "",
        validation_alias=AliasChoices("prompt", "text"),
        description="Text or ids; an empty text asks for the first token of a text. May also be "
        "called text, as on the other routes.",
    )
    top: Annotated[int, Field(ge=1, le=MAX_CANDIDATES)] = Field(
        40, description="Number of tokens to return, the most likely first."
    )


class TranslateRequest(
    JsonBody, json_schema_extra=example(model="translator", text="the cat sat", alignment=True)
):
    text: Text | Texts
    beams: int = Field(
        4, ge=1, le=16, description="Width of the beam search; 1 generates token by token."
    )
    n_best: int = Field(
        1, ge=1, le=16, description="Number of translations per text, the best first."
    )
    length_penalty: Penalty = Field(0.6, description="Values above 0 favour longer translations.")
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Null allows about twice the length of the source."
    )
    temperature: Temperature = Field(
        0.0, description="Above 0, tokens are sampled; needs beams: 1."
    )
    seed: Seed | None = None
    alignment: bool = Field(
        False, description="Return the attention between source and target words."
    )
    stream: bool = Field(False, description="Send server-sent events; needs beams: 1 and one text.")
    heads_off: HeadsOff = Field(
        default=[], description="Heads of the decoder's self-attention; needs beams: 1."
    )

    @model_validator(mode="after")
    def check_consistency(self) -> TranslateRequest:
        if self.temperature and self.beams > 1:
            raise ValueError("temperature: a beam search does not sample; set beams: 1")
        if self.heads_off and self.beams > 1:
            raise ValueError("heads_off: not supported in a beam search; set beams: 1")
        if self.beams > 1 and self.n_best > self.beams:
            raise ValueError(
                f"n_best: expected 1 to {self.beams}, the number of beams, not {self.n_best}"
            )
        if self.beams == 1 and self.n_best > 1 and not self.temperature:
            raise ValueError(
                "n_best: one beam finds one translation; use more beams, or a temperature above 0"
            )
        if self.stream and (self.beams > 1 or len(self.texts) > 1):
            raise ValueError("stream: only one text with one beam can be streamed; set beams: 1")
        if len(self.texts) * self.n_best * self.beams > 4 * MAX_TEXTS:
            raise ValueError(
                f"text: texts times n_best times beams are more than {4 * MAX_TEXTS}; send fewer"
            )

        return self

    @property
    def texts(self) -> list[str]:
        return as_list(self.text)


class FillRequest(
    JsonBody, json_schema_extra=example(model="bert", text="The [mask] sat on the mat.")
):
    text: Text = Field(description="A text with [mask] in place of each missing word.")
    top: int = Field(5, ge=1, le=MAX_CANDIDATES, description="Number of candidates per mask.")


class ClassifyRequest(
    JsonBody, json_schema_extra=example(model="sst-2", text="a film to remember")
):
    text: Text | Inputs = Field(
        validation_alias=AliasChoices("text", "texts"),
        description="A text or a list of texts. Each may be a list itself: a pair, a context with "
        "its choices, or words to tag.",
    )
    explain: bool = Field(
        False, description="Return which tokens led to the answer: gradient x input."
    )

    @property
    def texts(self) -> list[str | list[str]]:
        return as_list(self.text)


class ReadFields(JsonBody):
    """A text as a model reads it: ids, one text, two texts, or a source and its target."""

    text: (
        Text
        | Ids
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=64)]
        | None
    ) = Field(
        None,
        validation_alias=AliasChoices("text", "texts"),
        description="A text; a GPT also accepts ids, a BERT also a list of two texts.",
    )
    source: Text | None = Field(None, description="The source text of a translator.")
    target: Text | None = Field(
        None, description="The target text of a translator; null translates the source."
    )
    kind: Kind | None = Field(None, description="The kind of attention to show first.")
    heads_off: HeadsOff = Field(default=[])

    @model_validator(mode="after")
    def check_consistency(self) -> ReadFields:
        if (self.text is None) == (self.source is None):
            raise ValueError("text: expected one of text and source")

        return self

    @property
    def sequence(self) -> str | list[int] | None:
        """The single text, or its ids."""
        if isinstance(self.text, str):
            return self.text

        return self.ids

    @property
    def ids(self) -> list[int] | None:
        """The ids, if the text is given as ids."""
        ids = [item for item in self.text or [] if isinstance(item, int)]
        return ids or None

    @property
    def texts(self) -> list[str]:
        """All texts that are not given as ids."""
        if isinstance(self.text, str):
            return [self.text]

        return [item for item in self.text or [] if isinstance(item, str)]


class AttentionRequest(
    ReadFields,
    json_schema_extra=example(model="smollm2", text="The cat sat on the mat", layers=[0, 1]),
):
    layers: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=10_000)]], Field(fail_fast=True, max_length=1000)
        ]
        | None
    ) = Field(
        None,
        description="Layers whose heads are returned; null returns all. Needed for long texts.",
    )
    lens: bool = Field(False, description="Also return the prediction after each layer.")
    norms: bool = Field(
        False, description="Also return norms of the residual stream and of gradients."
    )
    attribution: bool = Field(
        False, description="Also return gradient x input of each prediction; for short texts."
    )
    top: int = Field(5, ge=1, le=100, description="Number of predicted tokens per position.")
    model_walk: bool = Field(
        False, description="Also return the walk of each token through the whole model."
    )


class TokenizeRequest(JsonBody, json_schema_extra=example(model="smollm2", text="The cat sat")):
    text: Text | None = None
    ids: Annotated[list[Id], Field(fail_fast=True, max_length=MAX_CHARACTERS)] | None = None
    messages: (
        Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=256)] | None
    ) = Field(None, description="A chat, as its template writes it for the model.")

    @model_validator(mode="after")
    def check_consistency(self) -> TokenizeRequest:
        given = [field for field in (self.text, self.ids, self.messages) if field is not None]
        if len(given) != 1:
            raise ValueError("text: expected one of text, ids and messages")

        return self
