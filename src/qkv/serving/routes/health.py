"""GET /health, /metrics and /v1/models: how the server is, and which models it has."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Path, Request
from starlette.responses import PlainTextResponse, Response

from qkv.generation.generate import limit_of
from qkv.insight.inspect.capture import attention_sites
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.registry import backbone_of
from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.http.errors import Json
from qkv.serving.http.params import host_of
from qkv.serving.http.prometheus import prometheus
from qkv.serving.http.schema.openapi import Responses, refusals
from qkv.serving.http.schema.response_schema import Health, ModelList, ServedModel
from qkv.serving.model_host import ModelEntry

router = APIRouter(tags=["about"])
LISTED: Responses = {200: {"model": ModelList, "description": "All of them, ready or not."}}
NAMED: Responses = {200: {"model": ServedModel, "description": "This one, ready or not."}}
WELL: Responses = {
    200: {"model": Health, "description": "It is there."},
    503: {"model": Health, "description": "It is leaving, or has failed."},
}
NUMBERS: Responses = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}},
        "description": "For Prometheus.",
    }
}


@router.get("/health", responses=WELL)
async def health(request: Request) -> Response:
    """Whether models can be asked; no key is needed, but without one the reason of a failure is not
    told.
    """
    host = host_of(request)
    served, states = host.entries, {each.state for each in host.entries.values()}
    status = next((state for state in ("ready", "loading") if state in states), "failed")
    if not host.alive:
        status = "failed"
    elif request.app.state.door.draining:
        status = "draining"

    known = request.scope["signed_in"]  # an error may name files of this machine
    models = {
        name: {
            "state": each.state,
            "error": each.error if known or each.error is None else "it cannot be loaded",
        }
        for name, each in served.items()
    }

    error = None if host.alive else host.failure or "the engine's thread does not run"

    return Json(
        {"status": status, "error": error, "models": models},
        200 if status in ("ready", "loading") else 503,
    )


@router.get(
    "/metrics",
    responses=NUMBERS | refusals(400, 401, 403, 413, 429, 500),
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """Numbers about the server, for Prometheus."""
    door = request.app.state.door
    text = prometheus(door.counted, len(door.running), host_of(request).served)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


@router.get("/v1/models", responses=LISTED | refusals(400, 401, 403, 413, 429, 500, 503))
async def models(request: Request) -> Response:
    """The models of this server."""
    served = host_of(request).served
    return Json({"object": "list", "data": [described(request, each) for each in served.values()]})


@router.get("/v1/models/{name}", responses=NAMED | refusals(400, 401, 403, 404, 413, 429, 500, 503))
async def model(request: Request, name: str = Path(max_length=200)) -> Response:
    """One of them."""
    served = host_of(request).served
    if name not in served:
        raise RequestRefused(404, f"model: there is no {name[:60]!r} here, but {', '.join(served)}")

    return Json(described(request, served[name]))


def described(request: Request, served: ModelEntry) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": request.app.state.began,
        "owned_by": "qkv",
        "qkv": {"family": served.family, "state": served.state, **inside(served)},
    }


def inside(served: ModelEntry) -> dict[str, Any]:
    """What is known of a model once it is there."""
    unknown = dict.fromkeys(("task", "context", "layers", "heads", "vocabulary"))
    model = served.model
    if model is None or served.tokenizer is None:
        return {**unknown, "can": [], "kinds": []}

    body = backbone_of(model)
    attends = not (isinstance(body, RNN) and body.config.attention == "none")
    kinds = [place.kind for place in attention_sites(model)] if attends else []
    speaks = isinstance(model, GPT)
    can = {
        "complete": speaks,
        "chat": speaks and served.tokenizer.chat_template is not None,
        "translate": isinstance(model, Transformer | RNN),
        "fill": isinstance(model, BERT)
        and model.config.mlm_head
        and served.tokenizer.mask is not None,
        "classify": isinstance(model, TaskModel),
        "embed": isinstance(body, BERT),
        "attention": attends,
        "tokenize": True,
    }

    head = model.config.head if isinstance(model, TaskModel) else None

    return {
        "task": None if head is None else head.task,
        "context": limit_of(body, "refuse")
        if not isinstance(model, TaskModel)
        else model.config.context,
        "layers": len(body.decoder.blocks) if isinstance(body, Transformer) else body.config.depth,
        "heads": getattr(body.config, "heads", None),
        "vocabulary": model.config.vocabulary,
        "can": [name for name, does in can.items() if does],
        "kinds": kinds,
        **({"labels": list(head.labels)} if head is not None and head.labels else {}),
    }
