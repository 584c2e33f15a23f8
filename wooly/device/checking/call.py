"""Makes one call on the CPU and on the device, and compares the results.

Both start from the device's own values, so a difference is this operation's and not one that an earlier operation left behind.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from wooly.device import fallback, random
from wooly.device.backend import cpu_generator, is_ours
from wooly.device.checking import report, rules, script
from wooly.device.checking.report import REPORT
from wooly.device.checking.snapshot import Snapshot, tensors_in
from wooly.device.recorder import RECORDER
from wooly.device.schema import Kind, OpInfo
from wooly.errors import CheckFailed, DeviceAssertError, WoolyError

_CPU_LACKS: Final = ("not implemented for", "not supported on CPU", "not yet implemented", "Could not run")
"""What torch says of types and operations that its CPU kernels lack."""


_REFUSALS: Final = (NotImplementedError, WoolyError, torch.AcceleratorError)
"""What the device raises where only it is to blame: an operation or layout that it lacks, no memory, no such device index."""

_BY_RULE: Final = """\
arguments = call("cpu")[0] | {{"op": {op!r}}}
try:
    pairs = zip(*{rule}(arguments, ours[0], theirs[0]))
    return next(filter(None, (first_difference(a, b, *{tolerance}) for a, b in pairs)), None)
except (IndexError, RuntimeError) as error:
    return f"a result names what is not there: {{error}}"
