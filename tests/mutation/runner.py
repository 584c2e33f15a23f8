"""Runs an area's mutants: every mutant in a forked process, with the tests that reach its place, until one of them fails.

The tests are imported once. A fault inside a function is planted in memory: the code of the function is replaced in the forked process. A
fault outside of functions, or in code that runs while modules are imported, needs modules that are imported with it: for such a mutant a
process is forked that has imported third-party packages only.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import os
import pickle
import resource
import signal
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant

__all__ = ["Outcome", "Reach", "reach_of", "run_mutants"]

_OWN: Final = ("wooly", "wis", "bus_schemas", "jit", "scheduler", "billing", "services", "tests", "benchmarks")
_KILLED, _SURVIVED, _UNREACHED, _TIMEOUT, _BROKEN = "killed", "survived", "not reached", "timeout", "import fails"
CPU_SLACK_S: Final = 15
_DATA_MAX: Final = 8 << 30
_OPTIONS: Final = ("-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile=mutation", "-x", "--tb=no", "-rN")


@dataclass
class Reach:
    """What the tests reach without a fault.

    Attributes:
        tests: Names of tests that pass, and how many seconds each takes.
        lines: For every file and line the tests that execute it.
        imported: For every file the lines that are executed while the tests are imported.
        failing: Tests that do not pass without a fault; they judge nothing.
        packages: Third-party modules that the tests import, in order.
    """

    tests: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    imported: dict[str, set[int]] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)

    def of(self, path: str) -> Reach:
        """What the tests of one file reach."""
        tests = {test: seconds for test, seconds in self.tests.items() if test.partition("::")[0] == path}
        lines = {
            file: {line: found for line, names in reached.items() if (found := names & tests.keys())}
            for file, reached in self.lines.items()
        }
        failing = [test for test in self.failing if test.partition("::")[0] == path]
        return Reach(tests, lines, self.imported, failing, self.packages)

    @classmethod
    def joined(cls, parts: Sequence[Reach]) -> Reach:
        """What the tests of several files reach."""
        whole = cls()
        for part in parts:
            whole.tests |= part.tests
            whole.failing += part.failing
            whole.packages += [name for name in part.packages if name not in whole.packages]
            for path, reached in part.lines.items():
                lines = whole.lines.setdefault(path, {})
                for line, names in reached.items():
                    lines.setdefault(line, set()).update(names)
            for path, numbers in part.imported.items():
                whole.imported.setdefault(path, set()).update(numbers)
        return whole

    def reaching(self, mutant: Mutant, budget_s: float) -> list[str]:
        """The tests that execute the statement of the mutant (outside of functions: all), the quickest files first, as far as their usual
        times together stay below ``budget_s``."""
        found: set[str] = set()
        if not mutant.function:
            found |= self.tests.keys()
        for line, tests in self.lines.get(mutant.path, {}).items():
            if mutant.line <= line <= mutant.last_line:
                found |= tests
        if not found and self.is_imported(mutant):
            found |= self.tests.keys()
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in found & self.tests.keys():
            by_file[test.partition("::")[0]].append(test)
        chosen: list[str] = []
        spent = 0.0
        for group in sorted(by_file.values(), key=lambda group: sum(self.tests[test] for test in group)):
            for test in sorted(group, key=self.tests.__getitem__):
                if spent + self.tests[test] <= budget_s or not chosen:
                    chosen.append(test)
                    spent += self.tests[test]
        return chosen

    def is_imported(self, mutant: Mutant) -> bool:
        """Whether the statement is executed while modules are imported."""
        return not self.imported.get(mutant.path, set()).isdisjoint(range(mutant.line, mutant.last_line + 1))


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: its verdict, the test that found it, seconds."""

    verdict: str
    test: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.verdict in (_KILLED, _TIMEOUT, _BROKEN)


def _fork(body: Callable[[int], None], cpu_s: float | None = None, wall_s: float = 3600.0) -> tuple[bytes, bool]:
    """Run ``body`` with a pipe to write to, in a process group of its own. What it wrote, and whether it wrote its end in time."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(read)
            if cpu_s is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 5))
                resource.setrlimit(resource.RLIMIT_DATA, (_DATA_MAX, _DATA_MAX))
            body(write)
        finally:
            os._exit(0)
    os.close(write)
    data, ended = _read(read, time.monotonic() + wall_s)
    os.close(read)
    _end_group(pid)
    os.waitpid(pid, 0)
    return data, ended


def _read(read: int, until_s: float) -> tuple[bytes, bool]:
    import select

    data = b""
    while (left := until_s - time.monotonic()) > 0:
        if select.select([read], [], [], min(left, 1.0))[0]:
            piece = os.read(read, 1 << 16)
            if not piece:
                return data, False
            data += piece
            if data.endswith(b"\0end"):
                return data.removesuffix(b"\0end"), True
    return data, False


def _end_group(pid: int) -> None:
    """The forked process, and whatever it started and did not end."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def _quiet() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


