"""The application: all routes behind one door. `served(host)` is what uvicorn runs, or a test
without a network.
"""

from __future__ import annotations

import time

from fastapi import FastAPI

from qkv.serving.http import errors
from qkv.serving.http.middleware import AccessRules, RequestMiddleware
from qkv.serving.http.prometheus import ServerCounters
from qkv.serving.http.schema.openapi import describe
from qkv.serving.model_host import ModelHost
from qkv.serving.routes import (
    attention,
    chat_completions,
    completions,
    encoders,
    health,
    playground,
    translate,
    vocabulary,
)
from qkv.version import __version__

DESCRIPTION = """Attention and Transformers, served. The routes of OpenAI take OpenAI's clients unchanged; those of qkv
show what happens inside: the next token's distribution, attention, translations with their alignment."""
ROUTERS = (
    completions,
    chat_completions,
    encoders,
    vocabulary,
    translate,
    attention,
    health,
    playground,
)


def served(host: ModelHost, rules: AccessRules | None = None) -> RequestMiddleware:
    """The door of a server over the models of a host, who is started and closed by whoever made it."""
    rules = rules or AccessRules()
    app = FastAPI(
        title="qkv",
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,  # its pages come from another host
        redoc_url=None,
        redirect_slashes=False,
    )

    for module in ROUTERS:
        app.include_router(module.router)

    errors.attach(app)
    describe(app)
    door = RequestMiddleware(app, rules, ServerCounters())
    app.state.host, app.state.rules, app.state.door, app.state.began = (
        host,
        rules,
        door,
        int(time.time()),
    )

    return door
