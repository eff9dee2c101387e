"""qkv.generate: text in, text out, with the numbers of qkv.generation."""

from __future__ import annotations

import pytest

import qkv
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.text import complete
from qkv.models import GPT, GPTConfig
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("byte-pair", SENTENCES, 300)


@pytest.fixture
def model(tokenizer: Tokenizer) -> GPT:
    config = GPTConfig(vocabulary=tokenizer.vocabulary, context=32, width=16, depth=1, heads=2)
    return GPT(config)


def test_one_prompt_gives_one_string(model: GPT, tokenizer: Tokenizer) -> None:
    """The result is that of `complete` with the same sampling parameters."""
    params = SamplingParams(temperature=0.8, top_p=0.95, repetition=1.2)
    expected = complete(model, tokenizer, "the cat", length=9, sampling_params=params, seed=3)
    text = qkv.generate(model, tokenizer, "the cat", length=9, repetition=1.2, seed=3)
    assert text == expected


def test_several_prompts_and_samples_give_lists(model: GPT, tokenizer: Tokenizer) -> None:
    """Prompts in the first order, samples in the second."""
    several = qkv.generate(model, tokenizer, ["the cat", "mice"], length=5, seed=1)
    assert len(several) == 2
    sampled = qkv.generate(model, tokenizer, ["the cat", "mice"], length=5, seed=1, samples=3)
    assert len(sampled) == 6
    assert isinstance(qkv.generate(model, tokenizer, "the cat", length=5, samples=1), list)


def test_a_stop_string_ends_the_text(model: GPT, tokenizer: Tokenizer) -> None:
    whole = qkv.generate(model, tokenizer, "the cat", length=20, seed=3)
    stop = whole[4:7]
    text = qkv.generate(model, tokenizer, "the cat", length=20, seed=3, stop=stop)
    assert text == whole.partition(stop)[0]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("option", "value"), [("temperature", -1.0), ("top_k", 0), ("top_p", 2.0), ("samples", 0)]
)
def test_bad_parameters_are_refused_by_name(
    model: GPT, tokenizer: Tokenizer, option: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"^{option}: "):
        qkv.generate(model, tokenizer, "the cat", **{option: value})


@pytest.mark.usefixtures("without_shape_checks")
def test_a_path_is_refused_with_the_function_that_opens_it(tokenizer: Tokenizer) -> None:
    """The model is checked before the tokenizer is used."""
    for given in (tokenizer, "the cat"):
        with pytest.raises(TypeError, match=r"^model: expected a GPT.*not str; qkv\.load opens"):
            qkv.generate("runs/mine", given, "the cat")
