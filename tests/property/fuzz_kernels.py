"""Fuzzing of the kernel tier without Hypothesis, for long runs.

``python -m tests.property.fuzz_kernels --seconds N [--inputs N] [--seed S]``: bytes that are no kernel, or not quite, against decoder and
verifier: DecodeError, ParseError and VerifyError are the only exceptions; what is accepted runs in the definition under a little fuel
without an exception and without touching a byte beside its buffers.

``python -m tests.property.fuzz_kernels --seconds N --backends host opencl [--size S] [--seed S]``: random valid kernels; every back end
leaves the bytes, counts the instructions and reports the trap that the definition does, whole and in slices where the certificate allows
them. A failure prints its seed and the smallest kernel found that still fails.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from jit.errors import KernelRefused
from tests.support.kernel_devices import KERNEL_DEVICES, KernelDevice
from tests.support.kernel_runs import differences, run_case
from tests.support.kernel_shrink import shrink
from tests.support.wis_kernels import Case, seeded_case
from tests.support.wis_programs import mutate_bytes
from wis.errors import DecodeError, ParseError, VerifyError
from wis.kernel.interpret import Launch, launch
from wis.kernel.model import BufferParam, decode_kernel, encode_kernel
from wis.kernel.module import MODULE_VERSION, Entry, Module, Variable, decode_module, encode_module
from wis.kernel.text import parse_kernel, print_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel

__all__ = ["Seeds", "hostile_input", "judge"]

_GUARD = 64  # bytes on both sides of every buffer that a run must not touch
_FUEL = 20_000
_INTERESTING = (0, 1, 2, 3, 5, 7, 15, 16, 31, 32, 127, 128, 255, 65535, 65536, 1 << 31, (1 << 31) - 1, -1, -2, -(1 << 31), (1 << 63) - 1,
                -(1 << 63), (1 << 64) - 1)  # fmt: skip


class Seeds:
    """Valid kernels that hostile inputs are made from, as bytes, trees of plain lists, and text."""

    def __init__(self, count: int, first: int = 0) -> None:
        kernels = [seeded_case(first + n, 2 + n % 12).kernel for n in range(count)]
        self.encoded = [encode_kernel(k) for k in kernels]
        self.trees = [msgspec.msgpack.decode(data) for data in self.encoded]
        self.modules = [encode_module(Module(MODULE_VERSION, (Entry("k", k, ()),), (Variable("v", 8, 0, b"ab"),))) for k in kernels[:8]]
        self.texts = [print_kernel(k).encode() for k in kernels[:8]]


def hostile_input(rng: random.Random, seeds: Seeds) -> tuple[str, bytes]:
    """What kind of input, and the input."""
    kind = rng.random()
    if kind < 0.15:
        return "random bytes", rng.randbytes(rng.randint(0, 60))
    if kind < 0.45:
        return "changed bytes", mutate_bytes(rng.randint, rng.choice(seeds.encoded))
    if kind < 0.96:
        return "changed structure", msgspec.msgpack.encode(_changed(rng, rng.choice(seeds.trees), seeds))
    if kind < 0.98:
        return "changed module", mutate_bytes(rng.randint, rng.choice(seeds.modules))
    return "changed text", mutate_bytes(rng.randint, rng.choice(seeds.texts))


def _changed(rng: random.Random, tree: Any, seeds: Seeds) -> Any:
    """A copy of ``tree`` with one to three places replaced, left out, repeated or exchanged."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _change_below(rng, tree, seeds, rng.randint(1, 6))
    return tree


def _change_below(rng: random.Random, node: Any, seeds: Seeds, depth: int) -> Any:
    if isinstance(node, list) and node and depth:
        at = rng.randrange(len(node))
        return [*node[:at], _change_below(rng, node[at], seeds, depth - 1), *node[at + 1 :]]
    if isinstance(node, list):
        return _changed_list(rng, node)
    if isinstance(node, int):
        new = rng.choice((node + 1, node - 1, rng.choice(_INTERESTING), rng.randint(0, 40), rng.randint(0, 140)))
        return min(max(new, -(1 << 63)), (1 << 64) - 1)
    return rng.choice((node, 0, [], None, "", b"", 1.5, "x", [0] * 3, rng.choice(seeds.trees)[8]))


def _changed_list(rng: random.Random, node: list[Any]) -> list[Any]:
    how = rng.randint(0, 4)
    if not node or how == 0:
        return [*node, rng.choice(_INTERESTING)]
    at = rng.randrange(len(node))
    if how == 1:
        return node[:at] + node[at + 1 :]
    if how == 2:
        return [*node[:at], node[at], *node[at:]]
    if how == 3:
        other = rng.randrange(len(node))
        node = list(node)
        node[at], node[other] = node[other], node[at]
        return node
    return node[:at]


