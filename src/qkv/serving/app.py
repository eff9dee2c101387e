"""The application: all routes behind one door. `served(host)` is what uvicorn runs, or a test without a network."""

from __future__ import annotations

import time

from fastapi import FastAPI

from qkv.serving import about, attention, chats, completions, encoders, errors, playground, translations, vocabulary
from qkv.serving.documented import describe
from qkv.serving.door import Door, Rules
from qkv.serving.host import Host
from qkv.serving.metrics import Counted
from qkv.version import __version__

DESCRIPTION = """Attention and Transformers, served. The routes of OpenAI take OpenAI's clients unchanged; those of qkv
show what happens inside: the next token's distribution, attention, translations with their alignment."""
ROUTERS = (completions, chats, encoders, vocabulary, translations, attention, about, playground)


def served(host: Host, rules: Rules | None = None) -> Door:
    """The door of a server over the models of a host, who is started and closed by whoever made it."""
    rules = rules or Rules()
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
    door = Door(app, rules, Counted())
    app.state.host, app.state.rules, app.state.door, app.state.began = host, rules, door, int(time.time())
    return door