class _Loop:
    """A pytest plugin: instead of the usual loop over all tests, ``body`` is called with them."""

    def __init__(self, body: Callable[[dict[str, pytest.Item]], None]) -> None:
        self._body = body
        self.errors: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._body({item.nodeid: item for item in session.items})
        return True


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=following)
    return not any(report.failed for report in reports)


def _run_until_failure(items: dict[str, pytest.Item], tests: Sequence[str], write: int) -> None:
    """The name of the first test that fails, or nothing, then the end."""
    chosen = [items[test] for test in tests if test in items]
    for number, item in enumerate(chosen):
        if not _passes(item, chosen[number + 1] if number + 1 < len(chosen) else None):
            os.write(write, b"killed " + item.nodeid.encode() + b"\0end")
            return
    os.write(write, b"survived\0end")


# -- what is reached without a fault ---------------------------------------------------------------------------------------------------


def reach_of(root: Path, files: Sequence[str], tests: Sequence[str]) -> Reach:
    """Run all tests once, each under coverage of ``files``."""

    def body(write: int) -> None:
        import coverage

        _quiet()
        reach = Reach()
        before = set(sys.modules)
        cover = coverage.Coverage(data_file=None, include=[str(root / path) for path in files], messages=False)
        cover.start()

        def measure(items: dict[str, pytest.Item]) -> None:
            reach.packages = [name for name in sys.modules if name not in before and name.partition(".")[0] not in _OWN]
            for item in items.values():
                item.session.config.option.maxfail = 0
            names = list(items)
            for name, following in zip(names, [*names[1:], None], strict=True):
                cover.switch_context(name)
                began_s = time.process_time()
                passed = _passes(items[name], items[following] if following else None)
                if passed:
                    reach.tests[name] = time.process_time() - began_s
                else:
                    reach.failing.append(name)
            cover.switch_context("")

        loop = _Loop(measure)
        pytest.main([*_OPTIONS, "--continue-on-collection-errors", *tests], plugins=[loop])
        cover.stop()
        data = cover.get_data()
        for path in files:
            contexts = data.contexts_by_lineno(str(root / path))
            reach.lines[path] = {line: set(names) - {""} for line, names in contexts.items()}
            reach.imported[path] = {line for line, names in contexts.items() if "" in names}
        reach.failing += loop.errors
        os.write(write, pickle.dumps(reach) + b"\0end")

    data, ended = _fork(body)
    if not ended or not data:
        raise RuntimeError("the tests did not come to their end without a fault")
    return pickle.loads(data)  # type: ignore[no-any-return]


# -- faults in memory ------------------------------------------------------------------------------------------------------------------


def _codes(source: str, path: str) -> list[tuple[tuple[str, int], types.CodeType]]:
    """All code objects of a file, named by qualified name and number among equals."""
    seen: dict[str, int] = defaultdict(int)

    def walk(code: types.CodeType) -> Iterator[tuple[tuple[str, int], types.CodeType]]:
        name = code.co_qualname
        yield (name, seen[name]), code
        seen[name] += 1
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from walk(constant)

    return list(walk(compile(source, path, "exec", dont_inherit=True)))


class _Functions:
    """All functions of the product that exist now, by file."""

    def __init__(self) -> None:
        self._by_file: dict[str, list[types.FunctionType]] = defaultdict(list)
        self._caches: list[Any] = []
        for thing in gc.get_objects():
            if type(thing) is types.FunctionType:
                self._by_file[thing.__code__.co_filename].append(thing)
            elif isinstance(thing, _lru_cache_wrapper):
                self._caches.append(thing)

    def plant(self, root: Path, mutant: Mutant) -> bool:
        """Whether the fault could be planted in all functions that have it."""
        path = str(root / mutant.path)
        old = {code: name for name, code in _codes((root / mutant.path).read_text(), path)}
        new = dict(_codes(mutant.source, path))
        found = 0
        for function in self._by_file[path]:
            name = old.get(function.__code__)
            if name is None or name not in new:
                continue
            if new[name].co_freevars != function.__code__.co_freevars:
                return False
            if new[name] != function.__code__:
                function.__code__ = new[name]
                found += 1
        for cache in self._caches:
            if cache.__wrapped__.__code__.co_filename == path if hasattr(cache.__wrapped__, "__code__") else False:
                cache.cache_clear()
        return found > 0


