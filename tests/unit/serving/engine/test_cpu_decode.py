"""Decoding on a CPU with the compiled kernels: the engine gives the tokens of PyTorch's kernels."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.generation.sampling_params import SamplingParams
from qkv.models import int4, int8
from qkv.nn.decode.native_block import LayerCall
from qkv.nn.native import native_library
from support.engines import Steps
from support.families import GPT_KINDS, gpt
from support.rounded_weights import with_rounded_weights

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture
def layer_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of sequences whose attention the compiled kernels computed."""
    if native_library.library() is None:
        pytest.skip("the kernels were not compiled: there is no C compiler, or no x86-64 processor")

    calls: list[int] = []
    use_pages = LayerCall.use_pages

    def counted(self: LayerCall, batch: Any) -> None:
        calls.append(batch.groups[0].sequences)
        use_pages(self, batch)

    monkeypatch.setattr(LayerCall, "use_pages", counted)
    return calls


def serve(model: Any) -> list[list[tuple[int, float]]]:
    """Tokens and log-probabilities of requests of different lengths that join and leave."""
    steps = Steps(model, rows=6, tokens=40)
    greedy = SamplingParams(temperature=0)
    handles = []
    for number in range(5):
        prompt = [(3 * number + i) % 13 for i in range(2 + 3 * number)]
        handles.append(
            steps.request(prompt, max_tokens=4 + number, sampling=greedy, logprobs=1, seed=number)
        )
        steps.step()

    steps.finish()
    outputs = []
    for handle in handles:
        tokens = [token for chunk in steps.chunks(handle) for token in chunk.tokens]
        outputs.append([(token.id, token.logprob) for token in tokens])

    return outputs


@pytest.mark.parametrize("quantize", [None, int8, int4])
@pytest.mark.parametrize("kind", ["position learned", "position rotary", "llama", "one key head"])
def test_the_engine_gives_the_same_tokens(
    kind: str, quantize: Any, layer_calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt(**GPT_KINDS[kind] | {"hidden": 64, "context": 64}).float().eval()
    small = model if quantize is None else quantize(model)
    compiled = serve(small)
    assert max(layer_calls) > 2

    del layer_calls[:]
    monkeypatch.setattr(native_library, "library", lambda: None)
    expected = serve(with_rounded_weights(model, small))
    assert not layer_calls

    tolerance = 1e-4 if quantize is None else 2e-3
    for ours, theirs in zip(compiled, expected, strict=True):
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        for (_, a), (_, b) in zip(ours, theirs, strict=True):
            assert a == pytest.approx(b, abs=tolerance)


def test_a_window_and_switched_off_heads_keep_the_modules(layer_calls: list[int]) -> None:
    serve(gpt(**GPT_KINDS["window"] | {"context": 64}).float().eval())
    assert not layer_calls

    steps = Steps(gpt(context=64).float().eval())
    steps.request([1, 2, 3], max_tokens=5, heads_off=((0, 1), (1, 0)))
    steps.finish()
    assert not layer_calls
