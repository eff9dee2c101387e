"""GET /health, /metrics and /v1/models: the state of the server and its models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Path, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import PlainTextResponse, Response

from qkv.generation.generate import context_limit
from qkv.models.model import Model, backbone_of
from qkv.models.sites import attends, attention_sites, output_stack
from qkv.serving.http.errors import Json
from qkv.serving.http.prompt_validation import host_of
from qkv.serving.http.schema.openapi import Responses, refusals
from qkv.serving.http.schema.response_schema import Health, ModelList, ServedModel
from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost
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
    metrics = request.app.state.middleware.metrics
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


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
    return Json(described(request, host_of(request).entry(name)))


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
    stack = output_stack(model)
    details: dict[str, Any] = {
        "task": None,
        "context": context_limit(backbone, "refuse"),
        "layers": backbone.config.depth if stack is None else len(stack[1].blocks),
        "heads": getattr(backbone.config, "heads", None),
        "vocabulary": model.config.vocabulary,
        "can": abilities(model, tokenizer),
        "kinds": [site.kind for site in attention_sites(model)] if attends(model) else [],
    }
    if model.task is not None:
        details |= {"task": model.task.task, "context": model.config.context}
        if model.task.labels:
            details["labels"] = list(model.task.labels)

    return details


def abilities(model: Model, tokenizer: Tokenizer) -> list[str]:
    """What can be requested of a model."""
    can = {
        "complete": model.predicts == "next",
        "chat": model.predicts == "next" and tokenizer.chat_template is not None,
        "translate": model.predicts == "target",
        "fill": model.predicts == "masked" and tokenizer.mask is not None,
        "classify": model.task is not None,
        "embed": not (model.is_causal or model.has_source),
        "attention": attends(model),
        "tokenize": True,
    }
    return [name for name, possible in can.items() if possible]
