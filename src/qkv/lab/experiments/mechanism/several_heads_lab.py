"""Several heads: can one layer with several heads replace several layers with one?"""

from __future__ import annotations

from torch import Tensor, no_grad
from torch.nn.functional import cross_entropy

from qkv.data.batches.batch import IGNORE
from qkv.data.embedded.synthetic_batches import LookupBatch, lookups_batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import accuracy, fit
from qkv.models import GPT, GPTConfig

ONE_LAYER = {"1 head": (1, 1), "2 heads": (2, 1), "4 heads": (4, 1), "8 heads": (8, 1)}
ARMS = {**ONE_LAYER, "1 head, 2 layers": (1, 2), "1 head, 4 layers": (1, 4)}
VOCABULARY = 64
DISTANCES = (1, 3, 5, 7)


def measure(cell: Cell) -> Measured:
    """Learn to say the tokens 1, 3, 5 and 7 positions back, all at each position."""
    size = cell.size
    heads, depth = ARMS[cell.arm]
    answers = len(DISTANCES) * VOCABULARY
    sizes = {"width": size.width, "hidden": size.width, "depth": depth, "heads": heads}
    model = GPT(GPTConfig(vocabulary=answers, context=size.length, tied=False, **sizes))
    model.to(cell.device)

    def batch(step: int) -> LookupBatch:
        return lookups_batch(cell.seed, step, 16, size.length, VOCABULARY, distances=DISTANCES)

    def loss(batch: LookupBatch) -> Tensor:
        logits = model(batch.ids.to(cell.device)).view(-1, VOCABULARY)  # (B T M, V)
        targets = batch.targets.to(cell.device).flatten()
        return cross_entropy(logits, targets, ignore_index=IGNORE)

    fit(model, batch, size.steps, rate=size.rate, loss=loss)
    test = lookups_batch(cell.seed, 0, 128, size.length, VOCABULARY, split="test")
    with no_grad():
        logits = model(test.ids.to(cell.device)).unflatten(-1, (-1, VOCABULARY))  # (B, T, M, V)

    return {"accuracy": accuracy(logits, test.targets.to(cell.device)), "layers": depth}


EXPERIMENT = Experiment(
    name="several-heads",
    claim="Several heads in one layer do what would otherwise need several layers.",
    slides=("001 L205", "001 L217", "004 L63"),
    setup=(
        "Random tokens; each position has to say the tokens 1, 3, 5 and 7 positions back.",
        "GPTs of equal width: 1, 2, 4 or 8 heads in one layer, or 1 head in 2 or 4 layers.",
        "All have the same data and the same number of steps.",
        "Accuracy is that of the four answers in new sequences; guessing gives 1 in 64.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(
        Check(
            "In one layer, four heads find more than one head",
            lambda value: value("4 heads", "accuracy") - value("1 head", "accuracy"),
            relevant=0.1,
        ),
        Check(
            "Four heads in one layer find more than one head in each of two layers",
            lambda value: value("4 heads", "accuracy") - value("1 head, 2 layers", "accuracy"),
            relevant=0.05,
        ),
        Check(
            "Four heads in one layer are at most 0.1 below one head in each of four layers",
            lambda value: value("1 head, 4 layers", "accuracy") - value("4 heads", "accuracy"),
            relevant=0.1,
            expects="not worse",
        ),
    ),
    panels=(Panel("accuracy", y="accuracy", title="Four lookups", levels={"chance": 1 / 64}),),
    small=Size(seeds=5, minutes=1.5, steps=800, width=64, length=32, rate=3e-3),
    large=Size(seeds=3, minutes=3, steps=700, width=128, length=64, rate=2e-3),
    remark="Each head has one weight per position pair, so one head in one layer can only mix the "
    "four tokens. With a small vocabulary a mixture may suffice: in a trial with two lookups and "
    "10 tokens, one head did as well.",
    next_steps=(
        "qkv lab several-heads --set steps=3000: does one head in four layers catch up?",
        "qkv lab parallel: are fewer layers with more heads faster?",
        "qkv heads minilm: what do the heads of a trained model attend to?",
    ),
)
