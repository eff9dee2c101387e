"""Loading returns what was saved, or names the file that was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import qkv.artifact as artifact
from qkv import storage
from qkv.artifact import load, save
from qkv.models import (
    BERT,
    GPT,
    RNN,
    BERTConfig,
    GPTConfig,
    Model,
    RNNConfig,
    RNNLanguageModel,
    RNNLMConfig,
    Transformer,
    TransformerConfig,
)
from qkv.models.convert import hf_folder, write_folder
from qkv.nn.position import RotaryScaling
from qkv.text import Tokenizer
from support.killing import killed_before_every_touch

SMALL = {"vocabulary": 40, "width": 16, "depth": 2, "heads": 2}
MODELS = {
    "gpt": GPT(
        GPTConfig(**SMALL, context=32, position="rotary", rotary_scaling=RotaryScaling(factor=2.0))
    ),
    "bert": BERT(BERTConfig(**SMALL, context=32)),
    "transformer": Transformer(TransformerConfig(**SMALL, tied="two")),
    "rnn-lm": RNNLanguageModel(RNNLMConfig(vocabulary=40, width=16, depth=2, residual=True)),
    "rnn": RNN(RNNConfig(vocabulary=40, width=16, cell="lstm")),
}
ARTIFACT = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def word_tokenizer(*more: str) -> Tokenizer:
    tokens = ["[unknown]", "[end]", "the", "cat", "sat", *more]
    inner = tokenizers.Tokenizer(
        WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="[unknown]")
    )
    inner.pre_tokenizer = Whitespace()
    inner.add_special_tokens(["[unknown]", "[end]"])
    return Tokenizer(inner)


def same_model(one: Model, other: Model) -> bool:
    before = one.state_dict()
    after = other.state_dict()
    if one.config != other.config or before.keys() != after.keys():
        return False

    for name, tensor in before.items():
        if tensor.dtype != after[name].dtype or not torch.equal(tensor, after[name]):
            return False

    return True


def files_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(MODELS["gpt"], tmp_path / "saved", tokenizer=word_tokenizer())
    return tmp_path / "saved"


# Loading returns what was saved


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_loaded_equals_saved(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = type(MODELS[family])(MODELS[family].config).to(dtype)
    save(model, tmp_path / "model")
    loaded, tokenizer = load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert not loaded.training
    assert same_model(loaded, model)
    assert tokenizer is None
    assert files_in(tmp_path / "model") == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("form", ["object", "file", "folder", "str"])
def test_the_tokenizer_is_saved_with_the_model(form: str, tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.parent.mkdir()
    tokenizer.write(file)
    forms = {"object": tokenizer, "file": file, "folder": file.parent, "str": str(file)}
    save(MODELS["gpt"], tmp_path / "model", tokenizer=forms[form])
    loaded = load(tmp_path / "model").tokenizer
    assert loaded.encode("the cat sat there") == [2, 3, 4, 0]
    assert loaded.fingerprint == tokenizer.fingerprint
    assert files_in(tmp_path / "model") == ARTIFACT


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer: it has 41 tokens, .*40"):
        save(MODELS["gpt"], tmp_path / "model", tokenizer=word_tokenizer(*map(str, range(36))))

    assert not (tmp_path / "model").exists()


def test_a_model_outlives_its_folder(saved: Path) -> None:
    loaded = load(saved).model
    weights = saved / "model.safetensors"
    weights.write_bytes(b"\0" * weights.stat().st_size)
    assert same_model(loaded, MODELS["gpt"])


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    model = GPT(GPTConfig(**SMALL, context=32, activation="gelu_tanh")).eval()
    write_folder(model, tmp_path / "theirs")
    ids = torch.randint(40, (2, 9))
    loaded, tokenizer = load(tmp_path / "theirs")
    assert torch.equal(loaded(ids), model(ids))
    assert tokenizer is None


def test_the_tokenizer_of_a_folder_of_transformers(tmp_path: Path) -> None:
    word_tokenizer().write(tmp_path / "tokenizer.json")
    write_folder(MODELS["bert"], tmp_path / "whole", tokenizer=tmp_path / "tokenizer.json")
    assert load(tmp_path / "whole").tokenizer.encode("the cat") == [2, 3]
    write_folder(MODELS["bert"], tmp_path / "vocabulary")
    (tmp_path / "vocabulary" / "vocab.txt").write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n"
    )
    assert load(tmp_path / "vocabulary").tokenizer.encode("the cat") == [5, 6]
    write_folder(MODELS["bert"], tmp_path / "marian")
    (tmp_path / "marian" / "vocab.json").write_text('{"the": 0}')
    assert load(tmp_path / "marian").tokenizer is None


@pytest.mark.usefixtures("without_shape_checks")
def test_a_compiled_model_is_saved_as_itself(tmp_path: Path) -> None:
    save(torch.compile(MODELS["gpt"]), tmp_path / "whole")
    assert same_model(load(tmp_path / "whole").model, MODELS["gpt"])
    model = GPT(MODELS["gpt"].config)
    model.stack.blocks[0] = torch.compile(model.stack.blocks[0])
    save(model, tmp_path / "parts")
    assert torch.equal(
        load(tmp_path / "parts").model.embedding.token.weight, model.embedding.token.weight
    )


# Folders that hold files


def test_nothing_is_overwritten(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"already here"):
        save(MODELS["bert"], saved)

    assert same_model(load(saved).model, MODELS["gpt"])
    write_folder(MODELS["bert"], tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"config\.json is already here"):
        save(MODELS["bert"], tmp_path / "theirs", replace=True)

    with pytest.raises(ValueError, match=r"tokenizer\.json is already here"):
        save(MODELS["gpt"], saved, replace=True)

    assert load(saved).tokenizer is not None


@pytest.mark.parametrize("tokenizer", [None, word_tokenizer("mat")])
def test_another_tokenizer_is_not_overwritten(tokenizer: Tokenizer | None, tmp_path: Path) -> None:
    word_tokenizer().write(tmp_path)
    before = (tmp_path / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match=r"tokenizer\.json is already here"):
        save(MODELS["gpt"], tmp_path, tokenizer=tokenizer)

    assert files_in(tmp_path) == ["tokenizer.json", "tokenizer_config.json"]
    assert (tmp_path / "tokenizer.json").read_bytes() == before
    save(MODELS["gpt"], tmp_path, tokenizer=tmp_path)
    assert files_in(tmp_path) == ARTIFACT


@pytest.mark.parametrize("harm", [None, "config.json", "model.safetensors"])
def test_an_artifact_is_replaced_on_request(harm: str | None, saved: Path) -> None:
    (saved / "metrics.jsonl").write_text("{}")
    if harm:
        (saved / harm).write_bytes(b"")

    save(MODELS["bert"], saved, tokenizer=word_tokenizer("mat"), replace=True)
    loaded, tokenizer = load(saved)
    assert same_model(loaded, MODELS["bert"])
    assert tokenizer.id("mat") == 5
    assert files_in(saved) == sorted([*ARTIFACT, "metrics.jsonl"])


def test_replace_needs_nothing_to_replace(tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path / "new", replace=True)
    assert same_model(load(tmp_path / "new").model, MODELS["gpt"])


def test_new_weights_are_one_new_file(saved: Path) -> None:
    before = {name: (saved / name).stat().st_ino for name in ARTIFACT}
    save(GPT(MODELS["gpt"].config), saved, tokenizer=word_tokenizer(), replace=True)
    changed = {name for name in ARTIFACT if (saved / name).stat().st_ino != before[name]}
    assert changed == {"model.safetensors"}


@pytest.mark.parametrize("change", ["everything", "weights"])
def test_killed_before_any_touch_of_the_disk(change: str, saved: Path, tmp_path: Path) -> None:
    old = MODELS["gpt"]
    new: Model = GPT(old.config)
    new_tokenizer = word_tokenizer()
    if change == "everything":
        new = MODELS["rnn"]
        new_tokenizer = word_tokenizer("mat")

    here = tmp_path / "here"
    states = set()
    shutil.copytree(saved, here)
    for _ in killed_before_every_touch(
        lambda: save(new, here, tokenizer=new_tokenizer, replace=True)
    ):
        loaded, tokenizer = load(here)
        is_new = same_model(loaded, new)
        assert is_new or same_model(loaded, old)
        expected = new_tokenizer if is_new else word_tokenizer()
        assert tokenizer.fingerprint == expected.fingerprint
        states.add(is_new)
        save(MODELS["bert"], here, tokenizer=word_tokenizer(), replace=True)
        assert files_in(here) == ARTIFACT
        shutil.rmtree(here)
        shutil.copytree(saved, here)

    assert states == {False, True}


def test_killed_during_the_first_save(tmp_path: Path) -> None:
    here = tmp_path / "here"
    states = set()
    for _ in killed_before_every_touch(lambda: save(MODELS["rnn"], here)):
        complete = here.exists() and artifact.is_ours(here)
        states.add(complete)
        if complete:
            assert same_model(load(here).model, MODELS["rnn"])
            with pytest.raises(ValueError, match="already here"):
                save(MODELS["gpt"], here)
        else:
            save(MODELS["gpt"], here)
            assert files_in(here) == ["config.json", "model.safetensors"]

        shutil.rmtree(here, ignore_errors=True)

    assert states == {False, True}


def test_a_full_disk_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "free", lambda folder: 100)
    with pytest.raises(
        storage.DiskFull, match=r"no room on the disk: the model needs [\d,]+ bytes"
    ):
        save(MODELS["rnn"], saved, tokenizer=word_tokenizer(), replace=True)

    assert same_model(load(saved).model, MODELS["gpt"])
    assert files_in(saved) == ARTIFACT


# Damaged and changed files


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    save(RNN(RNNConfig(vocabulary=6, width=2)), tmp_path / "saved", tokenizer=word_tokenizer())
    for file in sorted((tmp_path / "saved").iterdir()):
        whole = file.read_bytes()
        start = whole.find(b'"format":"pt"')
        harmless = range(start, start + 13) if start >= 0 else range(0)
        for byte in range(0, len(whole), 7):
            if byte in harmless or whole[byte : byte + 1] == b" ":
                continue

            flipped = bytearray(whole)
            flipped[byte] ^= 1 << byte % 8
            file.write_bytes(flipped)
            with pytest.raises(
                ValueError, match=r"saved.*(config\.json|model\.safetensors|tokenizer)"
            ):
                load(tmp_path / "saved")

        file.write_bytes(whole)

    assert load(tmp_path / "saved").tokenizer is not None


@pytest.mark.parametrize("name", ARTIFACT)
def test_a_flipped_bit_is_found_in_its_file(name: str, saved: Path) -> None:
    content = bytearray((saved / name).read_bytes())
    content[-9] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"saved/{name}: "):
        load(saved)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"headz": 4}, "headz: "),
        ({"hidden": 8}, "not the one that was saved"),
        ({"dropout": 0.5}, "not the one that was saved"),
        ({"family": "gbt"}, "family: expected one of gpt, own-gpt, bert, transformer, rnn"),
        ({"family": None}, "family: expected one of gpt, own-gpt, bert, transformer, rnn"),
        ({"vocabulary": None}, "not the one that was saved"),
        ({"rotary_scaling": None}, "not the one that was saved"),
    ],
)
def test_an_edited_config_is_refused(edit: dict[str, Any], message: str, saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text()) | edit
    for key, value in edit.items():
        if value is None:
            del config[key]

    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as raised:
        load(saved)

    assert str(saved / "config.json") in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda path: word_tokenizer("mat").write(path / "tokenizer.json"),
            "not the one that was saved",
        ),
        (
            lambda path: (path / "tokenizer.json").unlink(),
            "this file is missing",
        ),
        (
            lambda path: (path / "tokenizer.json").write_text("{"),
            "not the one that was saved",
        ),
    ],
)
def test_an_exchanged_tokenizer_is_refused(
    harm: Callable[[Path], Any], message: str, saved: Path
) -> None:
    harm(saved)
    with pytest.raises(ValueError, match=rf"saved/tokenizer\.json: .*{message}"):
        load(saved)


def test_a_tokenizer_that_came_later_is_refused(tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path)
    word_tokenizer().write(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer\.json: .*not saved with the model"):
        load(tmp_path)


def test_weights_of_another_model_are_refused(saved: Path, tmp_path: Path) -> None:
    save(
        GPT(replace(MODELS["gpt"].config, tied=False)),
        tmp_path / "other",
        tokenizer=word_tokenizer(),
    )
    shutil.copyfile(tmp_path / "other" / "model.safetensors", saved / "model.safetensors")
    with pytest.raises(ValueError, match=r"config\.json: .*not the one that was saved"):
        load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.popitem(), "1 tensors are missing"),
        (
            lambda tensors: tensors.update(more=torch.ones(1)),
            "1 tensors .*more",
        ),
        (
            lambda tensors: next(iter(tensors.values())).view(-1)[:1].neg_(),
            "checksum mismatch",
        ),
    ],
)
def test_rewritten_weights_are_refused(
    change: Callable[[dict[str, Any]], Any], message: str, saved: Path
) -> None:
    weights = saved / "model.safetensors"
    tensors = load_file(weights)
    metadata = hf_folder.read_metadata(weights)
    tensors = {name: tensor.clone() for name, tensor in sorted(tensors.items())}
    change(tensors)
    save_file(tensors, weights, metadata=metadata)
    with pytest.raises(ValueError, match=rf"model\.safetensors: {message}"):
        load(saved)

    save_file(tensors, weights)
    with pytest.raises(ValueError, match=r"model\.safetensors: it has no checksums"):
        load(saved)


@pytest.mark.parametrize("size", [0, 7, 200, -1])
def test_a_cut_off_weight_file_is_refused(size: int, saved: Path) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole"):
        load(saved)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere: there is no such folder"):
        load(tmp_path / "nowhere")


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = GPT(GPTConfig(**SMALL, context=32)).half()
    model.embedding.token.float()
    with pytest.raises(
        ValueError,
        match=r"model: .*one floating-point dtype",
    ):
        save(model, tmp_path / "mixed")

    model = GPT(GPTConfig(**SMALL, context=32))
    model.register_buffer("more", torch.ones(1))
    with pytest.raises(ValueError, match=r"model: the tensor more was added"):
        save(model, tmp_path / "more")

    assert not list(tmp_path.iterdir())
