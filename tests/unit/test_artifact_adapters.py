"""The folder of an adapter loads as a model: its base with the adapter merged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from torch.testing import assert_close

from qkv import artifact, load, save
from qkv.generation import generate
from qkv.models import BERT, GPT, BERTConfig, GPTConfig, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.convert import write_folder
from qkv.models.convert.peft import write_adapter
from qkv.nn.lora import AdapterConfig, adapted, adapter_parameters, attach_adapters
from qkv.text import Tokenizer
from support.families import SMALL
from support.killing import killed_before_every_touch

LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 2}
ALIBI: dict[str, Any] = {"position": "alibi"}


def words() -> Tokenizer:
    library = tokenizers.Tokenizer(WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = Whitespace()
    return Tokenizer(library)


def model_with_adapters(**choices: Any) -> GPT:
    model = GPT(GPTConfig(**(SMALL | choices))).eval()
    attach_adapters(model, AdapterConfig(rank=2, projections=("query", "value", "down")))
    for parameter in adapter_parameters(model):
        nn.init.normal_(parameter, std=0.3)

    return model


def base_of(model: Any) -> Any:
    plain = type(model)(model.config).eval()
    weights = model.state_dict()
    plain.load_state_dict({name: weights[name] for name in weights if ".adapters." not in name})
    return plain


@pytest.mark.parametrize("choices", [LLAMA, ALIBI], ids=["llama", "alibi"])
@pytest.mark.parametrize("where", ["absolute", "beside", "argument"])
def test_a_saved_base(choices: dict[str, Any], where: str, tmp_path: Path) -> None:
    model = model_with_adapters(**choices)
    ids = torch.randint(13, (2, 7))
    save(base_of(model), tmp_path / "base", tokenizer=words())
    name = {"absolute": str(tmp_path / "base"), "beside": "../base", "argument": None}[where]
    write_adapter(model, tmp_path / "adapter", name)
    base = tmp_path / "base" if where == "argument" else None
    loaded, tokenizer = load(tmp_path / "adapter", base=base)
    assert type(loaded) is GPT
    assert not loaded.training
    assert not list(adapted(loaded))
    assert_close(loaded(ids), model(ids), rtol=1e-4, atol=1e-5)
    assert tokenizer is not None
    assert tokenizer.encode("the cat") == [1, 2]
    if where != "argument":
        assert artifact.tokenizer_of(tmp_path / "adapter").encode("cat") == [2]

    generated = generate(loaded, [[1, 2, 3]], length=6, temperature=0)
    assert generated == generate(model, [[1, 2, 3]], length=6, temperature=0)


def test_a_relative_base_is_looked_up_beside_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of that name in the current folder does not matter."""
    model = model_with_adapters(**ALIBI)
    save(base_of(model), tmp_path / "mine" / "base")
    write_adapter(model, tmp_path / "mine" / "adapter", "../base")
    (tmp_path / "base").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ids = torch.randint(13, (2, 7))
    assert_close(load(tmp_path / "mine" / "adapter").model(ids), model(ids), rtol=1e-4, atol=1e-5)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    model = model_with_adapters(**LLAMA)
    ids = torch.randint(13, (2, 7))
    write_folder(base_of(model), tmp_path / "base")
    write_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    assert_close(load(tmp_path / "adapter").model(ids), model(ids), rtol=1e-4, atol=1e-5)


def test_a_model_with_a_head(tmp_path: Path) -> None:
    """The base has no task head, and heads that the fine-tuned model does not have."""
    base = BERT(BERTConfig(**SMALL)).eval()
    save(base, tmp_path / "base", tokenizer=words())
    backbone = BERTConfig(**SMALL, mlm_head=False, next_sentence=False, pooler=False)
    head = HeadConfig(
        task="classify", labels=("bad", "good"), pooling="mean", delimiter=1, extract=2, padding=0
    )
    model = TaskModel(TaskModelConfig(backbone=backbone, head=head)).eval()
    names = model.backbone.state_dict().keys()
    weights = base.state_dict()
    model.backbone.load_state_dict({name: weights[name] for name in weights if name in names})
    attach_adapters(model, AdapterConfig(rank=2))
    for parameter in (*adapter_parameters(model), *model.head.parameters()):
        nn.init.normal_(parameter, std=0.3)

    write_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    ids = torch.randint(13, (3, 6))
    first = torch.zeros(3, 1, dtype=torch.long)
    loaded = load(tmp_path / "adapter").model
    assert isinstance(loaded, TaskModel)
    assert loaded.config == model.config
    assert not loaded.training
    assert_close(
        loaded(ids, target_positions=first),
        model(ids, target_positions=first),
        rtol=1e-4,
        atol=1e-5,
    )

    save(loaded, tmp_path / "whole")
    assert_close(
        load(tmp_path / "whole").model(ids, target_positions=first),
        loaded(ids, target_positions=first),
    )


