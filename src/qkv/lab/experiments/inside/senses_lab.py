"""The meanings of a word: where does a model tell them apart, and does each have its own head?"""

from __future__ import annotations

import torch

from qkv.data.embedded.word_senses import sense_sentences
from qkv.insight.probing.probe_model import randomised
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.inside import marked_words as marked
from qkv.lab.experiments.inside.marked_words import OTHER, OWN, SHARED

TRAINED = "pre-trained"
RANDOM = "random weights"


def measure(cell: Cell) -> Measured:
    """Tell meanings apart at every layer, and see which heads attend to the cue."""
    subject = marked.pretrained(cell.size.model, cell.device)
    if cell.arm == RANDOM:
        subject = subject._replace(model=randomised(subject.model, cell.seed).eval())

    sentences = sense_sentences()[: 20 * cell.size.words]
    if subject.model.is_causal:  # a later cue cannot be seen
        sentences = [sentence for sentence in sentences if sentence.cue < sentence.index]

    tokens = marked.tokenize_words(subject, [sentence.text for sentence in sentences])
    places = [sentence.index for sentence in sentences]
    cues = [sentence.cue for sentence in sentences]
    meanings = [(sentence.word, sentence.meaning) for sentence in sentences]
    accuracy = []
    for vectors in marked.word_vectors(subject, tokens, places).values():
        accuracy.append(marked.means_by(marked.told_apart(vectors, meanings), meanings))

    weights = marked.attention_to(subject, tokens, places, cues)  # (N, L, H)
    by_head = marked.weights_of_chosen(weights.flatten(1), meanings)
    return {
        "accuracy": dict(enumerate(accuracy)),
        "gain": (torch.tensor(accuracy[-1]) - torch.tensor(accuracy[0])).tolist(),
        "weight": {name: marked.means_by(values, meanings) for name, values in by_head.items()},
    }


EXPERIMENT = Experiment(
    name="senses",
    claim="Attention tells the meanings of a word apart, and each meaning has its own head.",
    slides=("002 L68", "002 L69", "002 L70"),
    setup=(
        "160 sentences with eight words such as 'bank', ten for each of two meanings.",
        "Is the word's vector nearer to the nine others of its meaning or to the other meaning's?",
        "In each sentence one word is the cue ('river'): how much weight does a head give it?",
        "The head of a meaning is chosen on other sentences; so are those it is compared with.",
        "Control: the same model with random weights.",
    ),
    arms=(TRAINED, RANDOM),
    measure=measure,
    checks=(
        Check(
            "Layers tell meanings apart better than the embedding, more than with random weights",
            lambda value: value(TRAINED, "gain") - value(RANDOM, "gain"),
            relevant=0.1,
        ),
        Check(
            "The head of a meaning attends more to its cue than that of the other meaning",
            lambda value: value(TRAINED, "weight", OWN) - value(TRAINED, "weight", OTHER),
            relevant=0.05,
        ),
        Check(
            "It also attends more to it than one head for all other words",
            lambda value: value(TRAINED, "weight", OWN) - value(TRAINED, "weight", SHARED),
            relevant=0.05,
        ),
    ),
    panels=(
        Panel("accuracy", "layers read", "meaning: right answers", levels={"chance": 0.5}),
        Panel("weight", "head", "weight on the cue", kind="dots"),
    ),
    small=Size(seeds=1, minutes=0.5, model="minilm", words=8),
    large=Size(seeds=1, minutes=1, model="smollm2", words=8),
    unit="meaning",
    remark="Whether each meaning has its own head is an intuition of the lecture: at the small "
    "size (MiniLM) one head chosen on other words gives the cue a weight of 0.20, its own 0.24.",
    next_steps=(
        "qkv look minilm 'We sat on the bank and watched the river flow' --view heads",
        "qkv lab senses --set model=smollm2: only cues that come before the word count then",
    ),
)
