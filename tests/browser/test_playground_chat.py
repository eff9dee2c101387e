"""Chat: streamed answers with alternatives, branches that an edit keeps, undo, and the template."""

from __future__ import annotations

import json
from typing import Any

from support.browser_fixtures import Open
from support.playground_page import answered, bodies, link, settings_where, shown_as

ANSWER = ".turn:not(.own)"
READY = "button:text-is('Regenerate'):enabled"
HOW = {"model": "chat", "temperature": 0, "top_p": 0.95, "seed": 5, "tokens": True}


def answer_text(page: Any) -> str:
    return "".join(page.locator(f"{ANSWER} .token").all_text_contents())


def place(page: Any, turn: str) -> str:
    return str(page.inner_text(f"{turn} .branch-place"))


def reply(server: Any, messages: list[dict[str, str]], **how: Any) -> Any:
    """The API's answer."""
    body = {**HOW, "messages": messages, "max_tokens": 8, "top_logprobs": 10, **how}
    return answered(server, "/v1/chat/completions", **body)["choices"][0]


def start(visit: Open) -> Any:
    page = visit(
        link(tab="chat", model="chat", max_tokens=8, seed=5, temperature=0, system="be brief")
    )
    page.fill("#say", "hello")
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    return page


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


def test_an_answer_branches_from_a_token_goes_on_and_is_kept(visit: Open, server: Any) -> None:
    page = start(visit)
    requests = bodies(page, "/v1/chat/completions")
    choice = reply(server, MESSAGES)
    text = choice["message"]["content"]
    first = choice["tokens"]
    assert answer_text(page) == shown_as(page, [text])[0]
    conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": text}]
    settings_where(page, lambda chosen: json.loads(chosen.get("talk", "[]")) == conversation)

    # Another token in the place of the second one: a branch
    others = [item for item in first[1]["alternatives"] if item["text"] and item != first[1]]
    other = next(item for item in others if item["id"] != first[1]["id"])
    page.locator(f"{ANSWER} .token").nth(1).click()
    page.click(f".card .option[data-id='{other['id']}']")
    page.wait_for_selector(f"{ANSWER} .branch-place")
    ids = [first[0]["id"], other["id"]]
    assert requests[-1]["answer_ids"] == ids
    branched = reply(server, MESSAGES, answer_ids=ids)["tokens"]
    shown = [first[0]["text"], other["text"], *(token["text"] for token in branched)]
    assert answer_text(page) == shown_as(page, ["".join(shown)])[0]
    assert page.locator(f"{ANSWER} .token.chosen").count() == 1
    assert place(page, ANSWER) == "2/2"

    # Back to the first branch, which goes on
    page.click("[aria-label='Previous branch']")
    assert place(page, ANSWER) == "1/2"
    assert answer_text(page) == shown_as(page, [text])[0]
    page.click("button:text-is('Continue')")
    page.wait_for_selector(READY)
    assert requests[-1]["answer_ids"] == [token["id"] for token in first if token["text"]]
    longer = answer_text(page)
    assert longer.startswith(shown_as(page, [text])[0])
    assert len(longer) > len(text)
    page.click("button:text-is('Undo')")
    assert answer_text(page) == shown_as(page, [text])[0]

    # A reload keeps tokens and branches
    settings_where(page, lambda chosen: json.loads(chosen["talk"])[1]["content"] == text)
    page.reload()
    page.wait_for_selector(f"{ANSWER} .tokens.picking")
    assert place(page, ANSWER) == "1/2"
    assert page.locator(f"{ANSWER} .token").count() == len(first)
    page.click("[aria-label='Next branch']")
    assert answer_text(page) == shown_as(page, ["".join(shown)])[0]
    page.locator(f"{ANSWER} .token").nth(1).click()
    page.wait_for_selector(".card .option")


def test_an_edit_keeps_the_old_branch(visit: Open, server: Any) -> None:
    page = start(visit)
    requests = bodies(page, "/v1/chat/completions")
    text = answer_text(page)
    page.click("button:text-is('Edit')")
    assert page.input_value("#say") == "hello"
    assert page.locator(".turn.later").count() == 2  # nothing is removed
    page.fill("#say", "hello again")
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    assert requests[-1]["messages"][1:] == [{"role": "user", "content": "hello again"}]
    assert place(page, ".turn.own") == "2/2"
    assert page.locator(".turn").count() == 2
    page.click(".turn.own [aria-label='Previous branch']")
    assert page.inner_text(".turn.own .tokens") == "hello"
    assert answer_text(page) == text
    assert page.evaluate("document.activeElement.ariaLabel") == "Next branch"

    page.click("button:text-is('Regenerate')")
    page.wait_for_function("() => document.querySelector('#seed').value !== '5'")
    page.wait_for_selector(READY)
    assert requests[-1]["messages"] == MESSAGES
    assert requests[-1]["seed"] != 5
    assert place(page, ANSWER) == "2/2"
    settings_where(page, lambda chosen: len(json.loads(chosen.get("talk", "[]"))) == 2)
    other_tab = visit(page.evaluate("location.hash"))
    assert other_tab.locator(".turn").count() == 2

    # What the model reads
    page.click("summary:text-is('What the model reads')")
    page.wait_for_selector(".special-token")
    tokens = answered(server, "/v1/tokenize", model="chat", messages=MESSAGES)["tokens"]
    marked = [token["token"] for token in tokens if token["special"]]
    assert page.locator(".special-token").all_text_contents() == marked
    assert "hello" in page.inner_text(".template-text")
    page.fill("#say", "mice")
    page.wait_for_function(
        "() => document.querySelector('.template-text').textContent.includes('mice')"
    )

    page.click("button:text-is('New conversation')")
    page.wait_for_selector("text=Type a message to start a conversation.")
    page.click("button:text-is('Undo')")
    assert page.locator(".turn").count() == 2
