"""What is executed on the cuda back end, part by part. Each part says how many kernels left the bits that the definition leaves.

On the stand-in of tests/support/cuda_driver.py, or with ``on_gpu`` on the GPU of this machine.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from jit.accel.engine import AccelEngine
from jit.accel.library import LOWER
from jit.backends import FUEL
from jit.cache import ObjectCache
from jit.cuda import CudaDevice
from jit.engine import EngineConfig
from tests.conformance.kernels.runner import differences as case_differences
from tests.conformance.kernels.runner import run_case as run_corpus_case
from tests.conformance.models import SCRIPTS
from tests.golden.cuda.cases import CASES
from tests.property.fuzz_backends import _ROUNDED, _ROUNDED_NAMES, _SEE_SIGNS_OF_NAN, one_round
from tests.support.compared_device import Compared, Tally
from tests.support.cuda_driver import Driver, cupy_on_host
from tests.support.kernel_devices import KernelDevice, ReferenceKernels, cuda_kernels
from tests.support.kernel_runs import differences, run_case
from tests.support.loopback import LoopbackLink
from tests.support.wis_kernels import seeded_case
from tests.unit.test_jit.conftest import run
from tests.unit.test_jit.lowered_programs import PROGRAMS
from tests.unit.test_jit.lowered_programs import program as named_program
from tests.unit.test_jit.programs import random_program
from wis.kernel.verify import verify_kernel
from wis.ops import OPS

__all__ = ["MODELS", "PARTS", "Part"]

MODELS: Final = ("mlp", "cnn", "gpt2", "llama")
_COARSE: Final = ("gelu", "softmax", "log_softmax_dx", "layer_norm", "layer_norm_dwb", "sdpa", "sdpa_dx", "adamw")
_COMPARED: Final = 4  # launches of each kernel of a model


class Part(msgspec.Struct):
    """``programs``: cases, or programs of kernels; ``tally``: of the launches of which memory was compared; ``refused``: what was not
    compiled, imported or executed; ``faults``: what was wrong beside the bits of a kernel. Both as sentences.
    """

    name: str
    what: str
    programs: int = 0
    tally: Tally = msgspec.field(default_factory=Tally)
    refused: list[str] = []
    faults: list[str] = []

    @property
    def wrong(self) -> list[str]:
        """Sentences."""
        off = [f"kernel {name} is {self.tally.kernels[name]:.3g} units in the last place off" for name in self.tally.wrong]
        return [*self.faults, *off]

    def merge(self, other: Part) -> None:
        """Count what another process executed of this part."""
        self.programs += other.programs
        self.tally.merge(other.tally)
        self.refused += other.refused
        self.faults += other.faults


def _sentence(name: str, error: Exception) -> str:
    return f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _driver(*, on_gpu: bool, memory_bytes: int = 1 << 40) -> AbstractContextManager[Driver | None]:
    """What answers the calls of CuPy while the context lasts: the stand-in, or CuPy itself."""
    return nullcontext() if on_gpu else cupy_on_host(Driver(memory_bytes))


@contextmanager
def _engine(*, on_gpu: bool, kernels: KernelDevice | None = None, most: int = 0) -> Iterator[tuple[AccelEngine, Compared]]:
    """An engine whose blocks of memory are allocations of their own (on the stand-in), so that accesses beyond them are seen."""
    with _driver(on_gpu=on_gpu, memory_bytes=1 << 28) as driver:
        compared = Compared(CudaDevice(ObjectCache(None)), kernels, most)
        engine = AccelEngine(compared, "cuda", EngineConfig(None, 1, 2 << 30 if on_gpu else 8 << 30, FUEL["cuda"]))
        yield engine, compared
        engine.close()
        if driver is not None:
            driver.close()


def _judged(part: Part, name: str, found: list[str]) -> None:
    """Count a case that is one kernel."""
    part.faults += [f"{name}: {fault}" for fault in found]
    if not found:
        part.tally.kernels[name] = 0.0
    part.tally.launches += 1
    part.programs += 1


def corpus(seeds: range, *, on_gpu: bool) -> Part:
    part = Part("corpus", "CUDA sources of tests/golden/cuda, imported, emitted, compiled and imported again")
    reference = ReferenceKernels()
    for case in list(CASES.values())[seeds.start : seeds.stop : seeds.step]:
        with _driver(on_gpu=on_gpu):
            try:
                kernels = cuda_kernels()
                got, want = run_corpus_case(case, "cuda", kernels), run_corpus_case(case, "reference", reference)
                _judged(part, case.name, [*got.faults, *case_differences(want, got, counts=not case.racy)])
            except Exception as error:  # whatever stops a case is the finding
                part.refused.append(_sentence(case.name, error))
        print(case.name, file=sys.stderr, flush=True)
    return part


def kernels(seeds: range, *, on_gpu: bool) -> Part:
    """Also with half of their fuel, and in two pieces where the certificate allows it."""
    part = Part("random kernels", "everything that the kernel tier has: tests/support/wis_kernels.py, with traps and counts")
    reference = ReferenceKernels()
    for seed in seeds:
        case = seeded_case(seed, 3 + seed % 20)
        verified, found = verify_kernel(case.kernel), list[str]()
        with _driver(on_gpu=on_gpu):
            device = cuda_kernels()
            try:
                want = run_case(reference, verified, case)
                found += differences(want, run_case(device, verified, case))
                blocks = case.grid[0] * case.grid[1] * case.grid[2]
                if blocks > 1 and verified.certificate.allows(case.grid, case.block):
                    found += differences(want, run_case(device, verified, case, [0, 1, blocks]))
                short = run_case(device, verified, case, fuel=want.outcome.instructions // 2).outcome
                found += [] if short.out_of_fuel else ["half of the fuel is enough"]
            except Exception as error:  # as above
                part.refused.append(_sentence(f"seed {seed}", error))
                continue
        _judged(part, f"seed {seed}", found)
    return part


def library(seeds: range, *, on_gpu: bool) -> Part:
    part = Part("library kernels", "random instructions of every library form (jit/accel/library), and those taken apart")
    with _engine(on_gpu=on_gpu) as (engine, compared):
        for name in (*sorted(LOWER), *_COARSE):
            ops = [op for op in OPS if op.name == name]
            for seed in seeds:
                _judge(part, name, seed, one_round(engine, ops, seed)[1])
            print(name, file=sys.stderr, flush=True)
        part.tally = compared.tally
        return part


def fused(seeds: range, *, on_gpu: bool) -> Part:
    part = Part("fused groups", "random programs: tests/unit/test_jit/programs.py, single instructions and chains of six")
    exact = [op for op in OPS if op.kind not in _ROUNDED and op.name not in _ROUNDED_NAMES | _SEE_SIGNS_OF_NAN and op.name != "launch"]
    with _engine(on_gpu=on_gpu) as (engine, compared):
        for name in list(PROGRAMS)[seeds.start :: seeds.step]:
            run(engine, *named_program(name))
            part.programs += 1
        for seed in seeds:
            try:
                run(engine, *random_program(seed, 1 + seed % 16))
            except Exception as error:  # as above
                part.refused.append(_sentence(f"program {seed}", error))
            part.programs += 1
            _judge(part, "instruction", seed, one_round(engine, [op for op in OPS if op.name != "launch"], seed)[1])
            _judge(part, "chain", seed, one_round(engine, exact, seed, 6)[1])
        part.tally = compared.tally
        return part


def _judge(part: Part, name: str, seed: int, complaint: str) -> None:
    part.programs += 1
    if complaint:
        (part.refused if complaint.startswith("raised") else part.faults).append(f"{name}, seed {seed}: {complaint.splitlines()[0][:300]}")


def model(name: str, *, on_gpu: bool) -> Part:
    """A script of tests/integration/scripts in this process, which becomes a client."""
    from tests.support.kernel_devices import HostKernels
    from wooly.activation import activate
    from wooly.config import Config

    part = Part(name, f"tests/integration/scripts/{name}.py; the first {_COMPARED} launches of each kernel compared", programs=1)
    with _engine(on_gpu=on_gpu, kernels=HostKernels(), most=_COMPARED) as (engine, compared), tempfile.TemporaryDirectory() as folder:
        link = LoopbackLink(engine)
        activate(Config(local_gpu=on_gpu), lambda index: link)
        sys.argv = [name, f"{folder}/{name}.pt"]
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        except Exception as error:  # as above
            part.refused.append(_sentence(name, error))
        part.tally = compared.tally
        return part


PARTS: Final[dict[str, tuple[Callable[..., Part], int]]] = {
    "corpus": (corpus, len(CASES)), "kernels": (kernels, 150), "library": (library, 12), "fused": (fused, 150),
    **{name: (lambda seeds, *, on_gpu, name=name: model(name, on_gpu=on_gpu), 0) for name in MODELS},
}  # fmt: skip
"""What executes the seeds of a part, and how many there are (0: it has none)."""
assert Path(SCRIPTS).is_dir()
