"""The effect of heads and of steering: the panel shows the numbers of the API."""

from __future__ import annotations

import json
import math
from typing import Any

from support.browser_fixtures import Open
from support.playground_page import alike, answered, bodies, link, settings_where, shown_as

PROMPT = "the cat sat on the mat"
STEER = {"from": "the cat sat", "to": "mice ran", "layer": 1, "strength": 1.5}


def shown_for(page: Any, part: str) -> None:
    """Wait until the panel shows the response to a request that contains a text."""
    page.wait_for_function(
        "part => document.querySelector('.effect').dataset.shown?.includes(part)", arg=part
    )


def check_panel(page: Any, answer: dict[str, Any]) -> None:
    before = page.locator(".effect .bars .raw").all_text_contents()
    after = page.locator(".effect .bars .number").all_text_contents()
    shown = answer["next"][:12]
    others = [answer["rest"][0], answer["rest"][1]]
    for token in answer["next"][12:]:
        others = [others[0] + token["before"], others[1] + token["after"]]
    assert alike(before, [*(token["before"] for token in shown), others[0]])
    assert alike(after, [*(token["after"] for token in shown), others[1]])
    tokens = answer["tokens"]
    nodes = page.locator(".effect .signed-token[data-position]")
    assert nodes.all_text_contents() == shown_as(page, [token["text"] for token in tokens])
    changes = [token["after"] - token["before"] for token in tokens[1:]]
    less = nodes.evaluate_all("all => all.map(node => node.classList.contains('less'))")
    assert less == [False, *(change < 0 for change in changes)]
    cells = page.locator(".effect tbody td:nth-child(4)").all_text_contents()[1:]
    read = [float(cell.removesuffix(" nats").replace("−", "-")) for cell in cells]
    assert all(abs(one - other) < 0.0051 for one, other in zip(read, changes, strict=True))
    before = page.locator(".effect tbody td:nth-child(2)").all_text_contents()[1:]
    assert alike(before, [math.exp(token["before"]) for token in tokens[1:]])
    assert f"{answer['kl']:.3f} nats" in page.inner_text(".effect-summary")


def test_heads_at_a_strength_and_steering(visit: Open, server: Any) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, think=1, off="0.1 1.0"))
    requests = bodies(page, "/v1/effects")
    shown_for(page, '"strength":0')
    body: dict[str, Any] = {"model": "gpt", "text": PROMPT, "heads": ["0.1", "1.0"]}
    check_panel(page, answered(server, "/v1/effects", **body))
    page.wait_for_selector(".sides h3:text-is('With all heads')")

    page.locator("#head-strength").fill("0.5")
    shown_for(page, '"strength":0.5')
    check_panel(page, answered(server, "/v1/effects", **body, strength=0.5))
    page.wait_for_selector(".sides h3:text-is('Continued with the change')")

    # Steering in addition, with both texts
    page.click("summary:text-is('Steering')")
    page.fill("#steer-from", STEER["from"])
    page.fill("#steer-to", STEER["to"])
    page.fill("#steer-layer", "1")
    page.locator("#steer-strength").fill("1.5")
    shown_for(page, json.dumps(STEER, separators=(",", ":")))
    changed = {**body, "strength": 0.5, "steering": STEER, "length": 24}
    answer = answered(server, "/v1/effects", **changed)
    check_panel(page, answer)
    for side, name in enumerate(("before", "after")):
        texts = [token["text"] for token in answer["texts"][name]]
        nodes = page.locator(".sides .sheet").nth(side).locator(".token")
        assert nodes.all_text_contents() == shown_as(page, texts)

    # Keyboard: the arrow keys tell the numbers of a token
    page.locator(".effect .signed-token[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert "nats" in page.inner_text(".effect .signed-status")
    settings_where(page, lambda chosen: json.loads(chosen.get("steer", "{}")) == STEER)
    page.click("button:text-is('No steering')")
    page.click("text=Switch all on")
    page.wait_for_selector(".effect", state="hidden")
    assert all(len(request["text"]) for request in requests)
