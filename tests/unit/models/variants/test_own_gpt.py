"""A student's own GPT in the trainer, the viewer and the server: equal to the package's own."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import qkv
from qkv import insight, plugins
from qkv.artifact import Loaded
from qkv.data.batches.batch import Batch
from qkv.evaluation.likelihood import Request, likelihoods
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.text import complete
from qkv.insight.heads.head_ablation import ablate
from qkv.insight.inspect.capture import unmasked
from qkv.insight.inspect.position_encoding import position_encoding
from qkv.models import GPT, GPTConfig, HeadConfig, TaskModelConfig, build, int8
from qkv.models.configs import OwnGPTConfig
from qkv.models.registry import from_json, to_json
from qkv.models.variants.own_gpt import OwnGPT, unlike_the_library
from qkv.nn.hooks import add_hook, capture
from qkv.training import DataConfig, OptimizerConfig, RunConfig
from qkv.training.logging.metrics import read_metrics
from support.engines import Steps
from support.own_gpt_files import BLOCK, FILES, MULTI_HEAD, write_own_gpt
from support.own_gpt_files import GPT as OWN
from support.small_training import model_of, same_bits, sentences

SIZES = {"vocabulary": 64, "context": 16, "width": 16, "depth": 2, "heads": 2}
TEXT = "cats chase mice"


def allowed(folder: Path, **changes: str) -> OwnGPTConfig:
    """The config of her GPT, whose file a flag has named."""
    file = write_own_gpt(folder, **changes)
    return OwnGPTConfig(**SIZES, model=plugins.allow_file(f"{file}:GPT", "model"))


def trained(config: GPTConfig, folder: Path, name: str, **options: object) -> Path:
    text = folder / "text.txt"
    text.write_text("\n".join(sentences()) + "\n")
    settings = {"steps": 6, "batch_tokens": 64, "device": "cpu", "compile": False, **options}
    qkv.train(
        config,
        DataConfig(data=(str(text),), tokenizer="words"),
        OptimizerConfig(learning_rate=0.01, schedule="constant", warmup=1),
        RunConfig(out=folder / name, **settings),
        console=Console(file=io.StringIO()),
    )
    return folder / name


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run) if "loss" in row]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The runs of her GPT and of the package's, at the same seed."""
    folder = tmp_path_factory.mktemp("own")
    config = allowed(folder)
    return trained(config, folder, "hers"), trained(GPTConfig(**SIZES), folder, "ours")


@pytest.fixture(scope="module")
def models(both: tuple[Path, Path]) -> tuple[Loaded, Loaded]:
    return qkv.load(both[0]), qkv.load(both[1])


def test_losses_are_equal_step_by_step(both: tuple[Path, Path]) -> None:
    hers, ours = map(losses, both)
    assert len(hers) == 6
    assert hers == pytest.approx(ours, abs=1e-5)
    assert hers[-1] < hers[0] - 0.1


def test_a_resumed_run_equals_an_uninterrupted_one(both: tuple[Path, Path], tmp_path: Path) -> None:
    config = qkv.load(both[0]).model.config
    trained(config, tmp_path, "half", steps=3)
    half = trained(config, tmp_path, "half", resume=True)
    assert losses(half) == losses(both[0])
    assert same_bits(model_of(half), model_of(both[0]))


def test_greedy_texts_are_equal_also_beyond_the_context(models: tuple[Loaded, Loaded]) -> None:
    prompts = [TEXT, "dogs see", "birds"]
    texts = []
    for model, tokenizer in models:
        options = {"length": 30, "temperature": 0.0, "beyond": "slide"}
        texts.append(complete(model, tokenizer, prompts, **options))

    assert texts[0] == texts[1]
    assert all(texts[0])


def test_look_shows_the_weights_of_every_head(models: tuple[Loaded, Loaded]) -> None:
    hers, ours = (insight.look(loaded, TEXT, attribution=True) for loaded in models)
    for layer, weights in ours.attention[0].layers.items():
        torch.testing.assert_close(hers.attention[0].layers[layer], weights, atol=1e-5, rtol=1e-4)

    assert hers.attention[0].causal
    for mine, right in zip(hers.norms.residual, ours.norms.residual, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-4)

    names = [[[guess.id for guess in token] for token in layer] for layer in hers.lens]
    assert names == [[[guess.id for guess in token] for token in layer] for layer in ours.lens]
    assert hers.attribution.shape == ours.attribution.shape


