"""Batches that need no preparation, because the executor has their programs ready. Data only."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from bus_schemas.batch import Batch

__all__ = ["Warm"]

_WARM_MAX: Final = 4096


@dataclass(slots=True)
class Warm:
    """(program, dims) pairs that the executor has ready: their batches need not be prepared first."""

    pairs: OrderedDict[tuple[bytes, bytes], None] = field(default_factory=OrderedDict)

    def add(self, batch: Batch) -> None:
        self.pairs[(batch.program, batch.dims)] = None
        if len(self.pairs) > _WARM_MAX:
            self.pairs.popitem(last=False)

    def __contains__(self, batch: object) -> bool:
        return isinstance(batch, Batch) and (not batch.program or (batch.program, batch.dims) in self.pairs)
