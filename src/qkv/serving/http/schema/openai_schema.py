"""What a client may ask over OpenAI's routes: every field with its type and its bounds, and none
that is not known.

The names are OpenAI's, and ours beside them. Types are strict: "1" is no number here, and 1 is no
text. A list is read up to its first fault: a million of them would be a million sentences.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST_TEXT = 1_000_000
"""Characters in one text."""
MOST_TEXTS = 128
"""Texts in one request, and choices that one may ask for."""
MOST_WORDS = 1_000_000
"""Tokens that one may ask for; the model's context is an end long before."""
MOST_FIELDS = 64
UNSUPPORTED = "this is not done here; leave it out"
UNENDING = 65_536
"""Tokens of a text in a model whose context has no end, as of a prompt."""

ModelName = Annotated[
    str, Field(min_length=1, max_length=200, description="One of GET /v1/models.")
]
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[Id], Field(fail_fast=True, min_length=1, max_length=MOST_TEXT)]
Texts = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS)]
Prompt = (
    Text
    | Texts
    | Ids
    | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS)]
)
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Head = Annotated[str, Field(pattern=r"^[0-9]{1,4}\.([0-9]{1,4}|\*)$", max_length=9)]
HeadsOff = Annotated[
    list[Head],
    Field(
        fail_fast=True,
        max_length=4096,
        description='Heads that say nothing: "3.5" is head 5 of layer 3, "2.*" all of layer 2.',
    ),
]
Timeout = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Strict(BaseModel):
    """A field that is not known is refused, not overlooked."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def few(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > MOST_FIELDS:
            raise ValueError(f"body: it has {len(values):,} fields, more than there are")

        return values


Ignored = Annotated[str, Field(max_length=1000)]


class Unused(Strict):
    """OpenAI's fields without an effect here: they are about accounts, billing, caching or speed,
    and a response is the same without them. Clients send them by default, so they are accepted."""

    user: Ignored | None = Field(
        None, description="Accepted without effect, as are the other fields of accounts."
    )
    safety_identifier: Ignored | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=16)] | None = None
    store: bool | None = None
    service_tier: Ignored | None = None
    prompt_cache_key: Ignored | None = None
    prompt_cache_retention: Ignored | None = None
    prompt_cache_options: Annotated[dict[str, Any], Field(max_length=16)] | None = None


class JsonBody(Strict):
    """A body as JSON."""

    model: ModelName
    timeout: Timeout | None = Field(
        None, description="Seconds; what is not said by then is not said. Ours."
    )


class SamplingFields(JsonBody):
    """How each next token is chosen from the model's distribution."""

    temperature: Temperature | None = Field(1.0, description="0 is always the likeliest token.")
    top_p: Share | None = Field(
        1.0, description="Draw from the fewest tokens whose probabilities sum to this."
    )
    top_k: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Of the likeliest. Ours."
    )
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Leave out tokens less likely than this times the likeliest. Ours."
    )
    heads_off: HeadsOff = Field(default=[])


class StreamOptions(Strict):
    include_usage: bool | None = Field(
        False, description="A last chunk without choices counts the tokens."
    )
    include_obfuscation: bool | None = Field(None, description="OpenAI's; there is none here.")


class GenerationFields(SamplingFields, Unused):
    """What a request for words says, be it a completion or a chat."""

    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] | None = Field(
        1, description="Texts for each prompt."
    )
    stream: bool | None = Field(
        False, description="As server-sent events, while the words are said."
    )
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=16)] | None = Field(
        None,
        description="Texts before which to stop; they are never in the text. The tokens that spelled one were said all "
        "the same: tokens, logprobs and usage have them.",
    )
    seed: Seed | None = Field(
        None, description="The same seed gives the same text again, whatever else is running."
    )
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10, allow_inf_nan=False)] | None = Field(
        1.0, description="Above 1, tokens that stand there already get less likely. Ours."
    )
    min_tokens: Annotated[int, Field(ge=0, le=MOST_WORDS)] | None = Field(
        0, description="So many before the text may end. Ours."
    )
    tokens: bool = Field(
        False, description="Also every token with its id, and its alternatives. Ours."
    )
    logit_bias: Annotated[dict[str, Any], Field(max_length=4096)] | None = Field(
        None, description="Not done here."
    )

    @field_validator("logit_bias")
    @classmethod
    def no_bias(cls, value: dict[str, Any] | None) -> None:
        if value:
            raise ValueError(UNSUPPORTED)

    @property
    def stops(self) -> tuple[str, ...]:
        return (
            ()
            if self.stop is None
            else (self.stop,)
            if isinstance(self.stop, str)
            else tuple(self.stop)
        )

    @property
    def counted(self) -> bool:
        """Whether a stream ends with the number of its tokens."""
        return bool(self.stream_options is not None and self.stream_options.include_usage)


