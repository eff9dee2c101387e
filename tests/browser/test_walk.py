"""Walk one head: the numbers on the page are those of the forward pass, in every family."""

from __future__ import annotations

import base64
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.look import Look, look
from qkv.insight.render.script_bundle import bundle
from qkv.insight.walk.head_walk import HeadWalk
from qkv.models.sites import attention_sites
from qkv.nn.hooks import capture
from qkv.nn.position import rotary_angles, rotate
from qkv.text import train
from support.browser_fixtures import Open
from support.families import bert, gpt, rnn, transformer
from support.look_page import settled, state, status
from support.playground_page import answered, bodies, link
from support.readings import reading

TOKENIZER = train("words", ["a b c d e f g h i"], 13)
IDS = [4, 9, 2, 11, 4, 7]
SOURCE = [3, 8, 5, 10, 6]
ROWS = """() => [...document.querySelectorAll('.walk-table tbody tr')].map(({ dataset }) =>
  Object.fromEntries(Object.entries(dataset).map(([name, value]) => [name, String(value)])))"""
COLUMN = "cells => cells.map(cell => Number(cell.dataset.value))"
MATH = f"""async ([name, values]) => {{
  {bundle("walk_math.js")}
  const result = qkv_walk_math[name](...values);
  return typeof result === "number" ? result : [...result];
}}"""
LATEST = f"""async () => {{
  {bundle("walk_server.js")}
  const [asked, told] = [[], []];
  let [now, most] = [0, 0];
  const source = {{
    async rewalk(name, edits) {{
      asked.push(edits.divisor);
      most = Math.max(most, ++now);
      await new Promise((resume) => setTimeout(resume));
      now--;
      return {{ walk: {{}}, next: edits.divisor }};
    }},
  }};
  const recomputed = new qkv_walk_server.Recomputed(() => told.push(recomputed.next));
  const edits = {{ lifted: false, swapped: [], moved: {{}}, weights: {{}} }};
  for (const divisor of [1, 2, 3, 4]) {{
    recomputed.ask(source, "walk.self.0.0", {{ ...edits, divisor }}, 0);
  }}
  while (recomputed.asking) await new Promise((resume) => setTimeout(resume));
  return {{ asked, most, told, next: recomputed.next }};
}}"""
ATOL = 1e-5


class Family(NamedTuple):
    model: Any
    kind: str


FAMILIES = {
    "rotary, grouped heads": Family(lambda: gpt(position="rotary", kv_heads=2), "self"),
    "learned, window": Family(lambda: gpt(position="learned", window=3), "self"),
    "alibi": Family(lambda: gpt(position="alibi"), "self"),
    "relative": Family(lambda: gpt(position="relative"), "self"),
    "bert": Family(bert, "self"),
    "decoder": Family(transformer, "decoder"),
    "cross": Family(transformer, "cross"),
    "rnn, additive": Family(lambda: rnn(attention="additive"), "cross"),
    "rnn, general": Family(lambda: rnn(attention="general"), "cross"),
}


def look_of(model: Any) -> Look:
    """A look at a few tokens."""
    text = reading(IDS, SOURCE if model.has_source else None)
    return look(model, reading=text, tokenizer=TOKENIZER, name="a small model")


