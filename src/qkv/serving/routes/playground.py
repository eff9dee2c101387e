"""GET / and /web: the playground, plain files of the package. Only names that are in the package
are ever opened.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qkv.insight.render.page import hashed

router = APIRouter(include_in_schema=False)
KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
FOLDERS = {"serving": "qkv.serving", "insight": "qkv.insight.render"}
IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


@router.get("/")
async def page() -> Response:
    content = found("serving", "index.html")
    imports = " ".join(hashed(each) for each in IMPORT_MAP.findall(content))
    policy = (
        f"default-src 'none'; script-src 'self' {imports}; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}

    return Response(content, headers=headers, media_type="text/html")


@router.get("/web/{name}")
async def of_page(name: str) -> Response:
    return sent("serving", name)


@router.get("/web/insight/{name}")
async def of_insight(name: str) -> Response:
    return sent("insight", name)


def sent(folder: str, name: str) -> Response:
    content = found(folder, name)
    ending = name[name.rfind(".") :]
    return Response(content, headers={"Cache-Control": "no-cache"}, media_type=KINDS[ending])


def found(folder: str, name: str) -> str:
    if name not in names(folder):
        raise HTTPException(404)

    return files(FOLDERS[folder]).joinpath("web", name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def names(folder: str) -> frozenset[str]:
    """What there is to send."""
    there = files(FOLDERS[folder]).joinpath("web")
    if not there.is_dir():
        return frozenset()

    return frozenset(
        each.name for each in there.iterdir() if each.name[each.name.rfind(".") :] in KINDS
    )
