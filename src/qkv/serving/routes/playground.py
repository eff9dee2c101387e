"""GET / and /web: the playground, static files of the package."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from qkv.insight.render.page import hashed

router = APIRouter(include_in_schema=False)
FOLDERS = {"/web/insight": "qkv.insight.render", "/web": "qkv.serving"}
IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


@router.get("/")
async def page() -> Response:
    """The page; its policy allows the inline import map by its hash."""
    content = files("qkv.serving").joinpath("web", "index.html").read_text(encoding="utf-8")
    hashes = " ".join(map(hashed, IMPORT_MAP.findall(content)))
    policy = (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}

    return Response(content, headers=headers, media_type="text/html")


class PageFiles(StaticFiles):
    """Files that a browser keeps, and asks each time whether they have changed."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"

        return response


def mount_files(app: FastAPI) -> None:
    """Serve the scripts and styles that the page loads."""
    for path, package in FOLDERS.items():
        app.mount(path, PageFiles(packages=[(package, "web")]))
