"""Connectionist temporal classification: the probabilities of all ways to align a target with a sequence, summed forwards and backwards in
time (Graves et al., 2006, equations 6 to 16), for all sequences of a batch at once.

Positions in a target are those of the target with blanks around each label: 2 * S + 1. Rows of shorter targets and sequences are computed
as well, and not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from wis.kernel.model import WARP
from wooly.device.lowering.registry import composite
from wooly.device.lowering.values import Unsupported

__all__: list[str] = []

_INF: Final = float("inf")
_SUFFIXES: Final = {torch.float32: "float", torch.float64: "double"}
_THREADS_MAX: Final = 256


class _Alignment:
    """Of log probabilities [time, batch, classes] with targets [batch, S] or one behind the other, whose lengths are on this machine.

    ``labels`` [batch, positions], ``emitted`` [batch, time, positions]: what a position is, and its log probability; ``skips``:
    where a position can be reached from the one before the blank before it.
    """

    def __init__(self, log_probs: Tensor, targets: Tensor, inputs: Sequence[int], lengths: Sequence[int], blank: int) -> None:
        accepted = log_probs.dim() == 3 and log_probs.dtype in _SUFFIXES and log_probs.numel() and targets.dim() in (1, 2)
        if not accepted or targets.dtype not in (torch.int32, torch.int64) or not 0 <= blank < log_probs.size(2):
            raise Unsupported("arguments that torch refuses, or nothing to align")
        time, batch, _ = log_probs.shape
        if len(inputs) != batch or len(lengths) != batch or not all(0 <= n <= time for n in inputs) or min(lengths) < 0:
            raise Unsupported("lengths that torch refuses")
        self.n = max(lengths)
        if targets.numel() != sum(lengths) if targets.dim() == 1 else targets.size(0) != batch or targets.size(1) < self.n:
            raise Unsupported("targets that torch refuses")
        device = log_probs.device
        self.inputs = torch.tensor(inputs, device=device)[:, None]
        self.last = 2 * torch.tensor(lengths, device=device)[:, None]
        self.labels = torch.full((batch, 2 * self.n + 1), blank, device=device)
        if self.n:
            self.labels[:, 1::2] = self._padded(targets, lengths)
        self.emitted = log_probs.transpose(0, 1).gather(2, self.labels[:, None].expand(-1, time, -1)).contiguous()
        self.skips = torch.zeros_like(self.labels, dtype=torch.bool)
        self.skips[:, 2:] = self.labels[:, 2:] != self.labels[:, :-2]

    def _padded(self, targets: Tensor, lengths: Sequence[int]) -> Tensor:
        if targets.dim() == 2:
            return targets[:, : self.n].long()
        ends = torch.tensor(lengths).cumsum(0)
        places = (ends - torch.tensor(lengths))[:, None] + torch.arange(self.n)
        return targets[places.clamp(max=targets.size(0) - 1).to(targets.device)].long()

    def forwards(self) -> Tensor:
        """Log probability of each position at each time, having emitted what is before it: [batch, time, positions]."""
        found = torch.empty_like(self.emitted)
        self._launch("forwards", self.emitted, self.skips, found)
        return found

    def backwards(self) -> Tensor:
        """Log probability of each position at each time, to emit what is behind it."""
        found = torch.empty_like(self.emitted)
        self._launch("backwards", self.emitted, self.skips, self.inputs, self.last, found)
        return found

    def _launch(self, name: str, *args: Tensor) -> None:
        """One block a sequence: in its steps through time a tensor program would grow with the longest sequence."""
        from wooly.kernels.library import kernel  # a kernel is needed by few scripts

        batch, time, positions = self.emitted.shape
        threads = min(_THREADS_MAX, -(-positions // WARP) * WARP)
        kernel("ctc", f"{name}_{_SUFFIXES[self.emitted.dtype]}")(batch, threads, (*args, time, positions))

    def likelihood(self, forwards: Tensor) -> Tensor:
        """Log probability of each target: [batch]."""
        end = forwards.gather(1, (self.inputs - 1).clamp(min=0)[:, :, None].expand(-1, -1, forwards.size(2)))[:, 0]
        one, other = end.gather(1, self.last), end.gather(1, (self.last - 1).clamp(min=0))
        found = torch.where(self.last > 0, torch.logaddexp(one, other), one)
        return torch.where(self.inputs > 0, found, torch.where(self.last > 0, -_INF, 0.0).to(found.dtype))[:, 0]


def _numbers(lengths: Sequence[int] | Tensor) -> Sequence[int]:
    return lengths.tolist() if isinstance(lengths, Tensor) else lengths


@composite("aten::_ctc_loss", "aten::_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int] | Tensor,
    target_lengths: Sequence[int] | Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Losses [batch] and what the gradient needs. ``zero_infinity`` is for the gradient."""
    alignment = _Alignment(log_probs, targets, _numbers(input_lengths), _numbers(target_lengths), blank)
    forwards = alignment.forwards()
    return -alignment.likelihood(forwards), forwards


@composite("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor")
def _ctc_loss_backward(grad: Tensor, log_probs: Tensor, targets: Tensor, *rest: Any) -> Tensor:
    """By the log probabilities: each class's own less its share in the alignments of the target."""
    inputs, lengths, neg_log_likelihood, log_alpha, blank, zero_infinity = (*rest, False)[:6]
    alignment = _Alignment(log_probs, targets, _numbers(inputs), _numbers(lengths), blank)
    lost = neg_log_likelihood[:, None, None]
    through = (log_alpha + alignment.backwards() + lost - alignment.emitted).exp()
    shares = torch.zeros_like(log_probs.transpose(0, 1), memory_format=torch.contiguous_format)
    shares = (
        shares.scatter_add(2, alignment.labels[:, None].expand_as(through), through) + 0 * lost
    )  # not a number where there is no alignment
    found: Tensor = (log_probs.transpose(0, 1).exp() - shares) * grad[:, None, None]
    if zero_infinity:
        found = found.masked_fill(lost == _INF, 0)
    times = torch.arange(log_probs.size(0), device=grad.device)[None, :, None]
    return found.masked_fill(times >= alignment.inputs[:, :, None], 0).transpose(0, 1).contiguous()
