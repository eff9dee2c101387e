"""States of the playground: loading, failed, full, slow, locked and lost servers; hostile texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.browser_fixtures import Open
from support.made_looks import HOSTILE
from support.playground_page import (
    bodies,
    copied,
    eventually,
    generate,
    link,
    painted,
    tokens,
    written,
)

PROMPT = "the cat sat on"
TABS = ("look", "write", "chat", "translate", "fill", "classify")
TAGS = "<img src=x onerror=hacked=1><b>"
MARKUP = "<img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script><b>bold</b>"


def refusing(path: str, status: int, message: str, times: int = 1, after: str | None = None) -> Any:
    """The server refuses `path` this many times, then responds."""
    left = [times]

    def answer(route: Any) -> None:
        if left[0] == 0:
            route.fallback()
            return
        left[0] -= 1
        error = {"error": {"message": message, "type": "x", "param": None, "code": None}}
        headers = {"Retry-After": after} if after else {}
        route.fulfill(
            status=status, headers=headers, content_type="application/json", body=json.dumps(error)
        )

    return lambda page: page.route(f"**{path}", answer)


def test_a_full_server_is_retried_after_its_delay(visit: Open) -> None:
    full = refusing(
        "/v1/completions", 429, "queue: 64 requests wait already; come again", after="30"
    )

    def timed(page: Any) -> None:
        page.clock.install()  # the test moves the clock
        full(page)

    page = visit(
        link(tab="write", model="gpt", prompt=PROMPT, max_tokens=5), refused=True, route=timed
    )
    page.click("button:text-is('Generate')")
    alert = page.locator(".result [role=alert]")
    alert.wait_for()
    assert "queue: 64 requests wait already; come again" in alert.inner_text()
    page.wait_for_selector("button:text-matches('Try again .automatically in (30|2.) s.')")
    page.clock.run_for(30_000)
    page.wait_for_function(
        "() => document.querySelectorAll('.result .tokens .token:not(.given)').length === 5"
    )
    written(page)
    assert alert.count() == 0


def test_invalid_requests_show_the_server_s_message(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt", prompt="cat " * 200), refused=True)
    page.click("button:text-is('Generate')")
    alert = page.locator(".result [role=alert]")
    alert.wait_for()
    assert "prompt: " in alert.inner_text()
    page.locator("button:text-is('Generate')").wait_for()  # it is no longer busy
    page = visit(link(tab="fill", model="bert", masked="no mask here"), refused=True)
    page.click("button:text-is('Predict')")
    page.wait_for_selector("[role=alert]:has-text('write [mask] where a word is missing')")


def test_stopped(visit: Open, server: Any) -> None:
    page = visit(link(tab="write", model="gpt", prompt="the", max_tokens=20, temperature=0))
    page.route("**/v1/completions", lambda route: None)  # a slow model
    page.click("button:text-is('Generate')")
    page.wait_for_selector("text=Running the model …")
    assert page.get_attribute(".result .tokens", "aria-busy") == "true"
    assert page.evaluate("document.activeElement.textContent") == "Stop"
    page.keyboard.press("Enter")
    written(page)
    assert page.inner_text(".result .state") == "0 tokens. Stopped."
    assert page.locator(".result .notice").count() == 0
    assert page.evaluate("document.activeElement.textContent") == "Generate"
    page.unroute("**/v1/completions")
    generate(page)
    assert len(tokens(page)) == 20


def test_a_loading_model_becomes_available_and_text_can_be_written_meanwhile(
    visit: Open,
) -> None:
    loaded = []

    def loading(page: Any) -> None:
        def models(route: Any) -> None:
            answer = route.fetch().json()
            for entry in answer["data"]:
                if entry["id"] == "gpt" and not loaded:
                    entry["qkv"] |= {"state": "loading", "can": [], "layers": None}
            route.fulfill(json=answer)

        def health(route: Any) -> None:
            answer = route.fetch().json()
            if not loaded:
                answer["models"]["gpt"]["state"] = "loading"
            route.fulfill(json=answer)

        page.route("**/v1/models", models)
        page.route("**/health", health)

    page = visit(link(tab="write", model="gpt"), route=loading, state="waiting")
    page.wait_for_selector("text=gpt is loading.")
    assert page.locator("button:text-is('Generate')").is_disabled()
    page.fill("#prompt", PROMPT)
    loaded.append(True)
    page.wait_for_selector("#playground[data-state=ready]")
    assert page.input_value("#prompt") == PROMPT
    assert page.locator(".gate").inner_text() == ""
    generate(page)


def test_a_failed_model_a_missing_model_and_a_locked_server(visit: Open) -> None:
    def failed(page: Any) -> None:
        def models(route: Any) -> None:
            answer = route.fetch().json()
            answer["data"] = [
                entry for entry in answer["data"] if entry["id"] in ("gpt", "bert", "long")
            ]
            by_name = {entry["id"]: entry["qkv"] for entry in answer["data"]}
            by_name["gpt"] |= {"state": "failed", "can": []}
            by_name["bert"]["can"] = ["embed", "attention", "tokenize"]
            route.fulfill(json=answer)

        page.route("**/v1/models", models)
        page.route(
            "**/health",
            lambda route: route.fulfill(
                json={"models": {"gpt": {"state": "failed", "error": "no such folder"}}}
            ),
        )

    page = visit(link(tab="write", model="gpt"), route=failed)
    page.wait_for_selector(
        "[role=alert]:has-text('gpt could not be loaded.'):has-text('no such folder')"
    )
    assert page.locator("#model option").all_inner_texts() == [
        "long"
    ]  # a failed model is not offered
    page.click("#tab-fill")
    page.wait_for_selector("text=No model of this server fills masks.")
    why = "bert cannot fill masks: it only embeds texts. See its attention in the Look tab."
    assert page.inner_text(".gate > .note") == why

    def none(page: Any) -> None:
        page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": []}))

    page = visit(link(tab="translate"), route=none, state="waiting")
    page.wait_for_selector("text=No model of this server translates.")
    assert "qkv serve runs/translator" in page.inner_text(".commands")
    assert not page.locator("#panel").is_visible()
    page = visit(
        route=refusing("/v1/models", 401, "key: expected one", times=9),
        refused=True,
        state="waiting",
    )
    assert page.locator("a:text-is('Sign in')").get_attribute("href") == "/"
    assert "This server needs a key: sign in." in page.inner_text(".gate")


def test_a_server_that_is_gone_comes_back_and_nothing_is_lost(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, max_tokens=4, think=1), refused=True)
    requests = bodies(page, "/v1/attention")
    generate(page)
    before = tokens(page)
    page.wait_for_selector("#qkv[data-shown]")

    # The view inside the model has asked for the whole text: it must not be the first that fails.
    count = page.locator(".result .tokens .token").count()
    eventually(
        page,
        lambda: [len(body["text"]) for body in requests if isinstance(body["text"], list)],
        lambda lengths: lengths[-1:] == [count],
    )
    for path in ("**/v1/**", "**/health"):
        page.route(path, lambda route: route.abort())
    page.click("button:text-is('Continue')")
    page.wait_for_selector(".gate [role=alert]:has-text('The server does not respond.')")
    page.wait_for_selector(".result button:text-is('Try again')")
    assert tokens(page) == before
    for path in ("**/v1/**", "**/health"):
        page.unroute(path)
    page.wait_for_selector("#playground[data-state=ready]")
    assert page.locator(".gate").inner_text() == ""
    assert page.locator("[role=alert]").count() == 0  # no notice is left
    page.click("button:text-is('Continue')")
    page.wait_for_function(
        "() => document.querySelectorAll('.result .tokens .token:not(.given)').length === 8"
    )
    assert tokens(page)[:4] == before


@pytest.mark.parametrize("width", [1280, 360])
def test_markup_is_text_and_no_tab_is_wider_than_the_window(visit: Open, width: int) -> None:
    texts = json.dumps([MARKUP, MARKUP])
    messages = json.dumps(
        [{"role": "user", "content": MARKUP}, {"role": "assistant", "content": MARKUP + "x" * 500}]
    )
    odd = "".join(entry for entry in HOSTILE if "\ud800" not in entry and len(entry) < 100)
    written = {
        "text": MARKUP,
        "masked": MARKUP,
        "said": texts,
        "talk": messages,
        "system": MARKUP,
        "think": 1,
    }
    page = visit(
        link(tab="write", prompt=TAGS, model="gpt", max_tokens=3, **written),
        width=width,
        refused=True,
    )
    generate(page)
    assert "".join(tokens(page, ".result .tokens .token.given")) == TAGS
    page.fill("#prompt", odd)
    for tab in TABS:
        page.click(f"#tab-{tab}")
        page.wait_for_selector("#playground[data-state=ready]")
        painted(page)
        assert page.evaluate("window.hacked") is None
        assert page.locator("#playground :is(img, b, script)").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#tab-chat")
    assert page.locator(".turn.own .token").inner_text() == MARKUP
    page.click("#tab-write")
    assert page.input_value("#prompt") == odd


def test_dark_and_light_and_announcements(visit: Open) -> None:
    page = visit(
        link(tab="write", model="gpt", prompt=PROMPT, max_tokens=20, temperature=0), theme="dark"
    )
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(paper) == "rgb(20, 22, 27)"
    page.click("[aria-label='Light theme']")
    assert page.evaluate(paper) == "rgb(247, 247, 245)"
    page.evaluate(
        """() => {
          const status = document.querySelector("[role=status].unseen");
          window.announced = [];
          const record = () => window.announced.push(status.textContent);
          new MutationObserver(record).observe(status, { childList: true });
        }"""
    )
    generate(page)
    announced = page.evaluate("window.announced")
    assert len(announced) == 2  # the start and the result, but not every token
    assert announced[0] == "Generating …"
    assert announced[1].startswith("20 tokens. Maximum number of tokens reached.")
    unnamed = """all => all
      .filter(node => !node.labels?.length && !node.ariaLabel && !node.textContent.trim())
      .length"""
    assert (
        page.eval_on_selector_all("#playground :is(input, textarea, select, button)", unnamed) == 0
    )
    assert page.locator("[role=tab][aria-selected=true]").count() == 1
    page.focus("#tab-write")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-chat"
    assert page.get_attribute("#panel", "aria-labelledby") == "tab-chat"


def test_the_link_is_copied(visit: Open) -> None:
    page = visit(link(tab="fill", model="bert", masked="the [mask] sat", theme="dark"))
    requests = bodies(page, "/v1/fill")
    other = visit(copied(page))
    assert other.input_value("#masked") == "the [mask] sat"
    assert other.evaluate("document.documentElement.dataset.theme") == "dark"
    assert requests == []
    assert other.locator(".masks").is_hidden()
    page.click("button:text-is('Predict')")
    page.wait_for_selector(".masks .option")
    again = visit(copied(page))  # with a result: it is requested again
    again.wait_for_selector(".masks .option")
    assert again.locator(".masks").inner_text() == page.locator(".masks").inner_text()
