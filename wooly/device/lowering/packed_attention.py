"""Attention of sequences that lie packed one behind the other (``torch.nn.attention.varlen``): they are padded, and keys masked.

torch's operators for it exist on CUDA only. As in FlashAttention, the last query of a sequence is aligned with its last key.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from wooly.device.lowering.registry import composite
from wooly.device.lowering.values import Unsupported

__all__: list[str] = []

_INF: Final = float("inf")
_PACKED: Final = 3
"""Dimensions of packed operands: rows, heads, size."""


class _Sequences:
    """Where the sequences are among the rows of a packed tensor [rows, heads, ...].

    ``starts``: the first row of each sequence, and the end of the last; ``longest``: the most rows that a sequence has.
    """

    def __init__(self, rows: int, starts: Tensor, longest: int) -> None:
        self.starts = starts.long()
        self.lengths = self.starts.diff()
        self.positions = torch.arange(longest, device=starts.device)
        self._rows = torch.arange(rows, device=starts.device)

    def padded(self, x: Tensor) -> Tensor:
        """[sequences, heads, longest, ...]; behind the end of a sequence are rows of others."""
        return x[(self.starts[:-1, None] + self.positions).clamp(max=x.size(0) - 1)].transpose(1, 2)

    def packed(self, x: Tensor) -> Tensor:
        """The inverse of ``padded``."""
        sequence = torch.searchsorted(self.starts[1:-1], self._rows, right=True)
        return x[sequence, :, (self._rows - self.starts[sequence]).clamp(max=self.positions.numel() - 1)]


class _Call:
    """One call with its operands padded [sequences, heads, longest, size], keys and values repeated for groups of queries.

    ``options`` are those of torch's schema. A window of None or below 0 is unlimited on that side.
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor, cum_seq_k: Tensor | None, max_q: int, max_k: int, **options: Any
    ) -> None:
        if query.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        block_table = options.get("block_table")
        if block_table is not None:  # pages of keys, which the table puts in order
            key, value = (x[block_table.long()].flatten(1, 2) for x in (key, value))
            max_k = key.size(1)
            cum_seq_k = torch.arange(key.size(0) + 1, device=key.device) * max_k
            key, value = key.flatten(0, 1), value.flatten(0, 1)
        if cum_seq_k is None or options.get("alibi_slopes") is not None or not (query.numel() and key.numel()):
            raise Unsupported("sequences of one length, a bias by distance, or nothing to attend to")
        self.queries, self.keys = _Sequences(query.size(0), cum_seq_q, max_q), _Sequences(key.size(0), cum_seq_k, max_k)
        self.groups = query.size(1) // key.size(1)
        self.q = self.queries.padded(query)
        self.k, self.v = (self.keys.padded(x).repeat_interleave(self.groups, 1) for x in (key, value))
        self.bias = self._bias(**options)

    def _bias(
        self,
        is_causal: bool,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        seqused_k: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """0 where a query sees a key, else -inf."""
        lengths = self.keys.lengths if seqused_k is None else seqused_k.long()
        key, aligned = self.keys.positions, self.queries.positions[:, None] + (lengths - self.queries.lengths)[:, None, None]
        sees = key < lengths[:, None, None]
        right = 0 if is_causal else window_size_right
        if right is not None and right >= 0:
            sees = sees & (key <= aligned + right)
        if window_size_left is not None and window_size_left >= 0:
            sees = sees & (key >= aligned - window_size_left)
        bias = torch.zeros_like(sees, dtype=self.q.dtype).masked_fill(~sees, -_INF)
        return bias[:, None].expand(*self.q.shape[:3], self.k.size(2))


@composite("aten::_flash_attention_forward")
def flash_attention(query: Tensor, *call: Any, scale: float | None = None, **options: Any) -> tuple[Tensor, ...]:
    """(output [rows, heads, size], logsumexp [heads, rows], seed, offset, an empty mask)."""
    *operands, dropout_p, is_causal, return_debug_mask = call
    if query.dim() != _PACKED or dropout_p or return_debug_mask:
        raise Unsupported("sequences of one length, dropout, or a mask to debug with")
    c = _Call(query, *operands, is_causal=is_causal, **options)
    out, lse = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(c.q, c.k, c.v, c.bias, scale=scale)[:2]
    lse = lse.masked_fill(lse == -_INF, _INF)  # the sum of nothing, by which a backward divides
    out, lse = c.queries.packed(out), c.queries.packed(lse).t().contiguous()
    seed, offset = (torch.zeros(shape, dtype=torch.uint64, device=out.device) for shape in ((2,), ()))
    return out, lse, seed, offset, out.new_empty(0)


@composite("aten::_flash_attention_forward_no_dropout_inplace")
def flash_attention_into(out: Tensor, *call: Any, **options: Any) -> Tensor:
    """The logsumexp; the output is written to ``out``."""
    result, lse, *_ = flash_attention(*call, **options)
    out.copy_(result)
    return lse


@composite("aten::_flash_attention_backward")
def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *rest: Any,
    scale: float | None = None,
    **window: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    *sequences, dropout_p, is_causal, seed, offset = rest
    if dropout_p or query.dim() != _PACKED:
        raise Unsupported("dropout, or sequences of one length")
    c = _Call(query, key, value, *sequences, is_causal=is_causal, **window)
    behind = c.queries.positions >= c.queries.lengths[:, None]
    dy = c.queries.padded(grad_out).masked_fill(behind[:, None, :, None], 0)
    y, lse = c.queries.padded(out), c.queries.padded(logsumexp.t())
    operands, wanted, state = (c.q, c.k, c.v, c.bias), [True, True, True, False], (*sequences, 0.0, False, seed, offset)
    dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward(
        dy, *operands, wanted, y, lse, *state, scale=scale
    )
    dk, dv = (x.unflatten(1, (-1, c.groups)).sum(2) for x in (dk, dv))
    return c.queries.packed(dq), c.keys.packed(dk), c.keys.packed(dv)
