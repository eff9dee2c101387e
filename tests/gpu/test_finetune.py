"""Fine-tuning on a GPU: CUDA graphs of several shapes, the fused loss with shares."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu


# Triton cannot compile a function that the shape checks have rewritten.
@pytest.mark.usefixtures("qkv_unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_fused_loss_with_shares_equals_its_definition(
    dtype: torch.dtype, smoothing: float
) -> None:
    from qkv.training import fused_loss
    from qkv.training.loss import softmax_loss_

    V = 8200
    logits = (3 * torch.randn(33, V, device="cuda")).to(dtype)
    targets = torch.randint(V, (33,), device="cuda")
    shares = torch.rand(33, device="cuda")
    targets[::5] = -100
    shares[3] = 0.0
    padded = torch.nn.functional.pad(logits, (0, -V % 128), value=float("nan"))
    assert fused_loss.supports(padded)
    fused = fused_loss.softmax_loss_(padded, V, targets, smoothing, shares)
    exact = logits.double().cpu()
    total = softmax_loss_(exact, V, targets.cpu(), smoothing, shares.double().cpu())
    torch.testing.assert_close(fused.double().cpu(), total, rtol=1e-5, atol=1e-5)
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(padded[:, :V].double().cpu(), exact, rtol=tolerance, atol=tolerance)
    assert (padded[:, V:] == 0).all()


def labelled_batch(task: str, rows: int, longest: int, seed: int) -> Any:
    """Random examples, framed and padded as in fine-tuning on a GPU."""
    from qkv.data.batches.framing import Frame, FramedExamples, TokenizedExample
    from qkv.data.batches.labelled import collate

    draw = random.Random(seed)
    group = {"similarity": 2, "choice": 3}.get(task, 1)
    examples = []
    targets: list[Any] = []
    for _ in range(rows):
        sequences = []
        for _ in range(group):
            ids = draw.choices(range(4, 300), k=draw.randint(4, longest))
            sequences.append([1, *ids, 3])

        lengths = [len(sequence) for sequence in sequences]
        positions = [length - 1 for length in lengths]
        target: Any = draw.randrange(3)
        if task == "tag":
            positions = list(range(1, lengths[0] - 1))
            target = draw.choices(range(3), k=len(positions))

        examples.append(TokenizedExample(sequences, lengths, positions, False, 0))
        targets.append(target)

    framed = list(FramedExamples(examples))
    frame = Frame(
        task=task, start=1, delimiter=2, extract=3, padding=0, segments=False, context=64,
        pooling="last",
    )  # fmt: skip
    if task == "regress":
        numbers = [draw.gauss(0, 1) for _ in range(rows)]
        return collate(framed, frame, [0] * rows, numbers, multiple=16)

    return collate(framed, frame, targets, multiple=16)


@pytest.mark.usefixtures("qkv_unchecked")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("classify", {"class_weights": (0.5, 2.0, 1.0), "language": 0.5}),
        ("similarity", {"language": 0.5}),
        ("choice", {"language": 0.5}),
        ("regress", {"language": 0.5}),
        ("tag", {"class_weights": (0.5, 2.0, 1.0), "smoothing": 0.1}),
    ],
)
def test_cuda_graphs_of_several_shapes_have_the_gradients_of_eager_mode(
    task: Any, options: dict[str, Any], precision: Any
) -> None:
    from qkv.models import GPTConfig, HeadConfig, TaskModel, TaskModelConfig
    from qkv.training.finetune.task_objective import TaskObjective
    from qkv.training.step import gradients_of
    from qkv.training.systems.distributed import World

    torch.manual_seed(0)
    labels = () if task in ("choice", "regress") else ("a", "b", "c")
    head = HeadConfig(
        task=task, labels=labels, dropout=0.0, start=1, delimiter=2, extract=3, padding=0
    )
    backbone = GPTConfig(vocabulary=300, context=64, width=64, depth=2, heads=4, dropout=0.0)
    model = TaskModel(TaskModelConfig(backbone=backbone, head=head)).cuda().train()
    plain = TaskObjective(model, precision=precision, **options)
    fast = TaskObjective(model, precision=precision, **options)
    fast.use_cuda_graph(wait=1)
    assert fast.cuda_graphs is not None
    world = World(torch.device("cuda"))
    tolerance = 1e-3 if precision == "float32" else 3e-2  # TensorFloat-32 may be on
    scale = torch.tensor(2.0, device="cuda")
    for step in range(8):  # two shapes in turn: in eager mode, captured, then replayed
        batch = labelled_batch(task, 8, 10 if step % 2 else 28, seed=step)
        losses = []
        gradients = []
        for objective in (plain, fast):
            model.zero_grad(set_to_none=True)
            loss, _ = gradients_of(objective, batch, world, scale=scale)
            losses.append(loss.clone())
            gradients.append(
                {name: weight.grad.clone() for name, weight in model.named_parameters()}
            )

        torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=tolerance)
        for name, expected in gradients[0].items():
            difference = (gradients[1][name] - expected).norm()
            assert difference <= tolerance * expected.norm() + 1e-6, (step, name)

    assert len(fast.cuda_graphs.graphs) == 2


@pytest.mark.usefixtures("qkv_unchecked")
@pytest.mark.parametrize("train", ["everything", "adapters"])
def test_an_easy_task_is_learned(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    assert tune(tmp_path, train, "cuda") > 0.95


def tune(folder: Path, train: Any, device: str) -> float:
    """Accuracy on validation; the task is which of two words a text contains."""
    from dataclasses import replace

    from qkv import artifact
    from qkv.models import GPT, GPTConfig
    from qkv.text import train as learn
    from qkv.training.finetune.finetune import DEFAULTS, finetune
    from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig

    plain = ["boats", "rivers", "stones"]
    draw = random.Random(0)
    tokenizer = learn("words", [" ".join([*plain, "warm", "cold"])] * 2, 60)
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(
            vocabulary=tokenizer.vocabulary, context=64, width=32, depth=1, heads=2, dropout=0.0
        )
    )
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue

        std = 32**-0.5
        if "token" in name:
            std = 1.0  # embeddings far from each other, as in a trained model
        elif "embedding" in name:
            std = 0.02

        torch.nn.init.normal_(weight, std=std)

    artifact.save(model, folder / "model", tokenizer=tokenizer)
    lines = []
    for number in range(320):
        most = 20 if number % 4 == 0 else 4
        text = draw.choices(plain, k=draw.randint(1, most))
        text.append(("warm", "cold")[number % 2])
        draw.shuffle(text)
        lines.append(f"{' '.join(text)}\t{('good', 'bad')[number % 2]}")

    for name, part in (("train", lines[:256]), ("dev", lines[256:])):
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(part) + "\n")

    config = FinetuneConfig(
        model=str(folder / "model"),
        task="classify",
        data=(str(folder / "train.tsv"),),
        validation=(str(folder / "dev.tsv"),),
        train=train,
    )
    run = FinetuneRunConfig(out=folder / "run", epochs=3, batch=8, device=device)
    result = finetune(config, replace(DEFAULTS, learning_rate=1e-2), run)
    assert result is not None
    return result.measured["accuracy"]
