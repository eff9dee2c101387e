"""What the Triton kernels of decoding compute before and after a matrix product.

Intermediate results are rounded to half precision wherever the eager code rounds them.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

if triton is not None:

    @triton.jit
    def normalised(  # type: ignore[no-untyped-def]
        row, gain, shift, E, epsilon, SHIFT: tl.constexpr, dtype: tl.constexpr
    ):
        """LayerNorm, or RMSNorm without a shift, of one row; lanes from E on are 0."""
        square = tl.sum(row * row, 0) / E
        if SHIFT:
            mean = tl.sum(row, 0) / E
            square -= mean * mean
            row -= mean

        row = row * tl.rsqrt(square + epsilon) * gain.to(tl.float32)
        if SHIFT:
            row += shift.to(tl.float32)

        return row.to(dtype).to(tl.float32)

    @triton.jit
    def activated(y, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
        """The activations without a gate; 0 and swiglu leave y."""
        if ACTIVATION == 1:
            y = tl.maximum(y, 0.0)

        if ACTIVATION == 2:
            y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))

        if ACTIVATION == 3:
            inner = 0.7978845608028654 * (y + 0.044715 * y * y * y)
            y = y * tl.sigmoid(2.0 * inner)

        if ACTIVATION == 4:
            y = y * tl.sigmoid(y)

        if ACTIVATION == 6:
            y = tl.maximum(y, 0.0)
            y = y * y

        return y

    @triton.jit
    def finished(  # type: ignore[no-untyped-def]
        y, up, bias, residual, n, target, inside, N, dtype: tl.constexpr,
        ACTIVATION: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    ):  # fmt: skip
        """residual + activation(y + bias): columns n of the product, which go to `target`."""
        GATED: tl.constexpr = ACTIVATION == 5  # swiglu: y is the gate of `up`
        if BIAS:
            y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)

        y = activated(y.to(dtype).to(tl.float32), ACTIVATION)
        if GATED:
            if BIAS:
                up += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)

            gate = (y * tl.sigmoid(y)).to(dtype).to(tl.float32)
            y = gate * up.to(dtype).to(tl.float32)

        if RESIDUAL:
            y = y.to(dtype).to(tl.float32)
            y += tl.load(residual + target, mask=inside, other=0.0).to(tl.float32)

        return y
