"""Examples in the prompt: does a model learn a task from them, without any training?"""

from __future__ import annotations

import statistics
from random import Random

from qkv.data.embedded.word_pairs import WORD_LISTS, word_pairs
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.inside.marked_words import pretrained
from qkv.lab.experiments.inside.prompt_answers import TASKS, prompt, right_answers

RIGHT = "right answers"
WRONG = "answers of other questions"


def measure(cell: Cell) -> Measured:
    """Ask the same questions after 0, 1, 2, 4 ... examples; the seed draws both."""
    size = cell.size
    subject = pretrained(size.model, cell.device)
    shots = [0, *(2**power for power in range(size.most.bit_length()))]
    accuracy: dict[str, dict[int, float]] = {}
    for name in WORD_LISTS:
        pairs = word_pairs(name)
        if name == "capitals":
            pairs = [(country.title(), city.title()) for country, city in pairs]
        Random(cell.seed).shuffle(pairs)
        examples = pairs[: size.most]
        questions = pairs[size.most :][: size.words]
        if cell.arm == WRONG:
            answers = [answer for _, answer in [*examples[1:], examples[0]]]
            examples = [(pair[0], answer) for pair, answer in zip(examples, answers, strict=True)]

        accuracy[name] = {}
        for count in shots:
            right, _ = right_answers(subject, prompt(TASKS[name], examples[:count]), questions)
            accuracy[name][count] = statistics.fmean(right)

    gains = [by_count[shots[-1]] - by_count[0] for by_count in accuracy.values()]
    return {**accuracy, "gain": statistics.fmean(gains)}


EXPERIMENT = Experiment(
    name="shots",
    claim="A few examples in the prompt teach a model a task without any update of its weights.",
    slides=("000 L153", "000 L162", "000 L172", "000 L174"),
    setup=(
        "Four lists of words: antonyms, plurals, capitals, and French words as on the slide.",
        "The prompt: a description, then 0 to 16 examples, as 'sea otter => loutre de mer'.",
        "An answer is right if greedy decoding gives it word for word and then ends the line.",
        "Control: the same examples, each with the answer of another one.",
        "Each seed draws its own examples and questions; the model is SmolLM2 with 135 M weights.",
    ),
    arms=(RIGHT, WRONG),
    measure=measure,
    checks=(
        Check(
            "With 16 examples more answers are right than with none, on average over the lists",
            lambda value: value(RIGHT, "gain"),
            relevant=0.1,
        ),
        Check(
            "It is their answers that teach: with answers of other questions less is gained",
            lambda value: value(RIGHT, "gain") - value(WRONG, "gain"),
            relevant=0.1,
        ),
    ),
    panels=tuple(Panel(name, "examples", "right answers", name) for name in WORD_LISTS),
    small=Size(seeds=5, minutes=1.7, model="smollm2", words=12, most=16),
    large=Size(seeds=10, minutes=2, model="smollm2", words=40, most=16),
    remark="One model, and lists of 60 to 120 words: the intervals tell how much the draw of "
    "examples and questions matters, not how models differ. Without examples the model has not "
    "seen the form of an answer either, so part of the gain may be the form: compare 0 with 1. "
    "At the small size capitals rise from 0 to 0.7 even with answers of other questions, and "
    "French stays near 0.1; wrong answers ruin antonyms (0.1 instead of 0.6).",
    next_steps=(
        "qkv evaluate smollm2 --task french-slide: the slide's own examples, too hard for it",
        "qkv lab shots --set words=40: narrower intervals",
        "Why do wrong answers hurt antonyms and hardly plurals? Look at what is generated.",
    ),
)
