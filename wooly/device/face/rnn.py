"""Recurrent cells: torch picks a fused CUDA-only operator for any device but the CPU, so it is composed here of ordinary ones.

Registered above autograd, so gradients are those of the parts.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from wooly.device.face.api import Face

__all__ = ["patch", "lstm_cell", "gru_cell"]

_libraries: Final[list[Any]] = []  # registrations last as long as these objects


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates (batch, 4 x hidden) in the order input, forget, cell, output; cx (batch, hidden). Returns hy, cy and the gates."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    take, forget, cell, output = gates.chunk(4, 1)
    cy = forget.sigmoid() * cx + take.sigmoid() * cell.tanh()
    return output.sigmoid() * cy.tanh(), cy, gates


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gates (batch, 3 x hidden) in the order reset, update, new; hx (batch, hidden). Returns hy and the gates."""
    from_input = _biased(input_gates, input_bias)
    from_hidden = _biased(hidden_gates, hidden_bias)
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    update = (hidden_update + input_update).sigmoid()
    new = (input_new + hidden_new * (hidden_reset + input_reset).sigmoid()).tanh()
    return (hx - new) * update + new, from_input


def patch(face: Face) -> None:
    """Register the cells."""
    make_library: Any = torch.library.Library  # untyped in torch
    library = make_library("aten", "IMPL")
    _libraries.append(library)
    for name, function in (("_thnn_fused_lstm_cell", lstm_cell), ("_thnn_fused_gru_cell", gru_cell)):
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            library.impl(name, function, key)
