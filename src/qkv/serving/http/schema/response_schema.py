"""Response bodies of all routes, for the OpenAPI document only; routes build plain dicts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetail


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class Token(BaseModel):
    id: int
    text: str = Field(
        description="The characters that it completes; all tokens together give the text."
    )
    token: str = Field(description="The token as the vocabulary writes it.")


class LikelyToken(Token):
    logprob: float = Field(description="Under the model's own distribution.")
    probability: float = Field(
        description="Under the sampled distribution: after penalties, temperature and filters."
    )


class GeneratedTokenItem(Token):
    logprob: float | None
    alternatives: list[LikelyToken]


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class FinishedChoice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length"] | None
    reason: Literal["end", "stop", "length", "context", "deadline"] | None = Field(
        description="More specific than finish_reason. Not an OpenAI field."
    )
    tokens: list[GeneratedTokenItem] | None = Field(None, description="With tokens: true.")


class CompletionChoice(FinishedChoice):
    text: str
    logprobs: CompletionLogprobs | None


class Reply(BaseModel):
    id: str
    object: str
    created: int
    model: str
    usage: Usage
    prompt_tokens: list[Token] | None = Field(
        None, description="With tokens: true; in a stream, in its first chunk."
    )


class CompletionReply(Reply):
    choices: list[CompletionChoice]


class ChatLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[dict[str, Any]] = []


class ChatLogprobs(BaseModel):
    content: list[ChatLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(FinishedChoice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class ChatReply(Reply):
    choices: list[ChatChoice]


class EmbeddingItem(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or little-endian float32 in base64.")


class EmbeddingReply(BaseModel):
    object: Literal["list"]
    model: str
    data: list[EmbeddingItem]
    usage: Usage


class NextReply(BaseModel):
    tokens: list[LikelyToken]
    rest: float = Field(description="Total probability of the tokens that are not listed.")


class TranslationItem(BaseModel):
    text: str
    score: float | None


class Alignment(BaseModel):
    source: list[str]
    target: list[str]
    weights: list[list[float]] = Field(
        description="Attention of each target word (row) to each source word."
    )


class TranslateReply(BaseModel):
    translations: list[list[TranslationItem]]
    alignment: list[Alignment] | None = None
    usage: Usage


class ReadToken(Token):
    mask: bool


class MaskCandidate(BaseModel):
    text: str
    id: int
    probability: float


class FillReply(BaseModel):
    tokens: list[ReadToken]
    masks: list[list[MaskCandidate]]


class Explanation(BaseModel):
    tokens: list[Token]
    contributions: list[list[float]] = Field(
        description="Gradient x input of each token: one row, or for tags one of each word."
    )
    shares: list[list[float]] = Field(description="Their sizes; each row sums to 1.")


class ClassificationItem(BaseModel):
    label: str | None
    probability: float | None
    scores: dict[str, float] | list[float]
    number: float | None
    choice: int | None
    tags: list[tuple[str, str, float]] | None
    explanation: Explanation | None = Field(None, description="With explain: true.")


class ClassifyReply(BaseModel):
    task: str
    answers: list[ClassificationItem]


class AttentionReply(BaseModel):
    data: dict[str, Any] = Field(
        description="What the page of `qkv look` needs before a head is shown."
    )
    blocks: dict[str, str] = Field(
        description="Weights by name: self.3.5 is layer 3, head 5; deflated, in base64."
    )
    next: list[Any] | None
    lens: list[Any] | None
    parts: dict[str, Any] | None = Field(
        default=None, description="With attribution: each position's logit by layer and head."
    )
    model_walk: dict[str, Any] | None = None


class NextTokenChange(BaseModel):
    position: int
    tokens: list[tuple[str, int, float, float]] = Field(
        description="Text, id, probability without and with the edits, of the ten likeliest each."
    )
    entropy: dict[Literal["before", "after"], float] = Field(description="In bits.")


class WalkReply(BaseModel):
    walk: dict[str, Any] = Field(
        description="Query, key, value, scores, weights and output of the head, with the edits; "
        "arrays have a shape, and little-endian float32 in base64."
    )
    next: NextTokenChange | None = Field(description="Null for a model that predicts no tokens.")


class TemplateToken(Token):
    special: bool | None = Field(
        None, description="With messages: whether it is a token of the template."
    )


class TokenizeReply(BaseModel):
    tokens: list[TemplateToken]
    count: int
    text: str


class About(BaseModel):
    family: str | None
    task: str | None
    state: Literal["loading", "ready", "failed"]
    context: int | None
    layers: int | None
    heads: int | None
    vocabulary: int | None
    can: list[
        Literal[
            "complete", "chat", "translate", "fill", "classify", "embed", "attention", "tokenize"
        ]
    ]
    kinds: list[str]
    labels: list[str] | None = None


class ServedModel(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    qkv: About


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ServedModel]


class ModelHealth(BaseModel):
    state: Literal["loading", "ready", "failed"]
    error: str | None


class Health(BaseModel):
    status: Literal["ready", "loading", "failed", "draining"]
    error: str | None = Field(description="Why the server itself has failed; null if it has not.")
    models: dict[str, ModelHealth]
