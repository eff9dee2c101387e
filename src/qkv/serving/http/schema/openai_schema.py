"""Request bodies of OpenAI's routes: every field with its type and bounds.

The field names are OpenAI's, with qkv's own beside them. Types are strict: "1" is not a number,
and 1 is not a text. A list is validated up to its first fault, so that an error stays short.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_CHARACTERS = 1_000_000
"""Characters in one text."""
MAX_TEXTS = 128
"""Texts in one request, and choices that a request may have."""
MAX_TOKENS = 1_000_000
"""Value of max_tokens; the model's context is usually the smaller limit."""
MAX_FIELDS = 64
UNSUPPORTED = "not supported; remove it"
NOT_SUPPORTED: Any = Field(None, description="Not supported.")

ModelName = Annotated[
    str, Field(min_length=1, max_length=200, description="One of GET /v1/models.")
]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[Id], Field(fail_fast=True, min_length=1, max_length=MAX_CHARACTERS)]
Texts = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
Prompt = (
    Text
    | Texts
    | Ids
    | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
)
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Head = Annotated[str, Field(pattern=r"^[0-9]{1,4}\.([0-9]{1,4}|\*)$", max_length=9)]
HeadsOff = Annotated[
    list[Head],
    Field(
        fail_fast=True,
        max_length=4096,
        description='Ablated heads: "3.5" is head 5 of layer 3, "2.*" all of layer 2.',
    ),
]
Timeout = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def as_list(texts: Any) -> Any:
    """A single text, or the ids of one, as a list of one; a list of texts as it is."""
    return [texts] if isinstance(texts, str) or isinstance(texts[0], int) else texts


def example(**fields: Any) -> dict[str, Any]:
    """The example of a body in the OpenAPI document."""
    return {"examples": [fields]}


class Strict(BaseModel):
    """A body or object in which unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def limit_fields(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > MAX_FIELDS:
            raise ValueError(f"body: it has {len(values):,} fields; expected {MAX_FIELDS} or fewer")

        return values


Ignored = Annotated[str, Field(max_length=1000)]
NoText = Annotated[str, Field(max_length=0)]
NoList = Annotated[list[Any], Field(max_length=0)]


class Unused(Strict):
    """OpenAI's fields without effect: they concern accounts, billing, caching or speed.

    Clients send them by default, so they are accepted.
    """

    user: Ignored | None = Field(
        None, description="Accepted without effect, like the other fields about accounts."
    )
    safety_identifier: Ignored | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=16)] | None = None
    store: bool | None = None
    service_tier: Ignored | None = None
    prompt_cache_key: Ignored | None = None
    prompt_cache_retention: Ignored | None = None
    prompt_cache_options: Annotated[dict[str, Any], Field(max_length=16)] | None = None


class JsonBody(Strict):
    """The fields that every request body has."""

    model: ModelName
    timeout: Timeout | None = Field(
        None, description="Seconds after which generation stops. Not an OpenAI field."
    )


class SamplingFields(JsonBody):
    """How each next token is chosen from the model's distribution."""

    temperature: Temperature | None = Field(
        1.0, description="0 always chooses the most likely token."
    )
    top_p: Share | None = Field(
        1.0, description="Sample from the fewest tokens whose probabilities sum to this."
    )
    top_k: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Sample from this many of the most likely tokens. Not an OpenAI field."
    )
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None,
        description="Drop tokens less likely than this times the most likely one. "
        "Not an OpenAI field.",
    )
    heads_off: HeadsOff = Field(default=[])


class StreamOptions(Strict):
    include_usage: bool | None = Field(
        False, description="Add a last chunk without choices that has the token counts."
    )
    include_obfuscation: bool | None = Field(None, description="Accepted without effect.")


class GenerationFields(SamplingFields, Unused):
    """The fields that completions and chat completions have in common."""

    n: int | None = Field(1, ge=1, le=MAX_TEXTS, description="Number of samples per prompt.")
    stream: bool | None = Field(
        False, description="Send server-sent events while tokens are generated."
    )
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=16)] | None = Field(
        None,
        description="Strings before which the text ends. The tokens that spelled one still count: "
        "tokens, logprobs and usage include them.",
    )
    seed: Seed | None = Field(
        None, description="The same seed gives the same text, whatever else is running."
    )
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10, allow_inf_nan=False)] | None = Field(
        1.0, description="Above 1, earlier tokens become less likely. Not an OpenAI field."
    )
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        0, description="Number of tokens before the text may end. Not an OpenAI field."
    )
    tokens: bool = Field(
        False, description="Return every token with id and alternatives. Not an OpenAI field."
    )
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = NOT_SUPPORTED

    @property
    def stops(self) -> tuple[str, ...]:
        """All stop strings."""
        return tuple(as_list(self.stop)) if self.stop else ()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options is not None and self.stream_options.include_usage)


