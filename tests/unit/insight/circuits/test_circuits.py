"""Circuits of heads equal plain products of the weights, and the scores that a model computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.circuits.circuit_scores import circuit_scores
from qkv.insight.circuits.composition_scores import composition_scores
from qkv.insight.circuits.head_matrices import head_matrices
from qkv.insight.circuits.token_circuits import token_circuits
from qkv.models.variants.quantize import int8
from qkv.nn.hooks import capture
from support.families import bert, gpt, rnn, transformer, words

GPTS: dict[str, dict[str, Any]] = {
    "gpt-2": {"depth": 3},
    "llama": {
        "position": "rotary",
        "norm": "rms",
        "kv_heads": 2,
        "qkv_bias": False,
        "output_bias": False,
        "head_width": 6,
    },
}


def plain_matrices(model: Any, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """W_QK and W_OV from the rows of the weights, with the gain and the mean of the norm."""
    block = model.stack.blocks[layer]
    attention = block.attention
    H, K, D = attention.heads, attention.kv_heads, attention.head_width
    rows = attention.qkv.weight.detach().split(D)
    shared = head // (H // K)
    E = attention.qkv.in_features
    norm = block.attention_residual.norm
    reads = torch.diag(norm.gain.detach())
    if model.config.norm == "layer":
        reads = reads @ (torch.eye(E) - torch.ones(E, E) / E).double()

    query, key, value = rows[head] @ reads, rows[H + shared] @ reads, rows[H + K + shared] @ reads
    output = attention.output.weight.detach()[:, head * D : (head + 1) * D]

    return query.T @ key, output @ value


@pytest.mark.parametrize("kind", GPTS)
def test_matrices_and_scores_equal_plain_products(kind: str) -> None:
    model = gpt(**GPTS[kind])
    scores = circuit_scores(model)
    for layer in range(len(model.stack.blocks)):
        matrices = head_matrices(model, layer)
        for head in range(4):
            qk, ov = plain_matrices(model, layer, head)
            assert_close(matrices.qk(head), qk)
            assert_close(matrices.ov(head), ov)
            for found, matrix in ((scores.copying, ov), (scores.matching, qk)):
                values = torch.linalg.eigvals(matrix)  # of the whole E x E matrix
                expected = float(values.sum().real / values.abs().sum())
                assert float(found[layer, head]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", GPTS)
def test_compositions_equal_frobenius_norms_of_whole_matrices(kind: str) -> None:
    model = gpt(**GPTS[kind])
    depth = len(model.stack.blocks)
    scores = composition_scores(model)
    size = torch.linalg.matrix_norm
    for a in range(depth):
        for b in range(depth):
            for i in range(4):
                for j in range(4):
                    found = [float(values[a, i, b, j]) for values in scores[1:4]]
                    if a >= b:
                        assert found == [0, 0, 0]
                        continue

                    _, written = plain_matrices(model, a, i)
                    qk, ov = plain_matrices(model, b, j)
                    expected = []
                    for reader in (qk.T, qk, ov):
                        ratio = size(reader @ written) / (size(reader) * size(written))
                        expected.append(float(ratio))
                    assert found == pytest.approx(expected, abs=1e-6)

    only = composition_scores(model, layer=1)
    assert_close(only.key[:, :, 1], scores.key[:, :, 1])
    assert_close(only.value[1], scores.value[1])
    assert float(only.key[0, :, 2:].sum()) == 0
    best = scores.strongest("key", 3)
    assert best[0].score == pytest.approx(float(scores.key.max()))
    (writer, reader) = best[0].writer, best[0].reader
    assert float(scores.key[(*writer, *reader)]) == pytest.approx(best[0].score)
    with_head = scores.strongest("value", 99, head=(0, 1))
    assert all((0, 1) in (pair.writer, pair.reader) for pair in with_head)
    assert len(with_head) == 4 * (depth - 1)


def test_the_qk_circuit_is_the_score_of_the_first_layer() -> None:
    model = gpt(**GPTS["llama"])
    ids = words(6)
    with torch.no_grad(), capture(model, "stack.blocks.0.attention.scores") as seen:
        model(ids.unsqueeze(0))
    captured = seen["stack.blocks.0.attention.scores"][0]  # (H, T, S)
    for head in (0, 3):
        for query, key in ((5, 2), (4, 4)):
            found = token_circuits(model, 0, head, distance=query - key).qk
            score = float(found.row(int(ids[query]))[int(ids[key])])
            assert score == pytest.approx(float(captured[head, query, key]), abs=1e-4)


def test_the_ov_circuit_is_the_change_of_the_logits() -> None:
    model = gpt(position="learned")
    circuit = token_circuits(model, 1, 2, [3, 4, 7]).ov
    _, ov = plain_matrices(model, 1, 2)
    vectors = model.embedding.token.weight.detach()[[3, 4, 7]]
    deviation = (vectors.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    written = vectors / deviation @ ov.T
    centred = (written - written.mean(-1, keepdim=True)) * model.stack.norm.gain.detach()
    expected = centred @ model.output_matrix.detach()[[3, 4, 7]].T
    found = torch.stack([circuit.row(token) for token in (3, 4, 7)])
    assert_close(found, expected.float(), atol=1e-4, rtol=1e-4)


def test_the_largest_pairs_of_a_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.insight.circuits.token_circuits.CHUNK", 5)
    circuit = token_circuits(gpt(), 1, 0).qk
    whole = circuit.left @ circuit.right.T
    order = whole.flatten().argsort(descending=True)[:7].tolist()
    pairs = circuit.largest(7)
    assert [(pair.first, pair.second) for pair in pairs] == [divmod(place, 13) for place in order]
    (best,) = circuit.largest(1, token=6)
    assert (best.first, best.second) == (6, int(whole[6].argmax()))
    assert best.value == pytest.approx(float(whole[6].max()), abs=1e-5)


def test_other_families_have_matrices() -> None:
    both = transformer(norm_placement="before")
    for kind in ("encoder", "decoder", "cross"):
        assert circuit_scores(both, kind).copying.shape == (2, 4)
    block = both.decoder.blocks[1]
    keys = block.cross_attention.qkv.weight.detach()[16:20] * both.encoder.norm.gain.detach()
    assert_close(head_matrices(both, 1, "cross").key[0], keys - keys.mean(-1, keepdim=True))
    assert composition_scores(both, "encoder").random == pytest.approx(1 / math.sqrt(16))

    plain = bert()  # post-norm: the attention reads the residual stream as it is
    rows = plain.stack.blocks[0].attention.qkv.weight.detach()
    assert_close(head_matrices(plain, 0).query[0], rows[:4])

    small = gpt().float()
    expected = head_matrices(small, 0).ov(1)
    assert_close(head_matrices(int8(small), 0).ov(1), expected, atol=0.05, rtol=0.05)


def test_a_head_that_copies_scores_one() -> None:
    model = gpt(norm="rms")
    attention = model.stack.blocks[0].attention
    with torch.no_grad():
        attention.output.weight.copy_(attention.qkv.weight[32:].T)  # W_O = W_V^T for all heads
        attention.output.weight[:, :4].neg_()
    copying = circuit_scores(model).copying[0]
    assert copying.tolist() == pytest.approx([-1, 1, 1, 1], abs=1e-5)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"layer: expected 0 to 1, not 2"):
        head_matrices(gpt(), 2)
    with pytest.raises(ValueError, match=r"kind: expected one of self, not 'cross'"):
        circuit_scores(gpt(), "cross")
    with pytest.raises(ValueError, match=r"an RNN has no heads"):
        circuit_scores(rnn())
    with pytest.raises(ValueError, match=r"composition: .*post-norm"):
        composition_scores(bert())
    with pytest.raises(ValueError, match=r"expected encoder or decoder"):
        composition_scores(transformer(norm_placement="before"), "cross")
    with pytest.raises(ValueError, match=r"head: expected 0 to 3, not 4"):
        token_circuits(gpt(), 0, 4)
    with pytest.raises(ValueError, match=r"tokens: expected ids from 0 to 12"):
        token_circuits(gpt(), 0, 0, [13])
    with pytest.raises(ValueError, match=r"join = sum"):
        token_circuits(gpt(join="product", position="learned"), 0, 0)
    with pytest.raises(ValueError, match=r"token: 5 is not one of the 2"):
        token_circuits(gpt(), 0, 0, [1, 2]).qk.row(5)
