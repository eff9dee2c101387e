"""Translate, fill and classify: each shows the numbers of the API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.browser_fixtures import Open
from support.playground_page import alike, answered, bodies, link, settings_where, shown_as
from support.small_task_models import ASKED

TEXT = "cats chase mice"


def test_translations_with_their_alignment(visit: Open, server: Any) -> None:
    page = visit(link(tab="translate", model="translator", text=TEXT, beams=3, best=2))
    page.click("#panel button:text-is('Translate')")
    page.wait_for_selector(".aligned-word")
    answer = answered(
        server, "/v1/translate", model="translator", text=TEXT, beams=3, n_best=2, alignment=True
    )
    results = answer["translations"][0]
    assert page.locator(".translation").all_inner_texts() == [
        entry["text"] or "∅" for entry in results
    ]
    assert page.locator(".translations .number").all_inner_texts() == [
        f"{entry['score']:.2f}" for entry in results
    ]
    aligned = answer["alignment"][0]
    assert page.locator(".aligned.source .word").all_inner_texts() == aligned["source"]
    assert page.locator(".aligned.target .word").all_inner_texts() == aligned["target"]
    strong = {
        (to, at)
        for to, row in enumerate(aligned["weights"])
        for at, weight in enumerate(row)
        if weight >= 0.05
    }
    drawn = page.eval_on_selector_all(
        ".alignment-lines path", "all => all.map(node => [node.dataset.to, node.dataset.from])"
    )
    assert {(int(to), int(at)) for to, at in drawn} == strong
    page.locator(".aligned.target .aligned-word").first.focus()
    row = aligned["weights"][0]
    best = max(range(len(row)), key=row.__getitem__)
    text = page.inner_text(".alignment .status")
    assert text.startswith(f"“{aligned['target'][0]}” attends to “{aligned['source'][best]}” ")
    assert alike([text.split("” ")[2].split(",")[0]], [row[best]])
    visible = page.eval_on_selector_all(
        ".alignment-lines path:not(.faint)", "all => all.map(node => node.dataset.to)"
    )
    assert set(visible) == {"0"}
    page.click("text=As a matrix")
    page.wait_for_function(  # it is drawn by an event after the click
        "() => document.querySelector('.alignment canvas.cells').getBoundingClientRect().width > 50"
    )


def test_predictions_for_masks_and_one_inserted(visit: Open, server: Any) -> None:
    masked = "the [mask] sat on the [mask]"
    page = visit(link(tab="fill", model="bert", masked=masked))
    page.click("button:text-is('Predict')")
    page.wait_for_selector(".masks .option")
    answer = answered(server, "/v1/fill", model="bert", text=masked, top=5)
    flat = [guess for mask in answer["masks"] for guess in mask]
    assert page.locator(".masks .option .word").all_inner_texts() == shown_as(
        page, [entry["text"] for entry in flat]
    )
    assert alike(
        page.locator(".masks .option .number").all_inner_texts(),
        [entry["probability"] for entry in flat],
    )
    bars = page.locator(".masks .options").first.evaluate(
        "list => [...list.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().left)"
    )
    assert len(bars) == 6  # five predictions, and the others
    assert max(bars) - min(bars) < 0.5
    assert page.locator(".hole").all_inner_texts() == ["mask 1", "mask 2"]
    requests = bodies(page, "/v1/fill")
    page.locator(".masks > :nth-child(2) .option").nth(1).click()
    put = f"the [mask] sat on the {answer['masks'][1][1]['text'].strip()}"
    page.wait_for_function("() => document.querySelectorAll('.masks > div').length === 1")
    assert page.input_value("#masked") == put == requests[0]["text"]
    settings_where(page, lambda chosen: chosen.get("masked", "") == put)
    page.locator(".masks .option").first.click()
    page.wait_for_selector("text=Every mask is filled.")
    page.click("button:text-is('Undo')")
    page.wait_for_selector(".masks .option")
    assert page.input_value("#masked") == put
    page.focus("#masked")
    page.keyboard.press("End")
    page.click("text=Insert [mask]")
    assert page.input_value("#masked") == f"{put}[mask]"


def test_the_predictions_of_a_fine_tuned_model_for_each_task(visit: Open, server: Any) -> None:
    page = visit(link(tab="classify"))
    for task in ("classify", "pair", "choice", "tag", "regress"):
        model = "tuned" if task == "classify" else task
        texts = [" ".join(ASKED["tag"][0])] if task == "tag" else list(ASKED[task][0])
        page.evaluate(
            "hash => location.hash = hash",
            link(tab="classify", model=model, said=json.dumps(texts)),
        )
        page.wait_for_function(
            "([model, text]) => document.querySelector('#model').value === model"
            " && document.querySelector('#text-0')?.value === text",
            arg=[model, texts[0]],
        )
        with page.expect_response("**/v1/classify"):
            page.click("#panel button:text-is('Classify')")
        page.wait_for_selector("section[aria-label=Answer]:not(.stale) h2")
        input_texts = texts[0] if len(texts) == 1 else texts
        check_answer(
            page,
            task,
            texts,
            answered(server, "/v1/classify", model=model, texts=[input_texts], explain=True)[
                "answers"
            ][0],
        )


def check_answer(page: Any, task: str, texts: list[str], answer: dict[str, Any]) -> None:
    numbers = page.locator("section[aria-label=Answer] .number").all_inner_texts()
    heading = page.inner_text("section[aria-label=Answer] h2")
    if task == "regress":
        assert heading == f"Predicted value: {answer['number']:.3f}"
    elif task == "tag":
        assert page.locator(".tagged").all_inner_texts() == list(ASKED["tag"][0])
        assert page.locator(".tags .tag").all_inner_texts() == [tag for _, tag, _ in answer["tags"]]
        assert alike(numbers, [likely for _, _, likely in answer["tags"]])
    elif task == "choice":
        assert heading.startswith(f"Predicted choice: {texts[1 + answer['choice']]}, ")
        assert alike(numbers, answer["scores"])
        page.click("text=Add a choice")
        assert page.locator(".texts textarea").count() == len(texts) + 1
    else:
        assert heading.startswith(f"Predicted class: {answer['label']}, ")
        assert alike(numbers, sorted(answer["scores"].values(), reverse=True))
        assert page.locator("section[aria-label=Answer] .bars li").count() == 3
    check_explanation(page, answer["explanation"])


def check_explanation(page: Any, explanation: dict[str, Any]) -> None:
    """The tinted text, the table and the list have the numbers of the API, which sum to 100%."""
    shares = explanation["shares"][0]
    values = explanation["contributions"][0]
    assert sum(shares) == pytest.approx(1)
    nodes = page.locator(".explanation .signed-token[data-position]")
    assert nodes.count() == len(shares)
    kinds = nodes.evaluate_all("all => all.map(node => node.classList.contains('less'))")
    assert kinds == [value < 0 for value in values]
    cells = page.locator(".explanation tbody td:nth-child(2)").all_text_contents()
    assert alike(cells, shares)
    listed = page.locator(".explanation .bars .number").all_text_contents()
    sorted_shares = sorted(shares, reverse=True)
    expected = sorted_shares[:8]
    if len(shares) > 8:
        expected = [*expected, sum(sorted_shares[8:])]
    assert alike([text.removeprefix("− ") for text in listed], expected)
