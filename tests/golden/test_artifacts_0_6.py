"""Artifacts, adapters and checkpoints of version 0.6 load and give the logits they gave then.

Version 0.6.1 wrote everything in artifacts_0_6/, with random weights and a width of 8, and computed
logits.safetensors from the ids below. Its config keys (norm_place, word_head, body), its family
name "tuned" and its weights `body.*` have other names today.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import qkv
from qkv import checkpoint
from qkv.models import BERT, GPT, TaskModel
from qkv.models.legacy import CONFIG_KEYS, rename_config_keys, rename_weight
from qkv.models.registry import from_json, to_json, with_weights

FOLDER = Path(__file__).parent / "artifacts_0_6"
LOGITS = load_file(FOLDER / "logits.safetensors")
IDS = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 10, 11, 3, 3]])
PADDING_MASK = torch.tensor([[True] * 6, [True] * 5 + [False]])


@torch.no_grad()
def logits_of(model: Any) -> Tensor:
    if isinstance(model, TaskModel):
        targets = torch.zeros(2, 1, dtype=torch.long)
        return model(IDS, target_positions=targets, padding_mask=PADDING_MASK)

    if isinstance(model, BERT) and not model.config.mlm_head:
        return model.pool(model.hidden(IDS, padding_mask=PADDING_MASK))

    if isinstance(model, GPT | BERT):
        return model(IDS, padding_mask=PADDING_MASK)

    return model(IDS, IDS[:, :4], source_padding_mask=PADDING_MASK)


@pytest.mark.parametrize("name", LOGITS)
def test_the_logits_are_those_of_version_0_6(name: str) -> None:
    base = None
    if name == "adapter_run@2":  # its run.json names the base by the path it had then
        base = FOLDER / "bert"

    model = qkv.load(f"{FOLDER}/{name}", base=base).model
    torch.testing.assert_close(logits_of(model), LOGITS[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt", "bert", "classifier", "gpt_run", "adapter_run"])
def test_the_tokenizer_is_still_there(name: str) -> None:
    tokenizer = qkv.load(FOLDER / name).tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


@pytest.mark.parametrize("run", ["gpt_run", "classifier_run", "adapter_run"])
def test_the_config_in_run_json_is_that_of_the_model(run: str) -> None:
    description = checkpoint.description_of(FOLDER / run)
    assert description.config == qkv.load(FOLDER / run).model.config


@pytest.mark.parametrize("name", ["gpt", "bert", "encoder", "transformer", "rnn", "classifier"])
def test_saved_again_it_has_todays_names(name: str, tmp_path: Path) -> None:
    model, tokenizer = qkv.load(FOLDER / name)
    qkv.save(model, tmp_path, tokenizer=tokenizer)

    text = (tmp_path / "config.json").read_text()
    assert not any(f'"{key}"' in text for key in (*CONFIG_KEYS, "tuned"))
    assert not any(key.startswith("body.") for key in load_file(tmp_path / "model.safetensors"))
    assert torch.equal(logits_of(qkv.load(tmp_path).model), logits_of(model))


def test_an_old_and_a_new_name_together_are_refused() -> None:
    values = json.loads((FOLDER / "gpt" / "config.json").read_text())
    with pytest.raises(ValueError, match=r"norm_placement: .*twice"):
        from_json(values | {"norm_placement": "before"})


@pytest.mark.parametrize("run", ["gpt_run", "classifier_run", "adapter_run"])
def test_renamed_keys_are_all_that_changed_in_a_config(run: str) -> None:
    """Resuming a run compares run.json with today's config."""
    values = json.loads((FOLDER / run / "run.json").read_text())["model"]
    renamed = rename_config_keys(values)
    assert renamed == json.loads(json.dumps(to_json(from_json(values))))


def test_todays_configs_are_left_as_they_are() -> None:
    values = to_json(qkv.load(FOLDER / "classifier").model.config)
    assert values["family"] == "task_model"
    assert rename_config_keys(values) == values


def test_a_state_dict_of_0_6_loads_into_a_task_model() -> None:
    """A state dict that 0.6 saved with torch.save loads with load_state_dict."""
    expected = qkv.load(FOLDER / "classifier").model
    old = {
        name.replace("backbone.", "body."): tensor for name, tensor in expected.state_dict().items()
    }
    model = TaskModel(expected.config)
    model.load_state_dict(old)
    assert torch.equal(logits_of(model.eval()), logits_of(expected))
    assert torch.equal(logits_of(with_weights(expected.config, old).eval()), logits_of(expected))


def test_only_the_prefix_of_a_weight_is_renamed() -> None:
    assert rename_weight("body.stack.norm.gain") == "backbone.stack.norm.gain"
    assert rename_weight("body.head.weight|exp_avg") == "backbone.head.weight|exp_avg"
    assert rename_weight("backbone.body.weight") == "backbone.body.weight"
