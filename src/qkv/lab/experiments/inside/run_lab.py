"""Noun or verb: does a head that attends to the word before tell the part of speech?"""

from __future__ import annotations

from collections.abc import Callable

import torch

from qkv.data.embedded.word_senses import part_of_speech_sentences
from qkv.insight.inspect.attention_edits import Edit
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.inside import marked_words as marked
from qkv.lab.experiments.inside.marked_words import AGENT, BEFORE, MEAN

ALL = "all heads"
WITHOUT = "without the head for the word before"
OTHERS = "without another head of its layer"
AT_ITS_LAYER = "accuracy at the layer of the head"
WHO = "weight on who runs"


def measure(cell: Cell) -> Measured:
    """Switch heads off, and tell nouns from verbs by their vectors."""
    subject = marked.pretrained(cell.size.model, cell.device)
    sentences = part_of_speech_sentences()[: 6 * cell.size.words]
    tokens = marked.tokenize_words(subject, [sentence.text for sentence in sentences])
    places = [sentence.index for sentence in sentences]
    words = [sentence.word for sentence in sentences]
    nouns = torch.tensor([sentence.part_of_speech == "noun" for sentence in sentences])

    weights = marked.attention_to(subject, tokens, places, [place - 1 for place in places])
    layer, head = marked.head_for_word_before(subject, len(sentences))
    others = [other for other in range(weights.shape[2]) if other != head]
    off = {ALL: [], WITHOUT: [head], OTHERS: others}[cell.arm]

    edits = [[Edit(layer, number)] for number in off] or [[]]
    accuracy = marked.accuracy_with(subject, edits, tokens, places, words, nouns)
    measured: Measured = {"accuracy": accuracy, AT_ITS_LAYER: accuracy[layer + 1]}
    if not off:
        return {**measured, WHO: marked.weights_on_agents(subject, cell.size.words)}

    weight = marked.means_by(weights[:, layer, off].mean(-1).tolist(), words)
    return {**measured, "weight": weight}


def on_agent(less: str) -> Callable[..., float]:
    """More weight on who runs than `less`."""
    return lambda value: value(ALL, WHO, AGENT) - value(ALL, WHO, less)


EXPERIMENT = Experiment(
    name="run",
    claim="One head tells whether 'run' is a noun or a verb, another one who runs.",
    slides=("001 L205", "001 L207", "001 L208", "001 L209", "001 L210", "001 L211"),
    setup=(
        "60 sentences with ten words such as 'run', each three times as a noun and as a verb.",
        "A pre-trained model reads them; nothing is trained. Heads are chosen on other text.",
        "Noun or verb: is its vector nearer to the mean of nouns or of verbs of the other words?",
        "The first head for the word before is switched off; then each other one of its layer.",
        "30 sentences such as 'I went for a run': a head chosen on nine words looks for who runs.",
    ),
    arms=(ALL, WITHOUT, OTHERS),
    measure=measure,
    checks=(
        Check(
            "The head attends to the word before, more than the others do",
            lambda value: value(WITHOUT, "weight") - value(OTHERS, "weight"),
            relevant=0.3,
        ),
        Check(
            "At its layer more is lost without it than without another head",
            lambda value: value(OTHERS, AT_ITS_LAYER) - value(WITHOUT, AT_ITS_LAYER),
            relevant=0.05,
        ),
        Check("One head attends to who runs", on_agent(MEAN), relevant=0.1),
        Check("It looks for who runs, not for the word before", on_agent(BEFORE), relevant=0.1),
    ),
    panels=(
        Panel("accuracy", "layers read", "noun or verb: right answers", levels={"chance": 0.5}),
        Panel("weight", "", "weight on the word before", "The head that is off", kind="dots"),
        Panel(WHO, "", "weight", "'I went for a run': who?", kind="dots"),
    ),
    small=Size(seeds=1, minutes=0.5, model="minilm", words=10),
    large=Size(seeds=1, minutes=1, model="smollm2", words=10),
    unit="word",
    remark="The head helps, but is not needed: at the small size (MiniLM) 77% instead of 100% are "
    "right without it at its layer, and two layers later 100% again. The head that looks for who "
    "runs is weak: it gives 15% of its weight to them, all heads together 6%.",
    next_steps=(
        "qkv look minilm 'I went for a run' --view heads",
        "qkv lab run --set model=smollm2: the same in a model that reads left to right?",
    ),
)
