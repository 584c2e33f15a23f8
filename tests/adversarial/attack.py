"""Attacks: their definition, and the guarantees that must hold during one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.kernels.launch import Dim3, KernelLaunch
from tests.conformance.kernels.binding import Bound, Memory, bind, build_source
from tests.golden.cuda.case import Given
from wis.frontends.ptx import import_ptx
from wis.kernel.model import Math, TrapKind
from wis.kernel.text import parse_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel

__all__ = [
    "ATTACKS", "Attack", "Shot", "Promise", "Refused", "Traps", "OutOfFuel", "Completes", "Ends", "attack", "attack_at", "cuda", "wisk",
    "ptx", "shot", "launch", "HANDLE", "CANARY_HANDLE", "address",
]  # fmt: skip

Array = npt.NDArray[Any]
HANDLE: Final = 3
"""Handle of the attacker's first buffer; its others follow."""
CANARY_HANDLE: Final = 900
FUEL: Final = 2_000_000


@dataclass(frozen=True)
class Refused:
    """It never runs: ``error`` is raised, and says ``text``."""

    error: type[Exception] | tuple[type[Exception], ...]
    text: str = ""


@dataclass(frozen=True)
class Traps:
    """It runs to its end with defined values, and the first trap of the launch is of this kind (by this thread of this block)."""

    kind: TrapKind
    cta: int | None = None
    thread: int | None = None


@dataclass(frozen=True)
class OutOfFuel:
    """It is stopped when its fuel is spent."""


@dataclass(frozen=True)
class Completes:
    """It ends normally; what it computes is defined."""


@dataclass(frozen=True)
class Ends:
    """It ends, by itself or for want of fuel, whichever the schedule of threads makes of it."""


Promise = Refused | Traps | OutOfFuel | Completes | Ends


@dataclass
class Shot:
    """A launch ready to be made. ``bound``: its parameters. ``after``: asserts what must hold of them. ``constant``: which buffers must not
    change, by number of the parameter."""

    verified: VerifiedKernel
    bound: Bound
    launch: KernelLaunch
    addresses: Sequence[int] | None = None
    after: Callable[[Bound], None] = lambda bound: None
    constant: Sequence[int | str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Attack:
    """``aim`` runs everything up to the launch, which already may be refused. ``at``, where there is one, is used instead: it is given the
    places of the canary's memory in this process."""

    name: str
    what: str
    promise: Promise
    aim: Callable[[], Shot | None]
    at: Callable[[Sequence[int]], Shot] | None = None

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]

    @property
    def everywhere_alike(self) -> bool:
        """Whether it is refused before any device hears of it."""
        return isinstance(self.promise, Refused) and self.kind != "launch"


ATTACKS: Final[dict[str, Attack]] = {}


def attack(name: str, promise: Promise) -> Callable[[Callable[[], Shot | None]], Callable[[], Shot | None]]:
    """Add an attack; its function's docstring says what it tries."""

    def add(aim: Callable[[], Shot | None]) -> Callable[[], Shot | None]:
        assert name not in ATTACKS and aim.__doc__, name
        ATTACKS[name] = Attack(name, aim.__doc__, promise, aim)
        return aim

    return add


def attack_at(name: str, promise: Promise) -> Callable[[Callable[[Sequence[int]], Shot]], Callable[[Sequence[int]], Shot]]:
    """Add an attack that is given where the canary's memory lies in this process."""

    def add(aim: Callable[[Sequence[int]], Shot]) -> Callable[[Sequence[int]], Shot]:
        assert name not in ATTACKS and aim.__doc__, name
        ATTACKS[name] = Attack(name, aim.__doc__, promise, lambda: aim((1 << 32, 1 << 33)), aim)
        return aim

    return add


def address(handle: int) -> int:
    """Where a session's buffer lies for pointers."""
    return handle << 20


def launch(grid: int | Dim3 = 1, block: int | Dim3 = 32, dynamic: int = 0, fuel: int | None = FUEL) -> KernelLaunch:
    def three(v: int | Dim3) -> Dim3:
        return (v, 1, 1) if isinstance(v, int) else v

    return KernelLaunch(three(grid), three(block), dynamic, fuel=fuel)


def cuda(source: str, args: Sequence[Any], where: KernelLaunch, **more: Any) -> Shot:
    """A kernel ``k`` in CUDA C++; arguments as in the corpus."""
    prepared = build_source(source, "k", ("--fmad=false",), "attack.cu")
    bound = bind(prepared, Given(args, {}))
    return Shot(prepared.verified, bound, where, _addresses(len(bound.params)), **more)


def wisk(text: str, args: Sequence[Any], where: KernelLaunch, *, addresses: Sequence[int] | None = None, **more: Any) -> Shot:
    """A kernel in the text form of WIS, so without any compiler's good manners; ``args``: one a parameter."""
    return shot(verify_kernel(parse_kernel(text)), args, where, addresses, **more)


def ptx(text: str, args: Sequence[Any], where: KernelLaunch, **more: Any) -> Shot:
    """The only kernel of a PTX text."""
    (entry,) = import_ptx(text, "attack.ptx", math=Math.STRICT).entries
    return shot(verify_kernel(entry.kernel), args, where, **more)


def shot(verified: VerifiedKernel, args: Sequence[Any], where: KernelLaunch, addresses: Sequence[int] | None = None, **more: Any) -> Shot:
    """Any kernel; ``args``: one a parameter."""
    memories: dict[int | str, Memory] = {}
    params: list[Any] = []
    for number, value in enumerate(args):
        if isinstance(value, np.ndarray):
            memories[number] = Memory(np.ascontiguousarray(value).tobytes())
            params.append(memories[number].inside)
        else:
            params.append(value)
    before = {key: memory.inside.tobytes() for key, memory in memories.items()}
    return Shot(verified, Bound(params, memories, before), where, addresses or _addresses(len(verified.kernel.params)), **more)


def _addresses(n: int) -> list[int]:
    return [address(HANDLE + i) for i in range(n)]