def judge(kind: str, data: bytes) -> str:
    """What became of an input. Raises whatever is not a refusal of ours."""
    try:
        if kind == "changed module":
            decode_module(data)
            return "decoded"
        kernel = parse_kernel(data.decode("utf-8", "replace")) if kind == "changed text" else decode_kernel(data)
    except (DecodeError, ParseError):
        return "not decoded"
    try:
        verified = verify_kernel(kernel)
    except VerifyError:
        return "refused"
    run_guarded(verified)
    return "ran"


def run_guarded(verified: VerifiedKernel) -> None:
    """Two blocks of an accepted kernel, under a little fuel."""
    whole: list[Any] = []
    params: list[Any] = []
    for number, param in enumerate(verified.kernel.params):
        if isinstance(param, BufferParam):
            guarded = np.full(256 + 2 * _GUARD, 0xA5, np.uint8)
            whole.append(guarded)
            params.append(guarded[_GUARD:-_GUARD])
        else:
            params.append(number)
    threads = min(verified.kernel.threads_max, 40)
    launch(verified, Launch((2, 1, 1), (threads, 1, 1), dynamic_bytes=8 * verified.kernel.dynamic), params, fuel=_FUEL)
    for guarded in whole:
        assert (guarded[:_GUARD] == 0xA5).all() and (guarded[-_GUARD:] == 0xA5).all(), "a run wrote outside of a buffer"


def fuzz_inputs(seconds: float, inputs: int | None, first: int) -> None:
    """Inputs come in rounds of 1000 from one seed, so that a failure can be repeated by its round."""
    tally: Counter[str] = Counter()
    seeds, seed, end = Seeds(200), first, time.monotonic() + seconds
    while time.monotonic() < end and (inputs is None or 1000 * (seed - first) < inputs):
        rng = random.Random(seed)
        for number in range(1000):
            kind, data = hostile_input(rng, seeds)
            try:
                tally[f"{kind}: {judge(kind, data)}"] += 1
            except Exception:  # anything but our own refusals is what the fuzzer looks for
                traceback.print_exc()
                raise SystemExit(f"FAILED: {kind}, repeat with --seed {seed} (input {number}): {data.hex()}") from None
        seed += 1
    print(f"{sum(tally.values())} inputs from seed {first}:")
    for what, n in sorted(tally.items()):
        print(f"  {n:9} {what}")


def fuzz_backends(seconds: float, names: Sequence[str], size: int, first: int) -> None:
    """Random valid kernels on the definition and on ``names``."""
    reference = KERNEL_DEVICES["reference"]()
    devices = {name: KERNEL_DEVICES[name]() for name in names}
    tally: Counter[str] = Counter()
    seed, end = first, time.monotonic() + seconds
    while time.monotonic() < end:
        case = seeded_case(seed, size)
        for name, device in devices.items():
            what, found = compare(reference, device, case, seed)
            tally[f"{name}: {what}"] += 1
            if found:
                _report(reference, device, case, seed, name, found)
        seed += 1
    print(f"{seed - first} kernels from seed {first}: " + ", ".join(f"{n} {what}" for what, n in sorted(tally.items())))


def compare(reference: KernelDevice, device: KernelDevice, case: Case, seed: int) -> tuple[str, list[str]]:
    """What was compared, and the differences."""
    verified = verify_kernel(case.kernel)
    want = run_case(reference, verified, case)
    try:
        found = differences(want, run_case(device, verified, case))
        if verified.certificate.sliceable and not found:
            blocks = case.grid[0] * case.grid[1] * case.grid[2]
            cut = random.Random(seed).randint(0, blocks)
            found = differences(want, run_case(device, verified, case, [0, cut, blocks]))
            return "agreed, in slices too", [f"in slices at {cut}: {f}" for f in found]
    except KernelRefused as error:
        return "refused", [f"refused: {error}"]
    return "agreed", found


def _report(reference: KernelDevice, device: KernelDevice, case: Case, seed: int, name: str, found: list[str]) -> None:
    print(f"{name}, seed {seed}: {found}\nlooking for a smaller kernel ...", flush=True)
    small = shrink(case, lambda c: bool(compare(reference, device, c, seed)[1]))
    print(f"grid {small.grid}, block {small.block}, {small.dynamic_bytes} dynamic bytes: {compare(reference, device, small, seed)[1]}")
    print(print_kernel(small.kernel))
    raise SystemExit(f"FAILED: repeat with --seed {seed} --backends {name}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=30)
    arguments.add_argument("--inputs", type=int, default=None, help="stop after so many inputs")
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--size", type=int, default=40, help="statements of a kernel")
    arguments.add_argument("--backends", nargs="*", default=[])
    options = arguments.parse_args()
    first = options.seed if options.seed is not None else time.time_ns() % (1 << 40)
    if options.backends:
        fuzz_backends(options.seconds, options.backends, options.size, first)
    else:
        fuzz_inputs(options.seconds, options.inputs, first)


if __name__ == "__main__":
    main()
