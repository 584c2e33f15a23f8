"""Random states: CUDA's functions, reproducible, each generator its own stream."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

from wooly.device import random
from wooly.device.random import Philox


def draw(generator: torch.Generator | None = None) -> list[float]:
    return torch.randn(4, device="cuda", generator=generator).tolist()


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.cuda.manual_seed, torch.cuda.manual_seed_all])
def test_seeding_repeats(seed: Callable[[int], object]) -> None:
    seed(5)
    first, second = draw(), draw()
    seed(5)
    assert draw() == first != second
    assert torch.cuda.initial_seed() == 5
    seed(6)
    assert draw() != first


def test_states_are_saved_and_restored() -> None:
    torch.cuda.manual_seed(1)
    draw()
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8 and state.numel() == 16 and state.device.type == "cpu"
    expected = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == expected
    torch.cuda.set_rng_state_all([state])
    assert draw() == expected and len(torch.cuda.get_rng_state_all()) == 1
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state(state[:8])


def test_a_generator_is_its_own_stream() -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    assert generator.device == torch.device("cuda", 0) and generator.initial_seed() == 3
    first = draw(generator)
    torch.manual_seed(3)
    assert draw() == first, "the same seed gives the same numbers"
    default = torch.cuda.get_rng_state()
    second = draw(generator)
    assert second != first and torch.cuda.get_rng_state().equal(default)
    generator.set_state(torch.Generator("cuda").manual_seed(3).get_state())
    assert draw(generator) == first and draw(generator) == second


def test_generators_clone_pickle_and_count() -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    draw(generator)
    assert generator.get_offset() > 0
    twin, stored = generator.clone_state(), pickle.loads(pickle.dumps(generator))
    assert draw(twin) == draw(stored) == draw(generator)
    generator.set_offset(0)
    assert draw(generator) == draw(torch.Generator("cuda").manual_seed(3))
    assert generator.seed() == generator.initial_seed() != 3


def test_the_class_knows_both_kinds() -> None:
    assert isinstance(torch.Generator(), torch.Generator) and isinstance(torch.Generator("cuda"), torch.Generator)
    assert torch.Generator().device.type == "cpu" and isinstance(torch.default_generator, torch.Generator)
    assert torch.randn(2, generator=torch.Generator().manual_seed(0)).equal(torch.randn(2, generator=torch.Generator().manual_seed(0)))
    assert torch.cuda.default_generators[0].device == torch.device("cuda", 0)


def test_generators_of_the_wrong_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(2, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randn(2, generator=torch.Generator("cuda"))
    kept = torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        kept.normal_(generator=torch.Generator("cuda"))
    assert kept.tolist() == [1, 1], "refused before it writes"


def test_seeds_of_every_size() -> None:
    generator = torch.Generator("cuda")
    assert generator.manual_seed(-1).initial_seed() == (1 << 64) - 1
    assert generator.manual_seed((1 << 64) - 1).initial_seed() == (1 << 64) - 1
    with pytest.raises(RuntimeError, match="64 bits"):
        generator.manual_seed(1 << 64)


def test_philox_counts_what_was_taken() -> None:
    stream = Philox(seed=7)
    assert [stream.take(3), stream.take(1), stream.take(0)] == [(7, 0), (7, 3), (7, 4)]
    copy = Philox()
    copy.unpack(stream.pack())
    assert (copy.seed, copy.offset) == (7, 4)
    copy.reseed(8)
    assert (copy.seed, copy.offset) == (8, 0)


def test_a_dead_generator_is_forgotten() -> None:
    generator = torch.Generator("cuda")
    address = generator._cdata
    assert address in random._by_address
    del generator
    assert address not in random._by_address


def test_generators_that_take_a_state_share_it() -> None:
    """As torch.compile's backends count on, which swap the state of the default generator around an operation."""
    first, own = torch.cuda.default_generators[0], torch.Generator("cuda").manual_seed(5)
    expected = torch.rand(3, generator=torch.Generator("cuda").manual_seed(5), device="cuda")
    torch.cuda.manual_seed(3)
    before = first.graphsafe_get_state()
    first.graphsafe_set_state(own)
    drawn = torch.rand(3, device="cuda")
    taken = own.get_offset()
    first.graphsafe_set_state(before)
    assert taken > 0 and first.get_offset() == 0 and first.initial_seed() == 3
    torch.rand(3, device="cuda")
    assert first.get_offset() == taken and own.get_offset() == taken
    assert torch.equal(drawn, expected)