class CompletionRequest(
    GenerationFields,
    json_schema_extra=example(model="smollm2", prompt="Once upon a time", max_tokens=16, seed=1),
):
    prompt: Prompt | None = Field(
        "", description="Text or ids, or a list of either; an empty text starts a new one."
    )
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = 16
    logprobs: int | None = Field(
        None, ge=0, le=100, description="Return logprobs, with this many alternatives per token."
    )
    echo: bool | None = Field(False, description="Return the prompt before the completion.")
    best_of: int | None = Field(None, ge=1, le=MAX_TEXTS, description="Must be equal to n.")
    suffix: NoText | None = NOT_SUPPORTED

    @model_validator(mode="after")
    def check_consistency(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(
                "best_of: all samples are returned; expected the same number as n, or none"
            )
        if self.tokens and len(self.prompts) > 1:
            raise ValueError("tokens: expected one prompt, not several")
        if len(self.prompts) * (self.n or 1) > MAX_TEXTS:
            raise ValueError(f"n: prompts times n are more than {MAX_TEXTS} samples; ask for fewer")

        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """All prompts, as texts or as ids."""
        return as_list(self.prompt or "")


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        Text | Annotated[list[TextPart], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
    )
    name: str | None = Field(None, max_length=100, description="Accepted without effect.")
    annotations: Annotated[list[Any], Field(max_length=MAX_TEXTS)] | None = Field(
        None, description="Accepted without effect."
    )
    refusal: Ignored | None = Field(None, description="Accepted without effect.")
    audio: None = None
    function_call: None = None
    tool_calls: NoList | None = NOT_SUPPORTED

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content

        return "".join(part.text for part in self.content)


class ResponseFormat(Strict):
    type: Literal["text"]


class UnusedInChats(Strict):
    """Like `Unused`: about models that reason, call tools, listen, or edit a known text.

    Some accept only the value that has no effect.
    """

    parallel_tool_calls: bool | None = None
    reasoning_effort: Ignored | None = None
    verbosity: Ignored | None = None
    prediction: Annotated[dict[str, Any], Field(max_length=16)] | None = None
    response_format: ResponseFormat | None = Field(None, description="Only text is supported.")
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True, max_length=1)] | None = None
    tools: NoList | None = NOT_SUPPORTED
    tool_choice: Literal["none", "auto"] | None = None
    functions: NoList | None = NOT_SUPPORTED
    function_call: Literal["none", "auto"] | None = None
    audio: None = NOT_SUPPORTED
    moderation: None = NOT_SUPPORTED
    web_search_options: None = NOT_SUPPORTED


class ChatRequest(
    GenerationFields,
    UnusedInChats,
    json_schema_extra=example(
        model="smollm2", messages=[{"role": "user", "content": "Hello!"}], max_tokens=16
    ),
):
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=256)]
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Null generates until the context is full."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Takes precedence over max_tokens."
    )
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Requires logprobs or tokens.")
    answer_ids: Annotated[list[Id], Field(fail_fast=True, max_length=MAX_CHARACTERS)] | None = (
        Field(
            None,
            description="Ids with which the message begins; it continues after them. "
            "Not an OpenAI field.",
        )
    )

    @model_validator(mode="after")
    def check_consistency(self) -> ChatRequest:
        if self.top_logprobs is not None and not (self.logprobs or self.tokens):
            raise ValueError("top_logprobs: requires logprobs: true")

        return self


class EmbeddingRequest(
    JsonBody,
    Unused,
    json_schema_extra=example(model="minilm", input=["a cat", "a dog"], encoding_format="float"),
):
    input: Prompt = Field(description="Text or ids, or a list of either.")
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(
        None, ge=1, le=1_000_000, description="Must be the model's width."
    )

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """All inputs, as texts or as ids."""
        return as_list(self.input)


WITHOUT_EFFECT = {
    *Unused.model_fields,
    *UnusedInChats.model_fields,
    "logit_bias",
    "suffix",
    "best_of",
}
"""OpenAI's fields that are ignored, or accept only the value that has no effect."""
