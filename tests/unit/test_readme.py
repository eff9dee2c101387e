"""The examples of the README run as they are, and the version is the same everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import qkv

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_readme_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)

    assert [answer.label for answer in names["answers"]] == ["brave", "afraid"]
    torch.testing.assert_close(names["last"], names["logits"][:, 19:])
    assert torch.equal(names["same"](names["ids"]), names["gpt"](names["ids"]))
    theirs = AutoTokenizer.from_pretrained("mine-for-transformers")
    assert (
        theirs("cats fear mice")["input_ids"]
        == names["its_tokenizer"].encode("cats fear mice")
        != []
    )
    written = torch.cat(names["tokens"], dim=1)
    assert (written == names["target"]).float().mean() > 0.99
    assert names["alignment"].shape == (64, 1, 6, 6)
    assert names["grouped"].config.kv_heads == 2
    assert names["captured"]["stack.blocks.0.attention.weights"].shape == (2, 4, 20, 20)
    assert names["observed"].attention[0].layers[0].shape[0] == 2


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    assert qkv.__version__ == version
    assert (
        re.findall(
            r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
        )[0]
        == version
    )

    assert f"\nVersion {version} has " in README.read_text(encoding="utf-8")
