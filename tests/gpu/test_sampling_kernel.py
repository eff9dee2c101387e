"""On a GPU: the sampling kernel draws the tokens of the eager definition, row by row.

Sums of probabilities are rounded differently, so a number may fall on the neighbour of the token
that the definition gives, and top-p may keep one token more or less, where its sum is that close
to p. Of several tokens with the logit at which top-k or top-p cuts, the lower ids stay.
"""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked")]

ROUNDING = 3e-6
"""Sums of float32 probabilities are this exact."""
TEMPERATURES = (0, 1, 0.8, 0.1, 2.5, 1e-300, 1e20)
TOP_KS = (None, 1, 2, 5, 50, 1000, 10**9)
TOP_PS = (None, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1)
MIN_PS = (None, None, 0, 0.05, 0.5, 1)


def qkv() -> SimpleNamespace:
    """A copy of qkv without runtime shape checks, which Triton cannot compile."""
    from qkv.generation.kernels import sampling_kernel
    from qkv.generation.sampling_params import BROKEN, SamplingParams, sample_tokens
    from qkv.nn.decode.dependent_launch import chained

    return SimpleNamespace(
        kernel=sampling_kernel,
        SamplingParams=SamplingParams,
        sample_tokens=sample_tokens,
        BROKEN=BROKEN,
        chained=chained,
    )