"""


class _Outcome:
    """What the CPU gave: ``returned`` (flat), or ``error``."""

    def __init__(self, returned: list[Any], error: Exception | None = None) -> None:
        self.returned = returned
        self.error = error


class CheckedCall:
    """A call of an operation that computes."""

    def __init__(self, info: OpInfo, kernel: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.info = info
        self.kernel = kernel
        self.args, self.kwargs = args, kwargs
        self.values = _bound(info, args, kwargs)
        self.tensors = tensors_in(self.values)
        self.reference = rules.reference_of(info.base)

    def run(self) -> Any:
        """The device's result; raises CheckFailed when the CPU has another, else what the kernel raises."""
        self.before = Snapshot(self.tensors)
        self.rng_state = self._stream()
        copies, buffers = self.before.tensors()
        theirs = self._on_cpu(copies)
        try:
            result = self.kernel(*self.args, **self.kwargs)
            returned = _flat([result])
            after = Snapshot([*self.tensors, *tensors_in(returned)])
            RECORDER.synchronize()  # where nothing was read
        except CheckFailed:
            raise
        except Exception as error:  # whatever the operation raises; the CPU is expected to raise the like
            self._device_raised(error, theirs.error)
            raise
        if theirs.error is not None:
            self._cpu_raised(theirs.error)
            return result
        self._compare(returned, after, theirs.returned, copies, buffers)
        return result

    def without_dropout(self) -> _Probe | None:
        """The same call of an operation that drops out on its way (attention), with next to nothing dropped: that one has a value."""
        at = next((i for i, arg in enumerate(self.info.args) if arg.name == "dropout_p"), None)
        if at is None or rules.is_deterministic(self.info.base, self.info.draws, {"dropout_p": self.values[at]}):
            return None
        values = list(self.values)
        values[at] = rules.DROPOUT_NEGLIGIBLE
        args, kwargs = fallback.split(self.info, values)
        return _Probe(self.info, self.kernel, args, kwargs)

    def _stream(self) -> bytes:
        return self._philox().pack() if self.info.draws else b""

    def _philox(self) -> random.Philox:
        """The device's stream that the call draws from."""
        return random.of(next((v for v in self.values if isinstance(v, torch.Generator)), None))

    # --- the CPU's side

    def _on_cpu(self, copies: dict[int, torch.Tensor]) -> _Outcome:
        values = [_local(arg.kind, value, copies) for arg, value in zip(self.info.args, self.values, strict=True)]
        if self.info.is_factory and self.info.base in rules.UNWRITTEN:  # no memory is needed for what is not compared
            values = [torch.device("meta") if arg.kind is Kind.DEVICE else v for arg, v in zip(self.info.args, values, strict=True)]
        args, kwargs = fallback.split(self.info, values)
        with _plain(draws=self.info.draws):
            try:
                return _Outcome(_flat([(self.reference or self.info.op)(*args, **kwargs)]))
            except Exception as error:  # kept, and compared with what the device raises
                return _Outcome([], error)

    def _exact(self) -> list[Any]:
        """What the CPU returns in float64; empty where that is another call."""
        copies = {key: _widened(copy) for key, copy in self.before.tensors()[0].items()}
        values = [_local(arg.kind, value, copies) for arg, value in zip(self.info.args, self.values, strict=True)]
        wide = [torch.float64 if isinstance(v, torch.dtype) and v.is_floating_point else v for v in values]
        args, kwargs = fallback.split(self.info, wide)
        with _plain(draws=self.info.draws):
            try:
                return [*_flat([(self.reference or self.info.op)(*args, **kwargs)]), *copies.values()]
            except Exception:  # some operations want other types; then there is no allowance
                return []

    # --- errors

    def _device_raised(self, error: Exception, theirs: Exception | None) -> None:
        """Raises CheckFailed unless the CPU raises the like, or the device says by its class that it is a refusal of its own."""
        if theirs is not None and (_alike(error, theirs) or isinstance(error, DeviceAssertError)):
            return
        if isinstance(error, _REFUSALS) and not isinstance(error, DeviceAssertError):
            return
        if any(not is_ours(t) for t in self.tensors):
            return  # tensors of two devices: the CPU sees one
        if theirs is not None and _is_lack(theirs):
            return
        raise self._failed(
            f"the device raises {_shown(error)}, the CPU {_shown(theirs) if theirs else 'computes it'}", "return None"
        ) from error

    def _cpu_raised(self, error: Exception) -> None:
        if _is_lack(error):
            REPORT.skipped[self.info.name] += 1
            return
        raise self._failed(f"the device computes it, the CPU raises {_shown(error)}", "return None") from error

    # --- values

    def _compare(
        self, ours: list[Any], after: Snapshot, theirs: list[Any], copies: dict[int, torch.Tensor], buffers: list[torch.Tensor]
    ) -> None:
        here, our_buffers = after.tensors()
        ours = [here[id(v)] if isinstance(v, torch.Tensor) else v for v in ours]
        named = self._named()
        deterministic = rules.is_deterministic(self.info.base, self.info.draws, named)
        rule = rules.rule_of(self.info.base, deterministic, len(theirs), named)
        if self.reference is not None:
            ours = [None if b is None else a for a, b in zip(ours, theirs, strict=False)]
        if len(ours) != len(theirs):
            raise self._failed(f"the device returns {len(ours)} values, the CPU {len(theirs)}", "return None")
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if rule is None:
                self._same(f"result {i}", a, b, f"(ours[0][{i}], theirs[0][{i}])", i)
            elif rule is not rules.first_result and _kind(a) != _kind(b):
                raise self._failed(f"result {i}: the device gives {_kind(a)}, the CPU {_kind(b)}", "return None")
        if rule is not None:
            self._by_rule(rule, named, ours, theirs)
        if rule is not rules.nothing:
            self._compare_arguments(here, copies, buffers, {id(v) for v in theirs})
            self._compare_beside(after, our_buffers, buffers)
        if deterministic:
            REPORT.compared += 1
        else:
            REPORT.by_property += 1

    def _compare_arguments(
        self, here: dict[int, torch.Tensor], copies: dict[int, torch.Tensor], buffers: list[torch.Tensor], returned: set[int]
    ) -> None:
        """What the call has made of its arguments; those that the CPU left as they were must be so to the bit."""
        for i, (arg, value) in enumerate(zip(self.info.args, self.values, strict=True)):
            for j, tensor in enumerate(tensors_in([value])):
                copy = copies[id(tensor)]
                if id(copy) not in returned:
                    number = self.before.views[id(tensor)].buffer
                    kept = torch.equal(buffers[number], self.before.buffers[number])
                    where = f"(ours[1][{i}][{j}], theirs[1][{i}][{j}])"
                    self._same(f"argument {arg.name} after the call", here[id(tensor)], copy, where, -1, exact=kept)

    def _compare_beside(self, after: Snapshot, our_buffers: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
        """Nothing beside the tensors of the call may have changed in their buffers."""
        for key, i in self.before.keys.items():
            j = after.keys.get(key)
            if j is None or after.spans[j] != self.before.spans[i] or torch.equal(our_buffers[j], buffers[i]):
                continue
            views = [(v.dtype, v.size, v.stride, v.offset) for v in self.before.views.values() if v.buffer == i]
            found = rules.first_difference(rules.beside(our_buffers[j], views), rules.beside(buffers[i], views), 0.0, 0.0)
            if found is not None:
                pair = f"(beside(ours[2][{i}], {views}), beside(theirs[2][{i}], {views}))"
                self._fail_values(f"bytes beside the tensors of the call: {found}", pair, 0.0, 0.0)

    def _fail_values(self, found: str, pair: str, rtol: float, atol: float) -> NoReturn:
        functions = [rules.first_difference, *([rules.beside] if "beside" in pair else [])]
        raise self._failed(found, f"return first_difference(*{pair}, {rtol}, {atol})", functions)

    def _same(self, what: str, ours: Any, theirs: Any, where: str, result: int, *, exact: bool = False) -> None:
        """Raises CheckFailed when they differ by more than their type allows. ``result``: which of those that were returned; -1: none."""
        rtol, atol = rules.TOLERANCES.get(theirs.dtype, (0.0, 0.0)) if isinstance(theirs, torch.Tensor) and not exact else (0.0, 0.0)
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs):
            return
        found = rules.first_difference(ours, theirs, rtol, atol)
        if found is None:
            return
        if atol and result >= 0:
            wide = self._exact()
            if result < len(wide) and isinstance(wide[result], torch.Tensor) and wide[result].shape == theirs.shape:
                if torch.Tag.pointwise not in self.info.tags:
                    atol += rules.rounding(theirs, wide[result])
                if rules.first_difference(ours, wide[result].to(theirs.dtype), rtol, atol) is None:
                    return  # it is the CPU's result that is not exact
                found = rules.first_difference(ours, theirs, rtol, atol)
        if found is not None:
            self._fail_values(f"{what}, {_kind(theirs)}: {found}", where, rtol, atol)

    def _by_rule(self, rule: rules.Rule, named: dict[str, Any], ours: list[Any], theirs: list[Any]) -> None:
        functions = [rules.first_difference, rule]

        def comparison(tolerance: tuple[float, float]) -> str:
            return _BY_RULE.format(op=self.info.name, rule=rule.__name__, tolerance=tolerance)

        try:
            pairs = zip(*rule(named, ours, theirs), strict=True)
        except (IndexError, RuntimeError) as error:  # indices that name nothing
            raise self._failed(f"a result names what is not there: {error}", comparison((0.0, 0.0)), functions) from error
        for a, b in pairs:
            tolerance = rules.TOLERANCES.get(b.dtype, (0.0, 0.0))
            found = rules.first_difference(a, b, *tolerance)
            if found is not None:
                what = " ".join((rule.__doc__ or "").split())
                raise self._failed(f"compared by its rule ({what}): {found}", comparison(tolerance), functions)

    def _named(self) -> dict[str, Any]:
        """Arguments by name, tensors as they were before the call."""
        copies = self.before.tensors()[0]
        named = {arg.name: _local(arg.kind, value, copies) for arg, value in zip(self.info.args, self.values, strict=True)}
        return named | {"op": self.info.name}

    def _failed(self, found: str, comparison: str, functions: Sequence[Any] = ()) -> CheckFailed:
        place = report.place()
        text = "\n  ".join(
            [
                f"{self.info.name} on the device differs from the CPU.",
                *place,
                f"call: {self.info.name}({script.arguments_text(self.info, self.values)})",
                found,
            ]
        )

        def write(path: Path) -> None:
            script.write(
                path,
                self.info,
                self.values,
                self.before,
                place,
                comparison=comparison,
                functions=functions,
                reference=self.reference,
                rng_state=self.rng_state,
            )

        return REPORT.fail(self.info.name, text, write)


