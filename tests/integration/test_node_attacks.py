"""The attacks of tests/adversarial through a real node: each ends its own session only, with the promised error, and a second session's
memory and results are the same before, beside and after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.adversarial.attack import CANARY_HANDLE, HANDLE, Completes, Ends, OutOfFuel, Shot, Traps
from tests.adversarial.attacks import ATTACKS
from tests.adversarial.canary import BLOCK, KERNEL, SECRET
from tests.support.builder import Builder
from tests.support.node import Node, Program
from wis.dtypes import DType
from wis.encoding import digest
from wis.kernel.model import Access, BufferParam, Kernel, RegType, encode_kernel
from wis.kernel.text import parse_kernel
from wis.program import Operand
from wis.verify.launches import SCALAR_TYPES
from wooly.errors import DeviceAssertError, OutOfFuelError
from wooly.session import Session

# These need what only a caller of a device has: addresses or an amount of fuel of its own choice.
_NOT_HERE = {"pointers/straddles two adjacent buffers", "endless/no fuel at all", "endless/one instruction short"}
NAMES = [n for n, a in ATTACKS.items() if isinstance(a.promise, Traps | OutOfFuel | Completes | Ends) and n not in _NOT_HERE]
EVERY = 2
"""Half of them with the host back end, every twelfth by the definition."""


class Fired(Program):
    """One launch; every buffer parameter is a buffer of the session, whose handle is ``first`` plus the parameter's number."""

    def __init__(self, kernel: Kernel, grid: Sequence[int], block: Sequence[int], dynamic: int, params: Sequence[Any], first: int) -> None:
        builder = Builder()
        outs, ins = [], []
        self.handles: list[int] = []
        self.uploads: list[tuple[int, memoryview]] = []
        for number, (param, value) in enumerate(zip(kernel.params, params, strict=True)):
            if not isinstance(param, BufferParam):
                ins.append(builder.const(value, SCALAR_TYPES[RegType(param.reg_type)]))
                continue
            buffer = builder.external(DType.U8, (max(len(value), 1),)).buffer
            (outs if param.access & Access.WRITE else ins).append(Operand(buffer, DType.U8, (len(value),), (1,), 0))
            self.handles.append(first + number)
            self.uploads.append((first + number, memoryview(value.tobytes() or b"\0")))
        self.kernel = encode_kernel(kernel)
        builder.launch(digest(self.kernel), grid, block, outs, ins, dynamic)
        super().__init__(builder)

    def send(self, session: Session) -> list[bytes]:
        """Run it and read all of its buffers back."""
        reads = [(handle, 0, len(data)) for handle, data in self.uploads]
        flush = self.flush(self.handles, kernels=[(digest(self.kernel), self.kernel)], uploads=self.uploads, reads=reads)
        return [bytes(found) for found in session.wait(session.submit(flush))]


class Canary:
    """A session with data of its own and a kernel that leaves a secret wherever it can."""

    def __init__(self, node: Node) -> None:
        self.session = node.open()
        self.data = np.random.default_rng(3).integers(0, 2**32, 4 * BLOCK, dtype=np.uint32)
        self._handle = CANARY_HANDLE
        self._first: tuple[int, bytes] | None = None

    def sing(self) -> None:
        """Run its kernel on new buffers; the result is its own, and what it has kept since the beginning is as it was."""
        params = [self.data.view(np.uint8), np.zeros(16 * BLOCK, np.uint8)]
        program = Fired(parse_kernel(KERNEL), (4, 1, 1), (BLOCK, 1, 1), 0, params, self._handle)
        given, out = program.send(self.session)
        assert given == self.data.tobytes()
        assert out == (self.data + np.uint32(SECRET)).tobytes()
        self._first = self._first or (self._handle + 1, out)
        self._handle += 2
        handle, kept = self._first
        (found,) = self.session.wait(self.session.submit(program.flush(program.handles, reads=[(handle, 0, len(kept))])))
        assert bytes(found) == kept


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Canary]]:
    with Node(tmp_path_factory.mktemp("host"), WOOLY_BACKEND="host", WOOLY_KERNEL_FUEL="2000000") as node:
        yield node, Canary(node)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Canary]]:
    with Node(tmp_path_factory.mktemp("reference"), WOOLY_BACKEND="reference", WOOLY_KERNEL_FUEL="400000") as node:
        yield node, Canary(node)


@pytest.mark.parametrize("name", NAMES[::EVERY])
def test_on_a_host_node(name: str, host: tuple[Node, Canary]) -> None:
    _attacked(name, *host)


@pytest.mark.parametrize("name", NAMES[1::12])
def test_on_a_reference_node(name: str, reference: tuple[Node, Canary]) -> None:
    _attacked(name, *reference)


def _attacked(name: str, node: Node, canary: Canary) -> None:
    attack = ATTACKS[name]
    canary.sing()
    shot = attack.aim()
    assert shot is not None
    session = node.open()
    program = Fired(shot.verified.kernel, shot.launch.grid, shot.launch.block, shot.launch.dynamic_bytes, shot.bound.params, HANDLE)
    match attack.promise:
        case Traps():
            with pytest.raises(DeviceAssertError, match=f"kernel {shot.verified.kernel.name}: "):
                program.send(session)
        case OutOfFuel():
            with pytest.raises(OutOfFuelError, match=f"kernel {shot.verified.kernel.name}"):
                program.send(session)
        case Completes():
            _left(shot, program.send(session))
        case _:
            _ended(program, session)
    canary.sing()
    session.close()


def _left(shot: Shot, found: list[bytes]) -> None:
    """What came back is what the attack promises of its own memory."""
    places = [p for p in shot.bound.params if isinstance(p, np.ndarray)]
    for place, data in zip(places, found, strict=True):
        place[:] = np.frombuffer(data, np.uint8)[: len(place)]
    shot.after(shot.bound)


def _ended(program: Fired, session: Session) -> None:
    """Fine either way: it ran to its end, trapped, or spent its fuel; what it may not do is stay."""
    try:
        program.send(session)
    except (DeviceAssertError, OutOfFuelError):
        return
