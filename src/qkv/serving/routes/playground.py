"""GET / and /web: the playground, static files of the package."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files
from os import PathLike, stat_result
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

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
    """Files that a browser keeps, and asks each time whether their contents have changed."""

    def file_response(
        self,
        full_path: str | PathLike[str],
        stat_result: stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        digest = sha256(Path(full_path).read_bytes()).hexdigest()
        headers = {"Cache-Control": "no-cache", "ETag": f'"{digest}"'}
        response = FileResponse(full_path, status_code, headers, stat_result=stat_result)
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)

        return response


def mount_files(app: FastAPI) -> None:
    """Serve the scripts and styles that the page loads."""
    for path, package in FOLDERS.items():
        app.mount(path, PageFiles(packages=[(package, "web")]))
