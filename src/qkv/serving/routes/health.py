"""GET /health, /metrics and /v1/models: the state of the server and its models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Path, Request
from starlette.responses import PlainTextResponse, Response

from qkv.generation.generate import context_limit
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.model import Model, backbone_of
from qkv.models.sites import attention_sites
from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.http.errors import Json
from qkv.serving.http.prometheus import prometheus
from qkv.serving.http.prompt_validation import host_of
from qkv.serving.http.schema.openapi import Responses, refusals
from qkv.serving.http.schema.response_schema import Health, ModelList, ServedModel
from qkv.serving.model_host import ModelEntry, ModelHost
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["about"])
HIDDEN_ERROR = "it cannot be loaded"
MODEL_LIST: Responses = {200: {"model": ModelList, "description": "All models, ready or not."}}
ONE_MODEL: Responses = {200: {"model": ServedModel, "description": "The model, ready or not."}}
HEALTH: Responses = {
    200: {"model": Health, "description": "The server takes requests."},
    503: {"model": Health, "description": "The server is stopping, or has failed."},
}
METRICS: Responses = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}},
        "description": "Prometheus' text format.",
    }
}


@router.get("/health", responses=HEALTH)
async def health(request: Request) -> Response:
    """Whether the server takes requests; needs no key, but without one hides error messages."""
    host = host_of(request)
    status = server_status(host, draining=request.app.state.middleware.draining)
    signed_in = request.scope["signed_in"]

    models: dict[str, Any] = {}
    for name, entry in host.entries.items():
        error = entry.error
        if error is not None and not signed_in:  # it may name files of this machine
            error = HIDDEN_ERROR

        models[name] = {"state": entry.state, "error": error}

    error = None
    if not host.alive:
        error = host.failure or "the engine's thread does not run"

    code = 200 if status in ("ready", "loading") else 503
    return Json({"status": status, "error": error, "models": models}, code)


def server_status(host: ModelHost, *, draining: bool) -> str:
    """One of ready (a model is), loading, failed and draining."""
    if not host.alive:
        return "failed"
    if draining:
        return "draining"

    states = {entry.state for entry in host.entries.values()}
    for state in ("ready", "loading"):
        if state in states:
            return state

    return "failed"


@router.get(
    "/metrics",
    responses=METRICS | refusals(400, 401, 403, 413, 429, 500),
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """Metrics of the server for Prometheus."""
    middleware = request.app.state.middleware
    text = prometheus(middleware.counters, len(middleware.running), host_of(request).entries)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


@router.get("/v1/models", responses=MODEL_LIST | refusals(400, 401, 403, 413, 429, 500, 503))
async def models(request: Request) -> Response:
    """The models of this server."""
    entries = host_of(request).entries
    return Json({"object": "list", "data": [described(request, e) for e in entries.values()]})


@router.get(
    "/v1/models/{name}", responses=ONE_MODEL | refusals(400, 401, 403, 404, 413, 429, 500, 503)
)
async def model(request: Request, name: str = Path(max_length=200)) -> Response:
    """One model."""
    entries = host_of(request).entries
    if name not in entries:
        names = ", ".join(entries)
        raise RequestRefused(404, f"model: {name[:60]!r} does not exist; expected one of: {names}")

    return Json(described(request, entries[name]))


def described(request: Request, entry: ModelEntry) -> dict[str, Any]:
    """A model in OpenAI's format, with details under `qkv`."""
    details: dict[str, Any] = {"family": entry.family, "state": entry.state}
    if entry.model is None or entry.tokenizer is None:
        details |= dict.fromkeys(("task", "context", "layers", "heads", "vocabulary"))
        details |= {"can": [], "kinds": []}
    else:
        details |= model_details(entry.model, entry.tokenizer)

    return {
        "id": entry.name,
        "object": "model",
        "created": request.app.state.began,
        "owned_by": "qkv",
        "qkv": details,
    }


def model_details(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """Size and abilities of a loaded model."""
    backbone = backbone_of(model)
    depth = len(backbone.decoder.blocks) if isinstance(backbone, Transformer) else None
    details: dict[str, Any] = {
        "task": None,
        "context": None,
        "layers": depth or backbone.config.depth,
        "heads": getattr(backbone.config, "heads", None),
        "vocabulary": model.config.vocabulary,
        "can": abilities(model, tokenizer),
        "kinds": [],
    }

    if isinstance(model, TaskModel):
        head = model.config.head
        details["task"] = head.task
        details["context"] = model.config.context
        if head.labels:
            details["labels"] = list(head.labels)
    else:
        details["context"] = context_limit(backbone, "refuse")

    if attends(model):
        details["kinds"] = [site.kind for site in attention_sites(model)]

    return details


def attends(model: Model) -> bool:
    """Whether the model has attention; an RNN may have none."""
    backbone = backbone_of(model)
    return not (isinstance(backbone, RNN) and backbone.config.attention == "none")


def abilities(model: Model, tokenizer: Tokenizer) -> list[str]:
    """What can be requested of a model."""
    fills = isinstance(model, BERT) and model.config.mlm_head and tokenizer.mask is not None
    can = {
        "complete": isinstance(model, GPT),
        "chat": isinstance(model, GPT) and tokenizer.chat_template is not None,
        "translate": isinstance(model, Transformer | RNN),
        "fill": fills,
        "classify": isinstance(model, TaskModel),
        "embed": isinstance(backbone_of(model), BERT),
        "attention": attends(model),
        "tokenize": True,
    }
    return [name for name, possible in can.items() if possible]
