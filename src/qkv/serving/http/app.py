"""The ASGI application: all routes behind the request middleware, as uvicorn or a test runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI

from qkv.serving.http import errors
from qkv.serving.http.direct_routes import DirectRoutes
from qkv.serving.http.middleware import AccessRules, RequestMiddleware
from qkv.serving.http.prometheus import ServerMetrics
from qkv.serving.http.schema.openapi import describe
from qkv.serving.model_host import ModelHost
from qkv.serving.routes import (
    attention,
    chat_completions,
    completions,
    effects,
    encoders,
    health,
    playground,
    translate,
    vocabulary,
    walk,
)
from qkv.serving.routes.generation_routes import DIRECT
from qkv.version import __version__

DESCRIPTION = (
    "Attention and Transformers, served. OpenAI's clients use OpenAI's routes unchanged; those "
    "of qkv show what happens inside: the distribution of the next token, attention, translations "
    "with their alignment."
)
ROUTERS = (
    completions.router,
    chat_completions.router,
    encoders.router,
    vocabulary.router,
    translate.router,
    attention.router,
    walk.router,
    effects.router,
    health.router,
    playground.router,
)


def create_app(
    host: ModelHost, rules: AccessRules | None = None, routers: Sequence[APIRouter] = ()
) -> RequestMiddleware:
    """The ASGI application over the models of a host, which the caller starts and closes.

    A router from elsewhere uses `ready_model` of `qkv.serving.http.prompt_validation` and
    `job_result` of `qkv.serving.http.output_stream`, as the modules in `qkv.serving.routes` do.
    """
    rules = rules or AccessRules()
    app = FastAPI(
        title="qkv",
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,  # its pages load scripts from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in (*ROUTERS, *routers):
        app.include_router(router)

    playground.mount_files(app)
    errors.add_exception_handlers(app)
    describe(app)

    middleware = RequestMiddleware(DirectRoutes(app, DIRECT), rules, ServerMetrics(host))
    app.state.host = host
    app.state.rules = rules
    app.state.middleware = middleware
    app.state.began = int(time.time())

    return middleware