def logits_of(kind: str, rows: int, vocabulary: int) -> Tensor:
    x = torch.randn(rows, vocabulary)
    if kind == "flat":
        return x * 0.01
    if kind == "equal":
        return torch.full_like(x, 3.5)
    if kind == "few values":
        return torch.randint(0, 3, x.shape).float()
    if kind == "minus infinity":
        x = x.masked_fill(torch.rand(x.shape) < 0.7, -math.inf)
        x[:, vocabulary // 2] = 0.5
        return x
    if kind == "one finite":
        x = torch.full_like(x, -math.inf)
        x[:, vocabulary // 3] = 2.0
        return x

    return x * {"normal": 1.0, "language model": 4.0, "large": 1e4}[kind]


KINDS = (
    "normal", "flat", "equal", "few values", "minus infinity", "one finite", "language model",
    "large",
)  # fmt: skip


def kept(logits: Tensor, params: Any) -> tuple[Tensor, bool]:
    """Probabilities by a stable sort, in float64, and whether rounding may change which stay."""
    x = logits.double()
    scaled = (x - x.max()) / max(params.temperature, 1e-30)
    weight = scaled.exp()
    order = x.sort(descending=True, stable=True).indices[: params.top_k or len(x)]
    close = False
    if params.top_p is not None and params.top_p < 1:
        probability = weight[order] / weight[order].sum()
        before = probability.cumsum(0) - probability
        close = bool(((before - params.top_p).abs() < ROUNDING).any())
        order = order[before < params.top_p]

    stays = torch.zeros_like(weight).scatter(0, order, 1.0) > 0
    if params.min_p:
        floor = math.log(params.min_p)
        close |= bool(((scaled - floor).abs() < ROUNDING).any())
        stays &= scaled >= floor

    weight = weight.where(stays, 0)
    return weight / weight.sum(), close


def assert_drawn(token: int, logits: Tensor, uniform: float, params: Any) -> None:
    if params.temperature == 0:
        assert token == int(logits.float().argmax())
        return

    probability, close = kept(logits, params)
    if close:
        assert logits[token] > -math.inf
        return

    end = float(probability[: token + 1].sum())
    begin = end - float(probability[token])
    assert probability[token] > 0, params
    assert begin - ROUNDING <= uniform <= end + ROUNDING, params


def random_params(randomness: random.Random) -> Any:
    return qkv().SamplingParams(
        temperature=randomness.choice(TEMPERATURES),
        top_k=randomness.choice(TOP_KS),
        top_p=randomness.choice(TOP_PS),
        min_p=randomness.choice(MIN_PS),
    )


def draw_and_check(logits: Tensor, seed: str) -> list[int]:
    """Rows with different parameters, drawn on the GPU and compared with the definition."""
    randomness = random.Random(seed)
    rows = len(logits)
    params = [random_params(randomness) for _ in range(rows)]
    uniform = 1 - torch.rand(rows, dtype=torch.float64)
    filters = torch.tensor([list(row.row_filters) for row in params]).T.contiguous().cuda()
    tokens: list[int] = qkv().kernel.sample_rows(logits, uniform.cuda(), filters).tolist()
    host = logits.cpu()
    for row, token in enumerate(tokens):
        assert_drawn(token, host[row], float(uniform[row]), params[row])

    return tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_different_parameters_are_drawn_in_one_launch(
    kind: str, dtype: torch.dtype
) -> None:
    randomness = random.Random(f"{kind} {dtype}")
    torch.manual_seed(1)
    for rows, vocabulary in ((1, 2), (3, 4095), (40, 4096), (40, 4097), (64, 50257)):
        logits = logits_of(kind, rows, vocabulary).to("cuda", dtype)
        uniform = 1 - torch.rand(rows, dtype=torch.float64)
        uniform[::7] = 1.0
        uniform[1::7] = 1e-300
        params = [random_params(randomness) for _ in range(rows)]
        filters = torch.tensor([list(row.row_filters) for row in params]).T.contiguous().cuda()
        assert qkv().kernel.supports(logits)
        tokens = qkv().kernel.sample_rows(logits, uniform.cuda(), filters).tolist()
        host = logits.cpu()
        for row, token in enumerate(tokens):
            assert_drawn(token, host[row], float(uniform[row]), params[row])


def test_a_row_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(2)
    logits = (4 * torch.randn(64, 50257)).to("cuda", torch.bfloat16)
    uniform = 1 - torch.rand(64, dtype=torch.float64, device="cuda")
    randomness = random.Random(2)
    params = [random_params(randomness) for _ in range(64)]
    filters = torch.tensor([list(row.row_filters) for row in params]).T.contiguous().cuda()
    tokens = qkv().kernel.sample_rows(logits, uniform, filters).tolist()
    for row in range(0, 64, 5):
        alone = qkv().sample_tokens(logits[row : row + 1], uniform[row : row + 1], params[row])
        assert alone.tolist() == [tokens[row]]


def test_tokens_without_ties_are_those_of_the_cpu() -> None:
    """Every temperature, top-k, top-p and min-p, where no number is close to a boundary."""
    torch.manual_seed(3)
    logits = 3 * torch.randn(200, 1000)
    uniform = (torch.rand(200, dtype=torch.float64) * 0.98 + 0.01).float().double()
    randomness = random.Random(3)
    equal = 0
    for _ in range(30):
        params = random_params(randomness)
        on_cpu = qkv().sample_tokens(logits, uniform, params)
        on_gpu = qkv().sample_tokens(logits.cuda(), uniform.cuda(), params)
        equal += int((on_cpu == on_gpu.cpu()).sum())

    assert equal > 0.999 * 30 * 200


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_without_a_likeliest_token_are_broken(value: float) -> None:
    logits = torch.randn(3, 5000)
    logits[1] = value
    logits[2, 4999] = value
    broken = [False, True, value != -math.inf]
    for temperature in (0, 1):
        for top_k in (None, 5):
            params = qkv().SamplingParams(temperature=temperature, top_k=top_k)
            tokens = qkv().sample_tokens(logits.cuda(), torch.rand(3).cuda(), params)
            assert [token == qkv().BROKEN for token in tokens.tolist()] == broken


def test_a_cuda_graph_reads_new_parameters() -> None:
    logits = torch.randn(8, 50257, device="cuda", dtype=torch.bfloat16)
    uniform = torch.rand(8, dtype=torch.float64, device="cuda")
    filters = torch.zeros(4, 8, device="cuda")
    qkv().kernel.sample_rows(logits, uniform, filters)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = qkv().kernel.sample_rows(logits, uniform, filters)

    for params in (
        qkv().SamplingParams(temperature=0),
        qkv().SamplingParams(temperature=0.7, top_k=20, top_p=0.9),
    ):
        columns = torch.tensor(list(params.row_filters), device="cuda").unsqueeze(1)
        filters.copy_(columns.expand(4, 8))
        graph.replay()
        assert torch.equal(tokens, qkv().sample_tokens(logits, uniform, params))


@pytest.mark.parametrize("vocabulary", [1, 3, 17, 64, 65, 1024, 1025, 151936, 1 << 18])
@pytest.mark.parametrize("kind", ["language model", "few values", "minus infinity"])
def test_vocabularies_of_any_size(kind: str, vocabulary: int) -> None:
    torch.manual_seed(4)
    rows = 4 if vocabulary > 10000 else 40
    logits = logits_of(kind, rows, vocabulary).to("cuda", torch.bfloat16)
    draw_and_check(logits, f"{kind} {vocabulary}")


@pytest.mark.parametrize("candidates", [256, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_more_candidates_than_there_is_room_for(
    kind: str, candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose candidates fill the registers, and rows that are read as a whole."""
    monkeypatch.setattr(qkv().kernel, "FEW", 256)
    monkeypatch.setattr(qkv().kernel, "CANDIDATES", candidates)
    torch.manual_seed(5)
    draw_and_check(logits_of(kind, 60, 12345).to("cuda", torch.bfloat16), f"{kind} {candidates}")


@pytest.mark.parametrize("kind", ["language model", "flat", "few values"])
def test_clustered_tokens_are_candidates_in_the_order_of_their_ids(kind: str) -> None:
    """Likely tokens with neighbouring ids, as frequent tokens have them."""
    torch.manual_seed(6)
    logits = logits_of(kind, 60, 50257)
    logits[:30, 5000:] -= 20
    logits[30:, :-3000] -= 20
    draw_and_check(logits.to("cuda", torch.bfloat16), f"clustered {kind}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_programs_and_strides_do_not_change_the_tokens(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither how many programs collect the candidates, nor where rows begin in memory."""
    torch.manual_seed(7)
    rows, vocabulary = 48, 50257
    logits = (3 * torch.randn(rows, vocabulary)).to("cuda", dtype)
    uniform = 1 - torch.rand(rows, dtype=torch.float64, device="cuda")
    randomness = random.Random(7)
    params = [random_params(randomness) for _ in range(rows)]
    filters = torch.tensor([list(row.row_filters) for row in params]).T.contiguous().cuda()
    expected = qkv().kernel.sample_rows(logits, uniform, filters).tolist()

    for width, begin in ((50264, 0), (50272, 0), (50272, 3)):
        wide = torch.full((rows, width), math.nan, device="cuda", dtype=dtype)
        wide[:, begin : begin + vocabulary] = logits
        view = wide[:, begin : begin + vocabulary]
        assert qkv().kernel.sample_rows(view, uniform, filters).tolist() == expected

    for programs in (1, 100, 400):
        monkeypatch.setattr(qkv().kernel, "PROGRAMS", programs)
        assert qkv().kernel.sample_rows(logits, uniform, filters).tolist() == expected


def test_a_chain_of_kernels_draws_the_same_tokens() -> None:
    torch.manual_seed(8)
    logits = (3 * torch.randn(16, 50257)).to("cuda", torch.bfloat16)
    uniform = 1 - torch.rand(16, dtype=torch.float64, device="cuda")
    for params in (
        qkv().SamplingParams(temperature=0),
        qkv().SamplingParams(temperature=0.8),
        qkv().SamplingParams(temperature=0.8, top_k=50),
        qkv().SamplingParams(temperature=0.8, top_p=0.9),
        qkv().SamplingParams(temperature=2, top_p=0.999),
    ):
        expected = qkv().sample_tokens(logits, uniform, params)
        graph = torch.cuda.CUDAGraph()
        with qkv().chained():
            qkv().sample_tokens(logits, uniform, params)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(5):
                    tokens = qkv().sample_tokens(logits, uniform, params)

        graph.replay()
        assert torch.equal(tokens, expected)
