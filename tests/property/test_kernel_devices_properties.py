"""Random kernels that use everything: what must hold for them in the definition, and for every back end that can run here beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jit.errors import ToolchainError
from tests.property.fuzz_kernels import Seeds, hostile_input, judge
from tests.support.kernel_devices import KERNEL_DEVICES, KernelDevice, ReferenceKernels
from tests.support.kernel_runs import differences, run_case
from tests.support.wis_kernels import Case, seeded_case
from wis.kernel.model import decode_kernel, encode_kernel
from wis.kernel.ops import BY_CODE, KERNEL_OPS
from wis.kernel.strict import STRICT_FORMS
from wis.kernel.text import parse_kernel, print_kernel
from wis.kernel.verify import Barriers, verify_kernel

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = Seeds(40)
REFERENCE = ReferenceKernels()


CASES = st.builds(seeded_case, st.integers(0, 1 << 32), st.integers(1, 30))


@QUICK
@given(CASES)
def test_generated_kernels_are_accepted_numbered_for_warps_and_survive_bytes_and_text(case: Case) -> None:
    assert verify_kernel(case.kernel).ordered
    assert decode_kernel(encode_kernel(case.kernel)) == case.kernel
    assert parse_kernel(print_kernel(case.kernel)) == case.kernel


@pytest.mark.parametrize("seed", range(12))
def test_core_ops_alone_do_the_same(seed: int) -> None:
    case = seeded_case(seed)
    verified = verify_kernel(case.kernel)
    core = verify_kernel(verified.core)
    assert all(BY_CODE[op.op].core and not BY_CODE[op.op].named for block in verified.core.blocks for op in block.code)
    assert [site.block for site in verified.sites] == [site.block for site in core.sites]
    want, got = run_case(REFERENCE, verified, case), run_case(REFERENCE, core, case)
    assert want.outcome.trap == got.outcome.trap
    assert [b.tobytes() for b in want.buffers] == [b.tobytes() for b in got.buffers]


@pytest.mark.parametrize("seed", range(30))
def test_certified_kernels_run_in_any_pieces(seed: int) -> None:
    case = seeded_case(3000 + seed, 15)
    verified = verify_kernel(case.kernel)
    blocks = int(np.prod(case.grid))
    if verified.certificate.sliceable:
        cuts = sorted({0, blocks, *(random.Random(seed).randint(0, blocks) for _ in range(2))})
        assert not differences(run_case(REFERENCE, verified, case), run_case(REFERENCE, verified, case, cuts))


def test_the_generator_uses_everything() -> None:
    used, ends, barriers, certified = set(), set(), set(), 0
    for seed in range(60):
        verified = verify_kernel(seeded_case(seed, 60).kernel)
        used |= {BY_CODE[op.op].name for block in verified.flat.blocks for op in block.code}
        bodies = (verified.kernel.blocks, *(f.blocks for f in verified.kernel.functions))
        ends |= {type(block.end).__name__ for blocks in bodies for block in blocks}
        barriers.add(verified.barriers)
        certified += verified.certificate.sliceable
    strict = {name for name, _ in STRICT_FORMS}
    assert {op.name for op in KERNEL_OPS if not op.named or op.name in strict} <= used
    assert ends == {"Br", "Cbr", "Ret", "Bar", "Sync", "Switch", "Call"}
    assert barriers == set(Barriers) and certified


@pytest.fixture(scope="module", params=[name for name in KERNEL_DEVICES if name != "reference"])
def device(request: pytest.FixtureRequest) -> Iterator[KernelDevice]:
    try:
        made: KernelDevice = KERNEL_DEVICES[request.param]()
    except ToolchainError as error:
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(8))
def test_every_back_end_agrees_with_the_definition(device: KernelDevice, seed: int) -> None:
    """Bytes, instructions, trap: also when the grid is run in pieces, where the certificate allows it."""
    case = seeded_case(7000 + seed, 20)
    verified = verify_kernel(case.kernel)
    want = run_case(REFERENCE, verified, case)
    assert differences(want, run_case(device, verified, case)) == []
    if verified.certificate.sliceable:
        blocks = int(np.prod(case.grid))
        assert differences(want, run_case(device, verified, case, [0, blocks // 2, blocks])) == []


@pytest.mark.parametrize("seed", range(4))
def test_fuel_ends_a_launch_on_every_back_end_exactly_when_it_is_too_little(device: KernelDevice, seed: int) -> None:
    case = seeded_case(9000 + seed, 15)
    verified = verify_kernel(case.kernel)
    spent = run_case(REFERENCE, verified, case).outcome.instructions
    enough, short = (run_case(device, verified, case, fuel=fuel).outcome for fuel in (spent, spent - 1))
    assert not enough.out_of_fuel and enough.instructions == spent
    assert short.out_of_fuel and short.instructions > spent - 1


@pytest.mark.parametrize("seed", range(2))
def test_hostile_inputs_are_refused_by_errors_of_our_own_or_run(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        judge(*hostile_input(rng, SEEDS))