class CompletionRequest(GenerationFields):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 16, "seed": 1}
            ]
        }
    )

    prompt: Prompt | None = Field(
        "", description="Text or ids, or a list of either; an empty text begins a new one."
    )
    max_tokens: Annotated[int, Field(ge=0, le=MOST_WORDS)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="So many alternatives of each."
    )
    echo: bool | None = Field(False, description="Say the prompt first, as it was read.")
    best_of: Annotated[int, Field(ge=1, le=MOST_TEXTS)] | None = Field(
        None, description="Only as many as n."
    )
    suffix: Annotated[str, Field(max_length=MOST_TEXT)] | None = Field(
        None, description="Not done here."
    )

    @field_validator("suffix")
    @classmethod
    def no_suffix(cls, value: str | None) -> None:
        if value:
            raise ValueError("this model goes on from a prompt, not up to a suffix; leave it out")

    @model_validator(mode="after")
    def consistent(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(
                "best_of: every text is sent that is made; expected as many as n, or none"
            )
        if self.tokens and len(self.prompts) > 1:
            raise ValueError("tokens: expected one prompt, not several")
        if len(self.prompts) * (self.n or 1) > MOST_TEXTS:
            raise ValueError(
                f"n: prompts times n are more than {MOST_TEXTS} texts; ask for fewer at once"
            )

        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]

        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        Text | Annotated[list[TextPart], Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS)]
    )
    name: Annotated[str, Field(max_length=100)] | None = Field(None, description="Not looked at.")
    annotations: Annotated[list[Any], Field(max_length=MOST_TEXTS)] | None = Field(
        None, description="Not looked at."
    )
    refusal: Ignored | None = Field(None, description="Not looked at.")
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="Not done here."
    )

    @property
    def text(self) -> str:
        return (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )


class ResponseFormat(Strict):
    type: Literal["text"]


class UnusedInChats(Strict):
    """As `Unused`: hints for models that reason, call tools or edit a known text."""

    parallel_tool_calls: bool | None = None
    reasoning_effort: Ignored | None = None
    verbosity: Ignored | None = None
    prediction: Annotated[dict[str, Any], Field(max_length=16)] | None = None


class ChatRequest(GenerationFields, UnusedInChats):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "smollm2",
                    "messages": [{"role": "user", "content": "Hello!"}],
                    "max_tokens": 16,
                }
            ]
        }
    )

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_WORDS)] | None = Field(
        None, description="As many as the context has room for, unless given."
    )
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_WORDS)] | None = Field(
        None, description="The same."
    )
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Needs logprobs, or tokens."
    )
    response_format: ResponseFormat | None = Field(None, description="Only text.")
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True, max_length=1)] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="Not done here."
    )
    tool_choice: Literal["none", "auto"] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="Not done here."
    )
    function_call: Literal["none", "auto"] | None = None
    audio: None = Field(None, description="Not supported.")
    moderation: None = Field(None, description="Not supported.")
    web_search_options: None = Field(None, description="Not supported.")

    @model_validator(mode="after")
    def consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not (self.logprobs or self.tokens):
            raise ValueError("top_logprobs: it needs logprobs: true")

        return self


class EmbeddingRequest(JsonBody, Unused):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "minilm", "input": ["a cat", "a dog"], "encoding_format": "float"}
            ]
        }
    )

    input: Prompt = Field(description="Text or ids, or a list of either.")
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Only the model's width."
    )

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        if isinstance(self.input, str):
            return [self.input]

        return [self.input] if isinstance(self.input[0], int) else self.input


WITHOUT_EFFECT = {
    *Unused.model_fields, *UnusedInChats.model_fields, "logit_bias", "suffix", "best_of", "response_format",
    "modalities", "tools", "tool_choice", "functions", "function_call", "audio", "moderation", "web_search_options",
}  # fmt: skip
"""OpenAI's fields that are ignored, or may only say what is done anyway."""