@pytest.mark.parametrize("point", ["query", "key", "value", "weights", "heads"])
def test_hook_points_of_attention_equal_the_packages(
    models: tuple[Loaded, Loaded], point: str
) -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    name = f"stack.blocks.1.attention.{point}"
    values = []
    for model, _ in models:
        with capture(model, name) as captured, torch.no_grad():
            model(ids)
        values.append(captured[name])

    torch.testing.assert_close(values[0], values[1], atol=1e-4, rtol=1e-4)


def test_a_head_is_knocked_out_as_in_the_packages(models: tuple[Loaded, Loaded]) -> None:
    def without(value: torch.Tensor, name: str) -> torch.Tensor:
        return value.index_fill(1, torch.tensor([0]), 0.0)

    ids = torch.tensor([[3, 4, 5, 6]])
    logits = []
    for model, _ in models:
        with add_hook(model, "stack.blocks.0.attention.heads", without), torch.no_grad():
            logits.append(model(ids))

    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        assert not torch.allclose(logits[0], models[0].model(ids), atol=1e-4)


def test_padding_anywhere_in_a_row_changes_nothing(models: tuple[Loaded, Loaded]) -> None:
    model = models[0].model
    ids = torch.tensor([[3, 4, 5, 6]])
    padded = torch.tensor([[0, 3, 4, 0, 5, 6, 0]])
    mask = torch.tensor([[False, True, True, False, True, True, False]])
    with torch.no_grad():
        plain = model(ids)
        torch.testing.assert_close(model(padded, padding_mask=mask)[mask].unsqueeze(0), plain)


def test_decoding_token_by_token_gives_the_same_logits(models: tuple[Loaded, Loaded]) -> None:
    model = models[0].model
    ids = torch.tensor([[3, 4, 5, 6], [6, 5, 4, 3]])
    state = model.start()
    with torch.no_grad():
        steps = [model.decode(ids[:, [position]], state) for position in range(4)]
        torch.testing.assert_close(torch.cat(steps, dim=1), model(ids))

    state.reorder(torch.tensor([1, 1]))
    assert state.ids.tolist() == [[6, 5, 4, 3]] * 2


def test_a_new_model_has_the_packages_weights_at_the_same_seed(tmp_path: Path) -> None:
    config = allowed(tmp_path)
    torch.manual_seed(5)
    hers = build(config)
    torch.manual_seed(5)
    ours = GPT(GPTConfig(**SIZES))
    ids = torch.randint(64, (3, 16))
    torch.testing.assert_close(hers(ids), ours(ids), atol=1e-5, rtol=1e-4)
    assert unlike_the_library(hers) == []
    assert from_json(to_json(config)) == config


def test_a_model_with_other_parameters_trains_all_the_same(tmp_path: Path) -> None:
    wide = BLOCK.replace("4 * width", "2 * width")
    model = build(allowed(tmp_path, ex07_block=wide))
    assert "blocks.0.feed_forward.up.weight" in unlike_the_library(model)
    assert "norm.weight" not in unlike_the_library(model)


