"""GET / and /web: the playground, static files of the package; no other file is ever opened."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qkv.insight.render.page import hashed

router = APIRouter(include_in_schema=False)
MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
PACKAGES = {"serving": "qkv.serving", "insight": "qkv.insight.render"}
IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


@router.get("/")
async def page() -> Response:
    """The page; its policy allows the inline import map by its hash."""
    content = read_file("serving", "index.html")
    hashes = " ".join(map(hashed, IMPORT_MAP.findall(content)))
    policy = (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}

    return Response(content, headers=headers, media_type="text/html")


@router.get("/web/{name}")
async def playground_file(name: str) -> Response:
    return file_response("serving", name)


@router.get("/web/insight/{name}")
async def insight_file(name: str) -> Response:
    return file_response("insight", name)


def file_response(package: str, name: str) -> Response:
    content = read_file(package, name)
    media_type = MEDIA_TYPES[PurePosixPath(name).suffix]
    return Response(content, headers={"Cache-Control": "no-cache"}, media_type=media_type)


def read_file(package: str, name: str) -> str:
    """The content of a static file; raises 404 for any other name."""
    if name not in file_names(package):
        raise HTTPException(404)

    return files(PACKAGES[package]).joinpath("web", name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def file_names(package: str) -> frozenset[str]:
    """Names of the files that may be sent."""
    folder = files(PACKAGES[package]).joinpath("web")
    names = set()
    if folder.is_dir():
        for file in folder.iterdir():
            if PurePosixPath(file.name).suffix in MEDIA_TYPES:
                names.add(file.name)

    return frozenset(names)