class _Probe(CheckedCall):
    """A call made for the comparison alone: the device's random stream is as before."""

    def run(self) -> None:
        stream = self._philox()
        state = stream.pack()
        try:
            with torch.no_grad():
                super().run()
        finally:
            stream.unpack(state)


class CheckedView(CheckedCall):
    """A call that computes nothing: what it returns (or makes of its argument) is compared by shape, strides and offset."""

    def run(self) -> Any:
        metas = {id(t): _meta(t) for t in self.tensors if is_ours(t)}
        values = [_local(arg.kind, value, metas) for arg, value in zip(self.info.args, self.values, strict=True)]
        args, kwargs = fallback.split(self.info, values)
        theirs: Any = None
        try:
            with _plain(draws=False):
                theirs = _flat([self.info.op(*args, **kwargs)])
        except Exception:  # the kernel below raises it too, in torch's words: both are torch's own code
            theirs = None
        result = self.kernel(*self.args, **self.kwargs)
        if theirs is not None:
            for a, b in zip(_flat([result]), theirs, strict=True):
                have, want = ((t.shape, t.stride(), t.storage_offset()) for t in (a, b))
                if have != want:
                    self.before, self.rng_state = Snapshot(self.tensors), b""
                    raise self._failed(f"shape, strides and offset are {have} on the device, {want} on the CPU", "return None")
        return result


def _bound(info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The values of all arguments in schema order."""
    left = iter(args)
    positional = [arg for arg in info.args if not arg.kwarg_only]
    given = dict(zip((arg.name for arg in positional), left, strict=False)) | kwargs
    return [given.get(arg.name, arg.default) for arg in info.args]


def _flat(values: Any) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat += _flat(value) if isinstance(value, list | tuple) else [value]
    return flat


def _local(kind: Kind, value: Any, copies: dict[int, torch.Tensor]) -> Any:
    """An argument of the CPU's call."""
    if isinstance(value, torch.Tensor):
        return copies.get(id(value), value)
    if isinstance(value, list | tuple):
        return [_local(kind, v, copies) for v in value]
    if kind is Kind.DEVICE:
        return torch.device("cpu") if value is not None else None
    return None if kind is Kind.GENERATOR or (kind is Kind.IGNORED and value) else value


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    """The metadata of ``tensor`` without its elements."""
    n = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    meta = torch.empty(n, dtype=tensor.dtype, device="meta").as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        meta = meta.conj()
    return torch._neg_view(meta) if tensor.is_neg() else meta


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _shown(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _alike(ours: Exception, theirs: Exception) -> bool:
    return isinstance(ours, type(theirs)) or isinstance(theirs, type(ours))


def _is_lack(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or any(text in str(error) for text in _CPU_LACKS)


@contextlib.contextmanager
def _plain(*, draws: bool) -> Iterator[None]:
    """No gradients, no autocast, none of the script's modes or warnings; the CPU's random stream stays where it is."""
    generator = cpu_generator()
    state = generator.get_state() if draws else None
    with torch._C.DisableTorchFunction(), torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            if state is not None:
                generator.set_state(state)