# -- faults that need an import --------------------------------------------------------------------------------------------------------


class _Finder(importlib.machinery.PathFinder):
    """Finds one module with another source."""

    module = ""
    source = ""
    path = ""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        if fullname == cls.module and spec is not None:
            spec.loader = _Loader(fullname, cls.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        return compile(_Finder.source, _Finder.path, "exec", dont_inherit=True)


def _module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _run_cold(root: Path, mutant: Mutant, tests: Sequence[str], write: int) -> None:
    _quiet()
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]
    importlib.invalidate_caches()
    _Finder.module, _Finder.source, _Finder.path = _module_of(mutant.path), mutant.source, str(root / mutant.path)
    sys.meta_path.insert(0, _Finder)
    loop = _Loop(lambda items: _run_until_failure(items, tests, write))
    files = sorted({test.partition("::")[0] for test in tests}, key=[test.partition("::")[0] for test in tests].index)
    pytest.main([*_OPTIONS, *files], plugins=[loop])
    os.write(write, b"broken" + b"\0end")


# -- all of them -----------------------------------------------------------------------------------------------------------------------


def run_mutants(root: Path, mutants: Sequence[Mutant], reach: Reach, report: Callable[[Mutant, Outcome], None], budget_s: float) -> None:
    """Judge every mutant, each by ``budget_s`` of tests; ``report`` is called with each as it is judged."""
    warm, cold = [], []
    for mutant in mutants:
        if not (tests := reach.reaching(mutant, budget_s)):
            report(mutant, Outcome(_UNREACHED, "", 0.0))
        elif mutant.function and not reach.is_imported(mutant):
            warm.append((mutant, tests))
        else:
            cold.append((mutant, tests))
    cold += _run_warm(root, warm, reach, report)
    for name in reach.packages:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # some parts of packages are imported by their package only
    for mutant, tests in cold:
        report(mutant, _judged(lambda write, m=mutant, t=tests: _run_cold(root, m, t, write), reach, tests))  # type: ignore[misc]


def _judged(body: Callable[[int], None], reach: Reach, tests: Sequence[str]) -> Outcome:
    usual_s = sum(reach.tests[test] for test in tests)
    began_s = time.monotonic()
    data, ended = _fork(body, 3 * usual_s + CPU_SLACK_S, 12 * usual_s + 8 * CPU_SLACK_S)
    seconds = time.monotonic() - began_s
    word, _, test = data.decode(errors="replace").partition(" ")
    if word == "unplanted":
        return Outcome(word, "", seconds)
    if word == "killed":
        return Outcome(_KILLED, test.split("\0")[0], seconds)
    if word.startswith("survived") and ended:
        return Outcome(_SURVIVED, "", seconds)
    return Outcome(_BROKEN if word.startswith("broken") else _TIMEOUT, "", seconds)


def _run_warm(
    root: Path, mutants: Sequence[tuple[Mutant, list[str]]], reach: Reach, report: Callable[[Mutant, Outcome], None]
) -> list[tuple[Mutant, list[str]]]:
    """Judge mutants that can be planted in memory; those that turn out not to be so."""
    if not mutants:
        return []
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            _serve(root, mutants, reach, write)
        finally:
            os._exit(0)
    os.close(write)
    unplanted, done = [], 0
    with os.fdopen(read, "rb") as stream:
        while True:
            try:
                number, outcome = pickle.load(stream)
            except EOFError:
                break
            done += 1
            if outcome.verdict == "unplanted":
                unplanted.append(mutants[number])
            else:
                report(mutants[number][0], outcome)
    os.waitpid(pid, 0)
    if done != len(mutants):
        raise RuntimeError(f"{done} of {len(mutants)} mutants were judged")
    return unplanted


def _serve(root: Path, mutants: Sequence[tuple[Mutant, list[str]]], reach: Reach, write: int) -> None:
    out = os.fdopen(os.dup(write), "wb", buffering=0)
    _quiet()

    def loop(items: dict[str, pytest.Item]) -> None:
        functions = _Functions()
        gc.collect()
        gc.freeze()
        for number, (mutant, tests) in enumerate(mutants):

            def body(pipe: int, mutant: Mutant = mutant, tests: list[str] = tests) -> None:
                if functions.plant(root, mutant):
                    _run_until_failure(items, tests, pipe)
                else:
                    os.write(pipe, b"unplanted \0end")

            out.write(pickle.dumps((number, _judged(body, reach, tests))))

    files = sorted({test.partition("::")[0] for _, tests in mutants for test in tests})
    pytest.main([*_OPTIONS, "--continue-on-collection-errors", *files], plugins=[_Loop(loop)])
