"""What holds for every test.

Property tests try the same examples on every machine, and then some new ones (one for every four fixed ones, at least one): what a new
example finds is reported with ``@reproduce_failure`` and becomes a test. No example has a deadline, so that a slow machine fails nothing.
``make fuzz`` searches longer with ``--hypothesis-profile=search``. ``--hypothesis-profile=fixed`` tries the fixed examples alone.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, is_hypothesis_test, seed, settings

from services.kit.nats_server import NatsServer

settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("default-and-new", settings.get_profile("fixed"))
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.register_profile("fuzz", settings.get_profile("search"))
settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile("default-and-new")

gc.disable()


def pytest_collection_finish() -> None:
    """What is imported and collected stays until the end: collections need not walk it, neither before this nor after."""
    gc.freeze()
    gc.enable()


_NEW_PART = 4
"""One new example for so many fixed ones."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Run a property test a second time, with a few new examples under a seed that a failure names."""
    result = yield
    test = getattr(pyfuncitem.obj, "__func__", pyfuncitem.obj)
    if is_hypothesis_test(test) and settings.get_current_profile_name() == "default-and-new":
        fixed = test._hypothesis_internal_use_settings
        number = random.SystemRandom().getrandbits(32)
        new = max(1, fixed.max_examples // _NEW_PART)
        test._hypothesis_internal_use_settings = settings(fixed, derandomize=False, max_examples=new, print_blob=True)
        seed(number)(test)
        try:
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
        except Exception as error:
            error.add_note(f"with new examples: --hypothesis-profile=search --hypothesis-seed={number} repeats them")
            raise
        finally:
            test._hypothesis_internal_use_settings = fixed
            test._hypothesis_internal_use_seed = None
    return result


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A bus of the test's own, without credentials."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()