def test_a_missing_base(tmp_path: Path) -> None:
    model = model_with_adapters(**LLAMA)
    write_adapter(model, tmp_path / "adapter", "somebody/model")
    with pytest.raises(
        ValueError,
        match=r"adapter: .*somebody",
    ):
        load(tmp_path / "adapter")

    with pytest.raises(ValueError, match=r"give it: qkv\.load\('.*adapter', base=\.\.\.\)"):
        artifact.tokenizer_of(tmp_path / "adapter")

    write_adapter(model, tmp_path / "adapter", None, replace=True)
    with pytest.raises(ValueError, match=r"base_model_name_or_path: .*does not name its base"):
        load(tmp_path / "adapter")

    write_adapter(model, tmp_path / "adapter", str(tmp_path / "adapter"), replace=True)
    with pytest.raises(ValueError, match=r"its base, the model '.*adapter'"):
        load(tmp_path / "adapter")


def test_another_base_is_refused(tmp_path: Path) -> None:
    model = model_with_adapters(**LLAMA)
    save(base_of(model_with_adapters(**LLAMA)), tmp_path / "other")
    write_adapter(model, tmp_path / "adapter", str(tmp_path / "other"))
    with pytest.raises(
        ValueError,
        match=r"adapter: .*other weights",
    ):
        load(tmp_path / "adapter")


def test_a_whole_model_needs_no_base(tmp_path: Path) -> None:
    save(base_of(model_with_adapters()), tmp_path / "base")
    with pytest.raises(ValueError, match=r"base: .* is a whole model"):
        load(tmp_path / "base", base=tmp_path / "base")


def test_adapters_are_not_saved_as_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model: it has adapters; merge"):
        save(model_with_adapters(), tmp_path / "model")

    assert not (tmp_path / "model").exists()


def test_an_adapter_of_an_adapter(tmp_path: Path) -> None:
    """An adapter that was trained on a model with a merged adapter."""
    first = model_with_adapters(**LLAMA)
    save(base_of(first), tmp_path / "base")
    write_adapter(first, tmp_path / "first", str(tmp_path / "base"))
    second = load(tmp_path / "first").model
    attach_adapters(second, AdapterConfig(rank=1), seed=5)
    for parameter in adapter_parameters(second):
        nn.init.normal_(parameter, std=0.3)

    write_adapter(second, tmp_path / "second", str(tmp_path / "first"))
    ids = torch.randint(13, (2, 7))
    assert_close(load(tmp_path / "second").model(ids), second(ids), rtol=1e-4, atol=1e-5)


def test_a_packaged_folder_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (artifact.model_path("minilm") / "config.json").is_file()
    (tmp_path / "minilm").mkdir()
    assert artifact.model_path("minilm") == Path("minilm")
    shutil.rmtree(tmp_path / "minilm")
    values = json.loads((artifact.model_path("minilm") / "config.json").read_text())
    assert values["model_type"] == "bert"


@pytest.mark.parametrize("same_config", [True, False])
def test_killed_before_any_touch_of_the_disk(same_config: bool, tmp_path: Path) -> None:
    """The old adapter or the new one loads, never a mixture.

    If their configs differ, there may be none for a moment.
    """
    model = model_with_adapters(**LLAMA)
    base = base_of(model)
    save(base, tmp_path / "base")
    new = base_of(model)
    name = str(tmp_path / "base")
    attach_adapters(
        new,
        AdapterConfig(
            rank=2, alpha=16.0 if same_config else 5.0, projections=("query", "value", "down")
        ),
        7,
    )

    for parameter in adapter_parameters(new):
        nn.init.normal_(parameter, std=0.3)

    ids = torch.randint(13, (2, 7))
    old_logits = model(ids)
    new_logits = new(ids)
    states = set()
    write_adapter(model, tmp_path / "old", name)
    shutil.copytree(tmp_path / "old", tmp_path / "here")
    for _ in killed_before_every_touch(
        lambda: write_adapter(new, tmp_path / "here", name, replace=True)
    ):
        if (tmp_path / "here" / "adapter_config.json").exists():
            logits = load(tmp_path / "here").model(ids)
            is_new = torch.allclose(logits, new_logits, atol=1e-4)
            assert is_new or torch.allclose(logits, old_logits, atol=1e-4)
            states.add(is_new)
        else:
            assert not same_config

        write_adapter(model, tmp_path / "here", name, replace=True)
        assert sorted(file.name for file in (tmp_path / "here").iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]

    assert states == {False, True}