def captured(model: Any, kind: str, layer: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights and output of a head, as the forward pass computes them."""
    ids = torch.tensor([IDS])
    arguments = (torch.tensor([SOURCE]), ids) if model.has_source else (ids,)
    with capture(model, "*") as seen, torch.no_grad():
        model(*arguments)

    site = next(site for site in attention_sites(model) if site.kind == kind)
    if not site.point:  # an RNN attends once for each target token
        scores, weights, output = (seen.every[name] for name in ("scores", "weights", "context"))
        joined = [torch.cat([step.reshape(1, -1) for step in every]) for every in
                  (scores, weights, output)]  # fmt: skip
        return joined[0], joined[1], joined[2]

    at = site.point.format(layer)
    return tuple(seen[f"{at}.{name}"][0, head] for name in ("scores", "weights", "heads"))  # type: ignore[return-value]


def column(page: Any, name: str) -> list[float]:
    """A column of the table number by number."""
    return list(page.eval_on_selector_all(f".by-number td.{name}", COLUMN))


def numbers(text: str | None) -> Tensor:
    return torch.tensor([float(number) for number in (text or "").split()], dtype=torch.float64)


def parsed(value: str) -> float:
    return float(value.replace("Infinity", "inf"))


def shown_rows(page: Any) -> dict[str, Tensor]:
    """The numbers of all rows of the table, by column."""
    rows = page.evaluate(ROWS)
    names = ("sum", "scaled", "score", "weight")
    return {
        name: torch.tensor([parsed(row[name]) for row in rows], dtype=torch.float64)
        for name in names
    }


def close(shown: Any, expected: Tensor) -> None:
    shown = torch.as_tensor(shown, dtype=torch.float64)
    assert_close(shown, expected.double(), rtol=ATOL, atol=ATOL)


def set_range(page: Any, selector: str, value: float) -> None:
    """Move a slider, as a pointer does."""
    page.eval_on_selector(
        selector,
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }",
        value,
    )


# The numbers of every family


@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_are_those_of_the_forward_pass(open_page: Open, family: str) -> None:
    torch.manual_seed(0)
    make, kind = FAMILIES[family]
    model = make()
    made = look_of(model)
    layer, head = (0, 0) if "rnn" in family else (1, 1)
    page = open_page(made, f"#view=walk&kind={kind}&layer={layer}&head={head}&token=3&step=3")
    page.click("[data-panel=numbers]")
    scores, weights, output = captured(model, kind, layer, head)
    walk = made.walks[kind, layer, head]
    for token in (3, 5):
        if token == 5:
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowDown")
        settled(page, view="walk", token=token)
        check_row(page, walk, token, scores[token], weights[token], output[token])

    page.keyboard.press("End")
    settled(page, step=10)
    assert ("predict" in status(page)) == (walk.lens is None)


def check_row(
    page: Any, walk: HeadWalk, token: int, scores: Tensor, weights: Tensor, output: Tensor
) -> None:
    """One query: its scores, weights and output, and the sum of one score number by number."""
    shown = shown_rows(page)
    close(shown["score"], scores)
    close(shown["weight"], weights)
    table = page.locator(".walk-table")
    close(numbers(table.get_attribute("data-output")), output)

    equation = walk.equation
    close(numbers(table.get_attribute("data-query")), equation.query[token])
    picked = int(page.get_attribute("tr.picked", "data-at"))
    assert picked == int(weights.argmax())
    close(column(page, "is-query"), equation.query[token])
    close(column(page, "is-key"), equation.key[picked])

    terms = equation.query[token] * equation.key[picked]
    if equation.additive is not None:
        terms = equation.additive * (equation.query[token] + equation.key[picked]).tanh()
    close(column(page, "product"), terms)
    close(column(page, "running"), terms.cumsum(0))
    close(shown["sum"][picked], terms.sum())
    close(shown["scaled"][picked], terms.sum() / equation.divisor)


# Keys, edits and addresses, on one page


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return gpt(position="rotary")


@pytest.fixture(scope="module")
def small(model: Any) -> Look:
    return look_of(model)


def test_the_keys(open_page: Open, small: Look) -> None:
    page = open_page(small, "#view=walk&kind=self&layer=0&head=1&token=3", width=1280, height=720)
    assert state(page)["view"] == "walk"
    page.wait_for_selector(".query-chart:visible")
    for key, step in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 10)):
        page.keyboard.press(key)
        settled(page, step=step)
    page.keyboard.press("ArrowRight")  # there is no further step
    page.keyboard.press("Home")
    settled(page, step=1)
    assert page.is_disabled(".steps .back")

    # Another token looks, and less is hidden from it
    page.keyboard.press("ArrowDown")
    settled(page, token=4)
    page.click(".pip:nth-child(5)")
    settled(page, step=5)
    assert page.locator("tr.shut").count() == 1
    assert page.inner_text("tr.shut .why") == "hidden by the causal mask"
    assert page.inner_text(".formula .lit").strip() == "+ mask"

    # With Shift the row and the number
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    settled(page, step=3)
    before = int(page.get_attribute("tr.picked", "data-at"))
    page.keyboard.press("Shift+ArrowUp" if before else "Shift+ArrowDown")
    after = before - 1 if before else 1
    assert page.get_attribute("tr.picked", "data-at") == str(after)
    focused = page.evaluate("document.activeElement.closest('tr').dataset.at")
    assert focused == str(after)
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    equation = small.walks["self", 0, 1].equation
    product = float(equation.query[4, 1] * equation.key[after, 1])
    said = page.inner_text(".walk-table .readout")
    assert said.startswith("Number 2 of 4: query")
    assert float(said.split("= ")[1].replace("−", "-")) == pytest.approx(product, abs=0.006)
    page.keyboard.press("1")
    assert page.get_attribute("[aria-current=page]", "data-view") == "walk"
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_the_divisor_the_mask_and_the_keys(open_page: Open, small: Look) -> None:
    page = open_page(small, "#view=walk&kind=self&layer=1&head=2&token=3&step=6")
    walk = small.walks["self", 1, 2]
    query, key = walk.equation.query.double(), walk.equation.key.double()
    raw = query[3] @ key.T
    hidden = torch.arange(len(IDS)) > 3

    set_range(page, "#walk-divisor", 1)
    settled(page, edits="d1")
    expected = raw.masked_fill(hidden, -math.inf).softmax(0)
    close(shown_rows(page)["weight"], expected)
    assert status(page).startswith("Divided by 1 instead of 2, scores lie further apart.")
    output = expected @ walk.equation.value.double()
    close(numbers(page.get_attribute(".walk-table", "data-output")), output)

    page.check("text=Lift the mask")
    settled(page, edits="d1+m")
    close(shown_rows(page)["weight"], raw.softmax(0))
    assert page.locator("tr.shut").count() == 0

    page.select_option("[aria-label='First key to swap']", "0")
    page.select_option("[aria-label='Second key to swap']", "2")
    settled(page, edits="d1+m+s0-2")
    swapped = raw[[2, 1, 0, 3, 4, 5]]
    close(shown_rows(page)["weight"], swapped.softmax(0))

    # The address has all of it
    again = open_page(small, page.evaluate("location.hash"))
    close(shown_rows(again)["weight"], swapped.softmax(0))
    assert "qkv serve" in again.inner_text(".answer")

    page.click("button.reset")
    page.wait_for_function("() => !location.hash.includes('edits')")
    close(shown_rows(page)["weight"], walk.weights[3])
    assert page.input_value("[aria-label='First key to swap']") == ""


def test_a_weight_is_moved_and_the_others_make_room(open_page: Open, small: Look) -> None:
    page = open_page(small, "#view=walk&kind=self&layer=1&head=2&token=3&step=6")
    walk = small.walks["self", 1, 2]
    set_range(page, "tr[data-at='1'] .weight-bar", 0.5)
    shown = shown_rows(page)["weight"]
    own = walk.weights[3].double()
    expected = own * 0.5 / (1 - own[1])
    expected[1] = 0.5
    close(shown, expected)
    assert float(shown.sum()) == pytest.approx(1, abs=1e-12)
    assert page.inner_text(".walk-table tfoot .number") == "Σ 100.0%"

    # By keys: the bar of the chosen row is the one in the order of focus
    page.focus("tr[data-at='1'] .weight-bar")
    page.keyboard.press("ArrowRight")
    shown = shown_rows(page)["weight"]
    assert float(shown[1]) == pytest.approx(0.51, abs=1e-9)
    assert float(shown.sum()) == pytest.approx(1, abs=1e-12)
    assert page.evaluate("document.activeElement.ariaLabel").startswith("Weight of “w9”")
    assert page.locator("tr[data-at='4'] .weight-bar").is_disabled()
    close(numbers(page.get_attribute(".walk-table", "data-output")), shown @ walk.equation.value)


def box(page: Any, selector: str) -> dict[str, float]:
    return dict(page.locator(selector).bounding_box())


def test_nothing_moves_while_a_bar_is_dragged(open_page: Open, small: Look) -> None:
    address = "#view=walk&kind=self&layer=1&head=2&token=3&step=7"
    page = open_page(small, address, width=1280, height=720)
    own = small.walks["self", 1, 2].weights[3].double()
    bar = "tr[data-at='1'] .weight-bar"
    before = box(page, bar)
    steps = box(page, ".steps")

    def drag(part: float) -> Tensor:
        page.mouse.move(before["x"] + part * before["width"], before["y"] + 5)
        assert box(page, bar) == before
        return shown_rows(page)["weight"]

    drag(0.5)
    page.mouse.down()
    for part in (0.4, 0.7):
        expected = own * (1 - part) / (1 - own[1])
        expected[1] = part
        assert_close(drag(part), expected, rtol=0, atol=0.011)

    # Through 100% and back, the others have the proportions that they had
    assert drag(1.4)[1] == 1
    shown = drag(0.25)
    assert float(shown[1]) == pytest.approx(0.25, abs=0.011)
    others = torch.tensor([0, 2, 3])
    close(shown[others] / shown[others].sum(), own[others] / own[others].sum())
    page.mouse.up()
    assert box(page, ".steps") == steps
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")

    # From another bar that has everything, by keys
    page.focus("tr[data-at='0'] .weight-bar")
    page.keyboard.press("End")
    assert shown_rows(page)["weight"].tolist() == [1, 0, 0, 0, 0, 0]
    page.focus(bar)
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    shown = shown_rows(page)["weight"]
    assert float(shown[1]) == pytest.approx(0.99)
    assert float(shown[0]) == pytest.approx(0.01)


def test_a_checkbox_leaves_the_arrows_to_the_steps(open_page: Open, small: Look) -> None:
    page = open_page(small, "#view=walk&kind=self&layer=1&head=2&token=3&step=5")
    page.click("label:has-text('Lift the mask')")
    settled(page, edits="m", step=5)
    page.keyboard.press("ArrowRight")
    settled(page, step=6)
    page.keyboard.press("ArrowLeft")
    settled(page, step=5)
    page.keyboard.press(" ")
    page.wait_for_function("() => !location.hash.includes('edits')")

    # A slider uses them itself
    page.focus("#walk-divisor")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('edits=d')")
    assert state(page)["step"] == "5"


def test_after_the_head_a_file_shows_the_unchanged_model(open_page: Open, small: Look) -> None:
    walk = small.walks["self", 1, 2]
    assert walk.lens is not None
    page = open_page(small, "#view=walk&kind=self&layer=1&head=2&token=3&step=8&edits=d1")
    assert page.inner_text("body").count("qkv serve") == 1
    page.keyboard.press("ArrowRight")
    settled(page, step=9)
    page.keyboard.press("Shift+ArrowRight")
    said = page.inner_text(".after .readout").split("all tokens: ")[1].replace("−", "-")
    assert float(said) == pytest.approx(float(walk.output[3, 0]), abs=0.006)
    length = page.inner_text("[data-length=written]")
    assert float(length) == pytest.approx(float(walk.written[3].norm()), abs=0.006)
    assert page.inner_text(".after .note:visible").startswith("From here on the unchanged model")
    assert page.inner_text("body").count("qkv serve") == 1

    # The prediction is that of the lens, and the token of the text is marked
    page.keyboard.press("ArrowRight")
    settled(page, step=10)
    likeliest = walk.lens.after[3][0].text
    said = status(page)
    assert said.startswith("If the model stopped here, after this head of layer 1 of 2, the next")
    assert f"would be “{likeliest}”" in said
    among = {guess.id for guess in (*walk.lens.before[3], *walk.lens.after[3])}
    among |= {change.id for change in walk.lens.changed[3]}
    note = page.inner_text(".real-token")
    assert note.startswith("Outlined" if IDS[4] in among else "The text has w4")
    assert (page.locator(".lens-pair .real").count() > 0) == (IDS[4] in among)


def test_a_token_is_moved(open_page: Open, small: Look, model: Any) -> None:
    page = open_page(small, "#view=walk&kind=self&layer=0&head=0&token=5&step=4")
    page.click("tr[data-at='2'] button")
    page.click("[data-panel=distance]")
    set_range(page, ".distance-panel input", 9)
    settled(page, edits="v2_-4")

    # The key as the model turns it
    rotary = small.walks["self", 0, 0].equation.rotary
    positions = torch.tensor([[5, -4]])
    angles = rotary_angles(positions, 4, model.config.rotary_base, None)
    pair = torch.stack([rotary.query[5], rotary.key[2]])
    query, key = rotate(pair[None, None].double(), angles)[0, 0]
    close(shown_rows(page)["sum"][2], query @ key)
    assert "Score at distance 9" in page.inner_text(".distance-panel")
    assert page.locator(".curve").get_attribute("d").count("L") == 64


def test_where_positions_cannot_be_moved_and_heads_are_missing(open_page: Open) -> None:
    torch.manual_seed(0)
    made = look_of(gpt(position="learned"))
    made.walks.pop(("self", 1, 3))
    page = open_page(made, "#view=walk&kind=self&layer=0&head=0&step=4")
    page.click("[data-panel=distance]")
    assert "learned positions are added" in page.inner_text(".distance-panel")
    page.select_option("#choose-layer", "1")
    page.select_option("#choose-head", "3")
    settled(page, layer=1, head=3)
    assert "--layer 1 --head 3" in page.inner_text(".walk .note.wide")
    page.click("button:text-is('1.0')")
    settled(page, layer=1, head=0)
    page.wait_for_selector(".walk-table:visible")


def test_a_long_text_lists_the_strongest_rows(open_page: Open) -> None:
    torch.manual_seed(0)
    long = reading(torch.randint(13, (60,)).tolist())
    model = gpt(context=64, position="alibi")
    walked = [(None, 1, 1)]
    made = look(model, reading=long, tokenizer=TOKENIZER, name="small", walked=walked)
    page = open_page(made, "#view=walk&kind=self&layer=1&head=1&step=6&token=59")
    walk = made.walks["self", 1, 1]
    listed = [int(row["at"]) for row in page.evaluate(ROWS)[:-1]]
    assert listed == walk.weights[59].topk(24).indices.sort().values.tolist()
    others = 100 * (1 - float(walk.weights[59][listed].sum()))
    assert page.inner_text(".rest th") == "36 others"
    assert page.inner_text(".rest .number") == f"{others:.1f}%"
    close(numbers(page.get_attribute(".walk-table", "data-output")), walk.output[59])


# The arithmetic alone, and the server


def test_the_arithmetic(browser: Any) -> None:
    page = browser.new_page()
    torch.manual_seed(0)
    a, b = torch.randn(2, 8, dtype=torch.float64)

    def computed(name: str, *values: Any) -> Any:
        plain = [value.tolist() if isinstance(value, Tensor) else value for value in values]
        result = page.evaluate(MATH, [name, plain])
        return torch.tensor(result, dtype=torch.float64)

    close(computed("softmax", a), a.softmax(0))
    close(computed("softmax", 100 * a), (100 * a).softmax(0))
    weights = a.softmax(0)
    close(computed("entropy", weights), torch.special.entr(weights).sum() / math.log(2))
    close(computed("alike", torch.full((4,), 0.25)), torch.tensor(4.0))
    close(computed("terms", a, b), a * b)
    close(computed("terms", a, b, weights), weights * (a + b).tanh())
    close(computed("cosine", a, b), torch.cosine_similarity(a, b, dim=0))
    turned = rotate(a[None, None, None], rotary_angles(torch.tensor([[7]]), 8, 10_000.0, None))
    frequencies = 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    close(computed("turned", a, frequencies, 7), turned[0, 0, 0])

    # One weight set: the others keep their proportions, and what is hidden stays hidden
    seen = [True, True, False, True]
    close(
        computed("reweighted", [0.5, 0.25, 0.0, 0.25], 0, 0.2, seen),
        torch.tensor([0.2, 0.4, 0, 0.4]),
    )
    close(computed("reweighted", [1.0, 0, 0, 0], 0, 0.4, seen), torch.tensor([0.4, 0.3, 0, 0.3]))
    close(computed("reweighted", [1.0, 0], 0, 0.3, [True, False]), torch.tensor([1.0, 0]))
    page.close()


def test_one_request_at_a_time_and_only_the_latest_counts(browser: Any) -> None:
    page = browser.new_page()
    seen = page.evaluate(LATEST)
    assert seen == {"asked": [1, 4], "most": 1, "told": [4], "next": 4}
    page.close()


def test_the_server_computes_the_rest(visit: Open, server: Any) -> None:
    text = "the cat sat on the mat"
    look = "view=walk&kind=self&layer=0&head=1&token=3&step=6"
    page = visit(link(tab="write", model="chat", prompt=text, think=1, look=look))
    requests = bodies(page, "/v1/walk")
    settled(page, view="walk", step=6)
    page.wait_for_selector(".distribution:not([aria-busy]) .two-bars li")  # it moves what is below
    walk = {"model": "chat", "text": text, "kind": "self", "layer": 0, "head": 1}
    assert not page.locator(".answer").is_visible()

    before = box(page, "tr[data-at='1'] .weight-bar")
    set_range(page, "#walk-divisor", 1)
    page.wait_for_selector(".answer .bars")
    assert box(page, "tr[data-at='1'] .weight-bar") == before  # the answer has its own place
    answer = answered(server, "/v1/walk", **walk, position=3, edits={"divisor": 1})
    assert requests[-1]["edits"] == {"divisor": 1}
    assert requests[-1]["position"] == 3
    assert page.locator(".answer h2").inner_text().startswith("Next token after")
    check_answer(page, answer)
    assert "qkv serve" not in page.inner_text(".answer")

    # Whatever is changed, the page and the server compute the same
    page.check("text=Lift the mask")
    page.select_option("[aria-label='First key to swap']", "0")
    page.select_option("[aria-label='Second key to swap']", "2")
    page.click("tr[data-at='1'] button")
    page.click("[data-panel=distance]")
    set_range(page, ".distance-panel input", 9)
    edits = {"divisor": 1, "lift_mask": True, "swap_keys": [[0, 2]], "move": {"1": -6}}
    settled(page, edits="d1+m+s0-2+v1_-6")
    answer = answered(server, "/v1/walk", **walk, position=3, edits=edits)
    check_answer(page, answer)

    set_range(page, "tr[data-at='4'] .weight-bar", 0.6)
    row = shown_rows(page)["weight"].tolist()
    answer = answered(server, "/v1/walk", **walk, position=3, edits=edits | {"weights": {3: row}})
    check_answer(page, answer)


def check_answer(page: Any, answer: Any) -> None:
    """The page shows the weights, the output and the probabilities that the server computes."""
    named = {name: unpacked(answer["walk"][name])[3] for name in ("weights", "output")}
    close(shown_rows(page)["weight"], named["weights"])
    close(numbers(page.get_attribute(".walk-table", "data-output")), named["output"])
    changes = [f"{text(one[2])} → {text(one[3])}" for one in answer["next"]["tokens"][:6]]
    page.wait_for_function(
        "changes => JSON.stringify([...document.querySelectorAll('.answer li .number')]"
        ".map(node => node.textContent)) === JSON.stringify(changes)",
        arg=changes,
    )


def text(probability: float) -> str:
    """A probability as pages write it."""
    if 0 < probability < 0.00005:
        return "<0.01%"

    return f"{100 * probability:.{2 if probability < 0.001 else 1}f}%"


def unpacked(array: Any) -> Tensor:
    """An array of a walk."""
    content = bytearray(base64.b64decode(array["data"]))
    return torch.frombuffer(content, dtype=torch.float32).reshape(array["shape"])
