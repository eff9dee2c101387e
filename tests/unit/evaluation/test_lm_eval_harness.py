"""The lm-evaluation-harness finds the model by name and agrees with `qkv evaluate`."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows

from qkv.evaluation.evaluate import Subject, evaluate
from qkv.evaluation.lm_eval_harness import Harness, generation_options
from qkv.evaluation.perplexity import windows
from qkv.evaluation.task_file import read_task
from qkv.generation.text import complete
from support.shape_checks import unchecked
from support.small_evaluation import TEXT, small_folder

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "LMEVAL_LOG_LEVEL": "WARNING",
}

TWO_LINES = """import lm_eval.__main__, qkv.evaluation.lm_eval_harness
lm_eval.__main__.cli_evaluate()
"""
MODULE = "qkv.evaluation.lm_eval_harness"

# The harness's own lambada_openai but for where the data is.
LAMBADA = """
task: lambada_here
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("model") / "gpt", context=64)


@pytest.fixture(scope="module")
def harness(folder: Path) -> Harness:
    return Harness(path=str(folder), device="cpu", batch_size=1)


@pytest.fixture(scope="module")
def without_its_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the harness but for its 14,000 files of tasks, which take long to read."""
    folder = tmp_path_factory.mktemp("harness")
    tasks = folder / "lm_eval" / "tasks"
    tasks.mkdir(parents=True)
    original = Path(lm_eval.__file__).parent
    code = [path for path in original.iterdir() if path.name != "tasks"]
    for path in [*code, *original.glob("tasks/*.py")]:
        (folder / "lm_eval" / path.relative_to(original)).symlink_to(path)

    return folder


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, args, number) for number, args in enumerate(arguments)]


@pytest.mark.parametrize("start", [["-m", MODULE], ["-c", TWO_LINES]], ids=["module", "lines"])
def test_the_command_line_of_the_harness_gives_the_score_of_qkv_evaluate(
    start: list[str], folder: Path, without_its_tasks: Path, tmp_path: Path
) -> None:
    """In a separate process, offline: the harness's own command knows qkv in both ways."""
    data = read_task("last-word").beside("last-word.jsonl")
    rows = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()]
    # Some texts are longer than the context, and some last words are predicted correctly.
    short = tmp_path / "data.jsonl"
    texts = [" ".join(text.split()[-(4 + number) :]) for number, text in enumerate(rows)]
    texts += ["the cat sat", "the cat sat on", "the cat sat on the", "the cat sat on the mat."]
    short.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "lambada_here.yaml").write_text(LAMBADA.format(data=short))
    command = [sys.executable, *start, "--model", "qkv", "--model_args", f"path={folder}"]
    command += ["--tasks", "lambada_here", "--include_path", str(tmp_path / "tasks")]
    command += ["--output_path", str(tmp_path / "out")]
    environment = (
        os.environ | OFFLINE | {"HF_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    )
    paths = [str(without_its_tasks), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    process = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert process.returncode == 0, process.stderr
    (written,) = (tmp_path / "out").rglob("results_*.json")
    theirs = json.loads(written.read_text())["results"]["lambada_here"]
    model = Harness(path=str(folder), device="cpu")
    ours = evaluate(
        read_task("lambada"), Subject("gpt", model.model, model.tokenizer), [str(short)]
    )
    accuracy, perplexity = ours.scores
    assert theirs["acc,none"] == accuracy.value
    assert 0 < accuracy.value < 1
    assert theirs["perplexity,none"] == pytest.approx(perplexity.value, rel=1e-6)
    assert ours.facts["cut"] > 0
    assert (
        f"{ours.facts['cut']} of 24 contexts were cut from the left to 64 tokens" in process.stderr
    )


def test_whole_texts_are_predicted_in_the_harness_windows(harness: Harness) -> None:
    text = TEXT[:250]
    assert harness.tokenizer.end is not None
    ids = harness.tokenizer.encode(text)
    theirs = list(get_rolling_token_windows(ids, harness.tokenizer.end, 64, 1))
    ours = windows([harness.tokenizer.end, *ids], 64, 64)
    assert len(ours) > 1
    for (read, predicted), request in zip(theirs, ours, strict=True):
        assert [*request.context, *request.continuation[:-1]] == read
        assert list(request.continuation) == predicted
    (total,) = harness.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)))
    results = harness.score(ours)
    assert total == pytest.approx(math.fsum(result.log_likelihood for result in results))


def test_likelihoods_come_in_the_order_of_the_requests(harness: Harness) -> None:
    pairs = [("the cat", " sat"), ("", "a dog"), ("the cat", " ran to the man"), ("who", "?")]
    results = harness.loglikelihood(instances("loglikelihood", *pairs))
    for (total, greedy), pair in zip(results, pairs, strict=True):
        ((alone, alone_greedy),) = harness.loglikelihood(instances("loglikelihood", pair))
        assert total == pytest.approx(alone, abs=1e-4)
        assert greedy == alone_greedy
    assert len({total for total, _ in results}) == 4


def test_texts_are_generated_up_to_a_stop_string(harness: Harness) -> None:
    stops = {"until": ["t", "\n"], "max_gen_toks": 12}
    free = {"until": [], "max_gen_toks": 12}
    requests = [("the cat", stops), ("a dog ran to", free), ("who sat on the mat? " * 9, free)]
    first, second, third = harness.generate_until(instances("generate_until", *requests))
    assert "t" not in first
    greedy = {"length": 12, "temperature": 0.0}
    assert [second] == complete(harness.model, harness.tokenizer, ["a dog ran to"], **greedy)
    cut = harness.tokenizer.encode("who sat on the mat? " * 9)[-(64 - 12) :]
    assert [third] == complete(harness.model, harness.tokenizer, [cut], **greedy)


def test_a_long_answer_leaves_half_of_the_context_to_the_question(harness: Harness) -> None:
    """The default answer of 256 tokens is longer than the whole context of 64."""
    question = "who sat on the mat? " * 9
    (answer,) = harness.generate_until(instances("generate_until", (question, {"until": []})))
    prompt = harness.tokenizer.encode(question)[-32:]
    with unchecked():
        assert [answer] == complete(
            harness.model, harness.tokenizer, [prompt], length=256, temperature=0.0
        )
        (other,) = complete(
            harness.model, harness.tokenizer, [prompt[-1:]], length=256, temperature=0.0
        )
    assert answer != other


def test_an_empty_stop_string_is_ignored(harness: Harness) -> None:
    assert generation_options({"until": ["", "\n"]})["stop"] == ["\n"]
    assert generation_options({"until": ""})["stop"] == []
    empty, none = ((("the cat", {"until": until, "max_gen_toks": 5}),) for until in ([""], []))
    first = harness.generate_until(instances("generate_until", *empty))
    assert first == harness.generate_until(instances("generate_until", *none))
    assert first != [""]


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_arguments_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^model_args: .*not pretrained$"):
        Harness(path=str(folder), pretrained="x")
    with pytest.raises(ValueError, match=r"^dtype: expected float32 or bfloat16, not int3$"):
        Harness(path=str(folder), dtype="int3")