WRONG = {
    "no class": ({"mine": "x = 1\n"}, "defines no GPT"),
    "no sizes": (
        {"ex09_gpt": OWN.replace("vocabulary, context, width, depth, heads)", "width)", 1)},
        r"expected GPT\(vocabulary, context, width, depth, heads\)",
    ),
    "not written": (
        {"ex07_block": BLOCK.replace("x = self.up(x)", "raise NotImplementedError")},
        r"ex07_block.py, line \d+, is not written yet",
    ),
    "error": (
        {"ex07_block": BLOCK.replace("x = self.up(x)", "x = self.upper(x)")},
        r"ex07_block.py, line \d+: AttributeError",
    ),
    "syntax": ({"ex07_block": BLOCK + "\nclass\n"}, r"ex07_block.py, line 4\d: SyntaxError"),
    "shape": (
        {"ex09_gpt": OWN.replace("@ self.token.weight.T", "")},
        r"forward\(ids\) has shape \(2, 8, 16\), expected \(B, T, V\) = \(2, 8, 64\)",
    ),
    "hidden": (
        {"ex09_gpt": OWN.replace("return self.norm(x)", "return self.norm(x)[0]")},
        r"has shape \(8, ",
    ),
    "nan": (
        {"ex09_gpt": OWN.replace("return self.norm(x)", "return self.norm(x) * torch.nan")},
        "NaN or infinite",
    ),
    "not causal": (
        {"ex09_gpt": OWN.replace("x = block(x, mask)", "x = block(x)")},
        "position 7 changes the logits at position 0; is the causal mask applied",
    ),
    "not tied": (
        {"ex09_gpt": OWN.replace("@ self.token.weight.T", "@ self.token.weight.T * 2")},
        "tied to self.token.weight",
    ),
    "buffer": (
        {"ex09_gpt": OWN.replace(
            "self.norm = LayerNorm(width)",
            "self.norm = LayerNorm(width)\n        self.register_buffer('seen', torch.ones(2))",
        )},
        "the buffer seen of GPT is not a parameter",
    ),
    "no blocks": ({"ex09_gpt": OWN.replace("self.blocks", "self.layers")}, "no module self.blocks"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_named_before_training(mistake: str, tmp_path: Path) -> None:
    changes, message = WRONG[mistake]
    with pytest.raises(ValueError, match=message):
        build(allowed(tmp_path, **changes))


def test_a_saved_model_needs_consent(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "allowed", set())
    with pytest.raises(ValueError, match=r"GPT of .*mine\.py is needed, .* set QKV_PLUGINS="):
        qkv.load(both[0])

    file = both[0].parent / "mine.py"
    monkeypatch.setenv("QKV_PLUGINS", str(file))
    assert isinstance(qkv.load(both[0]).model, OwnGPT)


def test_two_students_with_files_of_the_same_names(tmp_path: Path) -> None:
    built = []
    for name, factor in (("ada", "1"), ("bea", "3")):
        folder = tmp_path / name
        folder.mkdir()
        changed = MULTI_HEAD.replace("self.query(x)", f"self.query(x) * {factor}")
        for stem, text in (FILES | {"ex05_multi_head": changed}).items():
            (folder / f"{stem}.py").write_text(text)

        spec = plugins.allow_file(f"{folder / 'mine.py'}:GPT", "model")
        torch.manual_seed(0)
        built.append(build(OwnGPTConfig(**SIZES, model=spec)))

    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert not torch.allclose(built[0](ids), built[1](ids))


def test_the_table_of_positions_is_hers(models: tuple[Loaded, Loaded]) -> None:
    hers, ours = (position_encoding(loaded.model) for loaded in models)
    torch.testing.assert_close(hers.table, ours.table, atol=1e-4, rtol=1e-4)


def test_what_needs_the_packages_parts_is_refused(models: tuple[Loaded, Loaded]) -> None:
    model = models[0].model
    with pytest.raises(TypeError, match="int8 supports the package's own layers"):
        int8(model)
    with pytest.raises(ValueError, match="mask of your own GPT is in its code"), unmasked(model):
        pass

    head = HeadConfig(task="regress", delimiter=1, extract=2, padding=0)
    with pytest.raises(ValueError, match="backbone: a task head needs one of the package's"):
        TaskModelConfig(backbone=model.config, head=head)


def test_fields_that_her_class_decides_are_refused() -> None:
    with pytest.raises(ValueError, match="position: your own GPT decides this itself"):
        OwnGPTConfig(**SIZES, model="mine.py", position="rotary")

    assert replace(OwnGPTConfig(**SIZES, model="a.py"), depth=3).model == "a.py:GPT"


def test_the_server_answers_with_the_packages_tokens(models: tuple[Loaded, Loaded]) -> None:
    answers = []
    greedy = SamplingParams(temperature=0.0)
    for model, tokenizer in models:
        steps = Steps(model, tokenizer, cache=1 << 20, rows=4)
        prompts = [tokenizer.encode(text) for text in (TEXT, "dogs see")]
        handles = [steps.request(prompt, 20, sampling=greedy) for prompt in prompts]
        steps.finish()
        answers.append([steps.ids(handle) for handle in handles])

    assert answers[0] == answers[1]
    assert max(len(ids) for (ids,) in answers[0]) > 5


def test_heads_are_ablated_and_perplexity_measured_as_in_the_packages(
    models: tuple[Loaded, Loaded],
) -> None:
    importance = []
    likelihood = []
    for model, tokenizer in models:
        ids = torch.tensor([tokenizer.encode(" ".join([TEXT] * 3))])
        batch = Batch(ids=ids[:, :-1], targets=ids[:, 1:])
        found = ablate(model, [batch])
        importance.append([float(change) for change in found.change["self"].flatten()])
        requests = [Request((3, 4), (5, 6)), Request((3, 4), (7, 8, 9)), Request((3,), (4,))]
        likelihood.append([one.log_likelihood for one in likelihoods(model, requests)])

    assert importance[0] == pytest.approx(importance[1], abs=1e-4)
    assert likelihood[0] == pytest.approx(likelihood[1], abs=1e-4)
