"""``wooly utilization``: states of devices, their waste and its cost; also of GPUs that Wooly does not manage (``watch``, ``samples``), as
DCGM exporter and NVML report them, and what sharing would save.

Sources of the formats: Prometheus text exposition format 0.0.4; the fields DCGM_FI_* of the DCGM API reference as dcgm-exporter prints them
(``etc/dcp-metrics-included.csv`` and ``etc/default-counters.csv`` there); ``nvmlUtilization_t`` and ``nvmlMemory_t`` of the NVML reference.

A launch is what they call utilization: the part of the time with a kernel running. The cores that it occupied are known where
DCGM_FI_PROF_SM_ACTIVE is exported; without it a launch counts as busy, and none as underused. Neither tool knows of a queue or
of transfers apart from kernels: blocked and fragmented are 0.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Final

import click
import msgspec
from msgspec import Meta

from bus_schemas.utilization import BUSY, STATES, Interval, Times, percent_of, states_of
from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json, get_text
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import print_json, print_table
from wooly.cli.reports import leave_to_subcommand
from wooly.remedies import install_extra
from wooly.rest import UNANSWERED, Credentials, open_url

__all__ = ["utilization", "Gpu", "Sample", "decode_samples", "encode_sample", "gpus_of", "read_dcgm", "read_nvml", "saving_of"]

_PATH: Final = "/api/v1/billing/utilization"
_WHAT: Final = "billing service"
_LABELS: Final = tuple(state.replace("_", " ").replace("cpu", "CPU") for state in STATES)
_OPTIONAL: Final = ("wall", "fragmented", "blocked")
_HOUR_NS: Final = 3_600_000_000_000
_BODY_BYTES_MAX: Final = 16 << 20
_FILE_BYTES_MAX: Final = 1 << 30
_TIMEOUT_S: Final = 10.0
_LONGEST_S: Final = 30 * 86_400


@click.group(invoke_without_command=True)
@click.option(
    "--by",
    type=click.Choice(["device", "node", "tenant", "task", "model"]),
    default="device",
    show_default=True,
    help="What a line is about.",
)
@click.option("--from", "from_", default="", metavar="TIME", help="Start: ISO 8601 or Unix seconds (default: the beginning).")
@click.option("--to", default="", metavar="TIME", help="End, exclusive (default: now).")
@click.option("--tenant", default="", metavar="NAME", help="Only what is attributed to this tenant.")
@click.option("--task", default="", metavar="ID", help="Only what is attributed to this task.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@billing_flag
@json_flag
@click.pass_context
def utilization(context: click.Context, /, billing: str, as_csv: bool, as_json: bool, from_: str, **asked: str) -> None:
    """Show how long devices were busy, and why not; or watch GPUs of a plain cluster."""
    if leave_to_subcommand(context):
        return
    query = {name: value for name, value in {**asked, "from": from_}.items() if value}
    if as_csv:
        echo(get_text(billing, _PATH, query, accept="text/csv", what=_WHAT), nl=False)
        return
    report = get_json(billing, _PATH, query, what=_WHAT)
    if as_json:
        print_json(report)
        return
    lines = [*report["items"], report["total"]] if report["items"] else []
    rows = [
        _row(line["key"] or "(none)", [line[f"{state}_ns"] for state in STATES], f"{line['waste_percent']:.1f} %", line["waste_credits"])
        for line in lines
    ]
    _print(asked["by"], rows, "waste credits", "no device has accounted for its time")


def _row(key: str, times: Sequence[int], waste: str, cost: str) -> tuple[str, ...]:
    wall = sum(times)
    return (key, *(f"{percent_of(time_ns, wall):.1f} %" for time_ns in times), f"{wall / _HOUR_NS:.2f} h", waste, cost)


def _print(key: str, rows: Sequence[Sequence[str]], cost: str, empty: str) -> None:
    columns = (key, *_LABELS, "wall", "waste", cost)
    print_table(columns, rows, numbers=columns[1:], optional=_OPTIONAL, empty=empty)


def _seconds(_: click.Context, parameter: click.Parameter, value: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", value)
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_S:
        raise CommandError(f"{parameter.opts[0]} {value!r} is not a time such as 30s, 10m or 2h, at most 30d")
    return seconds


_overcommit_flag = click.option(
    "--overcommit",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    metavar="PERCENT",
    help="Memory promised beyond what a GPU has.",
)
_price_flag = click.option("--hour-price", type=click.FloatRange(0), default=None, metavar="AMOUNT", help="What an hour of one GPU costs.")


@utilization.command()
@click.option(
    "--dcgm", "urls", multiple=True, metavar="URL", help="What a DCGM exporter serves, such as http://node1:9400/metrics; again for more."
)
@click.option("--nvml", is_flag=True, help="The GPUs of this machine, by NVML.")
@click.option("--for", "for_s", default="10m", show_default=True, callback=_seconds, metavar="TIME", help="How long.")
@click.option("--every", "every_s", default="10s", show_default=True, callback=_seconds, metavar="TIME", help="Time between two samples.")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("gpu-samples.jsonl"),
    show_default=True,
    help="Samples are added to it.",
)
@_overcommit_flag
@_price_flag
@json_flag
def watch(
    urls: tuple[str, ...], nvml: bool, for_s: int, every_s: int, file: Path, overcommit: int, hour_price: float | None, as_json: bool
) -> None:
    """Measure GPUs for a while, read-only, and report their states and what sharing would save. Ctrl-C ends it early."""
    if bool(urls) == nvml:
        raise CommandError("name what to watch: --dcgm URL (a DCGM exporter) or --nvml (this machine)")
    read = _nvml if nvml else lambda at_ns, wall_ns: _dcgm(urls, at_ns, wall_ns)
    try:
        with file.open("ab") as out:
            taken = list(_watched(read, for_s, every_s, out))
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error}") from None
    _report(taken, overcommit, hour_price, as_json)


@utilization.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_overcommit_flag
@_price_flag
@json_flag
def samples(file: Path, overcommit: int, hour_price: float | None, as_json: bool) -> None:
    """Report from FILE, which `watch` has written."""
    try:
        if file.stat().st_size > _FILE_BYTES_MAX:
            raise CommandError(f"{file} is larger than {_FILE_BYTES_MAX >> 30} GiB; report from a part of its lines")
        taken = decode_samples(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} is no file of samples: {error}") from None
    _report(taken, overcommit, hour_price, as_json)


Read = Callable[[int, int], list["Sample"]]
"""Samples for (Unix time in ns, ns since the last ones)."""


def _watched(read: Read, for_s: int, every_s: int, out: IO[bytes]) -> Iterator[Sample]:
    """Take samples, each for the time since those before it, and write them."""
    with contextlib.suppress(KeyboardInterrupt):
        last_ns = time.monotonic_ns()
        end_ns = last_ns + for_s * 10**9
        while last_ns < end_ns:
            time.sleep(max(0.0, min(last_ns + every_s * 10**9, end_ns) - time.monotonic_ns()) / 1e9)
            now_ns = time.monotonic_ns()
            for sample in read(time.time_ns(), now_ns - last_ns):
                out.write(encode_sample(sample))
                yield sample
            out.flush()
            last_ns = now_ns


def _dcgm(urls: Sequence[str], at_ns: int, wall_ns: int) -> list[Sample]:
    """A source that does not answer now is left out, and named: the time is then not observed."""
    found: list[Sample] = []
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--dcgm {url!r} is not a URL; use one such as http://node1:9400/metrics")
        try:
            with open_url(url, Credentials(), timeout_s=_TIMEOUT_S) as answer:
                body = answer.read(_BODY_BYTES_MAX + 1)
        except UNANSWERED as error:
            echo(f"{url} does not answer ({error}); its GPUs are left out of this sample", err=True)
            continue
        if len(body) > _BODY_BYTES_MAX:
            raise CommandError(f"{url} answers with more than {_BODY_BYTES_MAX >> 20} MiB; name a DCGM exporter, not a whole Prometheus")
        taken = read_dcgm(body.decode("utf-8", "replace"), at_ns, wall_ns)
        if not taken:
            raise CommandError(
                f"{url} names no GPU with DCGM_FI_DEV_GPU_UTIL, DCGM_FI_DEV_FB_USED and DCGM_FI_DEV_FB_FREE; is it a DCGM exporter?"
            )
        found += taken
    return found


def _nvml(at_ns: int, wall_ns: int) -> list[Sample]:
    try:
        import pynvml
    except ImportError:
        raise CommandError(f"--nvml needs `nvidia-ml-py`; {install_extra('nvml')}") from None
    try:
        pynvml.nvmlInit()
        try:
            return read_nvml(pynvml, at_ns, wall_ns)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise CommandError(f"NVML does not answer ({error}); is there an NVIDIA driver on this machine?") from None


def _report(taken: Sequence[Sample], overcommit: int, hour_price: float | None, as_json: bool) -> None:
    if not taken:
        raise CommandError("nothing was sampled")
    gpus = gpus_of(taken)
    saving = saving_of(gpus, overcommit)
    if as_json:
        print_json({"states": STATES, "gpus": [_fields(gpu) for gpu in gpus], "saving": msgspec.to_builtins(saving)})
        return
    _print("GPU", [_gpu_row(gpu, hour_price) for gpu in gpus], "wasted h" if hour_price is None else "waste cost", "")
    echo(
        f"shared, the work of {saving.used} of {saving.gpus} GPUs would fit on {saving.needed} "
        f"(first fit of peak memory with {overcommit} % overcommit, and of mean launch time up to {saving.duty_percent_max} %)"
    )


def _waste_ns(gpu: Gpu) -> int:
    return gpu.wall_ns - gpu.times[BUSY]


def _gpu_row(gpu: Gpu, hour_price: float | None) -> tuple[str, ...]:
    hours = _waste_ns(gpu) / _HOUR_NS
    name = f"{gpu.host} {gpu.gpu}".strip()
    return _row(
        name, gpu.times, f"{percent_of(_waste_ns(gpu), gpu.wall_ns):.1f} %", f"{hours * (1.0 if hour_price is None else hour_price):.2f}"
    )


def _fields(gpu: Gpu) -> dict[str, Any]:
    more = {"wall_ns": gpu.wall_ns, "waste_ns": _waste_ns(gpu), "waste_percent": percent_of(_waste_ns(gpu), gpu.wall_ns)}
    return {**msgspec.to_builtins(gpu), **more}


_LINE: Final = re.compile(r"(DCGM_FI_[A-Z0-9_]+)\{([^\n]*)\}\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_UNITS: Final = {
    "DCGM_FI_DEV_GPU_UTIL": 10, "DCGM_FI_DEV_MEM_COPY_UTIL": 10, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1000, "DCGM_FI_PROF_SM_ACTIVE": 1000,
    "DCGM_FI_PROF_DRAM_ACTIVE": 1000, "DCGM_FI_DEV_FB_USED": 1 << 20, "DCGM_FI_DEV_FB_FREE": 1 << 20,
}  # fmt: skip
"""Field -> thousandths or bytes in its unit (percent, ratio, MiB)."""
_BLANK: Final = float(1 << 47)
"""DCGM marks what it does not know by numbers from here on."""
GPUS_MAX: Final = 4_096
DUTY_PERCENT_MAX: Final = 90
"""As much of one GPU's time is promised to those who share it."""
_HELD_PERCENT_MIN: Final = 5
"""A GPU with less memory in use and no launch is unused: the driver itself holds some."""


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU over ``wall_ns`` up to ``at_ns`` (Unix time). Permille are of the wall time; -1: not known."""

    at_ns: int
    wall_ns: Annotated[int, Meta(ge=0)]
    gpu: str
    launch_permille: int
    used_bytes: int
    total_bytes: int
    cores_permille: int = -1
    bandwidth_permille: int = -1
    host: str = ""
    model: str = ""


def read_dcgm(text: str, at_ns: int, wall_ns: int) -> list[Sample]:
    """The GPUs (or MIG instances) in what DCGM exporter answers, at most GPUS_MAX. Other lines, and values that DCGM leaves blank, are
    skipped; a GPU without utilization or memory is left out."""
    fields: dict[str, dict[str, int]] = {}
    labels: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or match[1] not in _UNITS:
            continue
        value = _number(match[3])
        found = dict(_LABEL.findall(match[2]))
        part = found.get("GPU_I_ID", "")
        gpu = (found.get("UUID") or f"{found.get('Hostname', '')}/{found.get('gpu', '')}") + (f"/{part}" if part else "")
        if value is None or (gpu not in fields and len(fields) >= GPUS_MAX):
            continue
        fields.setdefault(gpu, {})[match[1]] = round(value * _UNITS[match[1]])
        labels.setdefault(gpu, {}).update(found)
    return [sample for gpu in fields for sample in _sample(gpu, fields[gpu], labels[gpu], at_ns, wall_ns)]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < _BLANK else None


def _sample(gpu: str, fields: Mapping[str, int], labels: Mapping[str, str], at_ns: int, wall_ns: int) -> Iterator[Sample]:
    launch = fields.get("DCGM_FI_PROF_GR_ENGINE_ACTIVE", fields.get("DCGM_FI_DEV_GPU_UTIL"))
    used, free = fields.get("DCGM_FI_DEV_FB_USED"), fields.get("DCGM_FI_DEV_FB_FREE")
    if launch is None or used is None or free is None:
        return
    yield Sample(
        at_ns=at_ns,
        wall_ns=wall_ns,
        gpu=gpu,
        launch_permille=launch,
        used_bytes=used,
        total_bytes=used + free,
        cores_permille=fields.get("DCGM_FI_PROF_SM_ACTIVE", -1),
        bandwidth_permille=fields.get("DCGM_FI_PROF_DRAM_ACTIVE", fields.get("DCGM_FI_DEV_MEM_COPY_UTIL", -1)),
        host=labels.get("Hostname", ""),
        model=labels.get("modelName", ""),
    )


def read_nvml(nvml: Any, at_ns: int, wall_ns: int) -> list[Sample]:
    """The GPUs of this machine, by the module ``pynvml`` after its ``nvmlInit``. Raises its NVMLError."""
    found = []
    for index in range(min(nvml.nvmlDeviceGetCount(), GPUS_MAX)):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        rates, memory = nvml.nvmlDeviceGetUtilizationRates(device), nvml.nvmlDeviceGetMemoryInfo(device)
        found.append(
            Sample(
                at_ns=at_ns,
                wall_ns=wall_ns,
                gpu=nvml.nvmlDeviceGetUUID(device),
                launch_permille=rates.gpu * 10,
                used_bytes=memory.used,
                total_bytes=memory.total,
                bandwidth_permille=rates.memory * 10,
                model=nvml.nvmlDeviceGetName(device),
            )
        )
    return found


def encode_sample(sample: Sample) -> bytes:
    """One line of a file of samples."""
    return msgspec.json.encode(sample) + b"\n"


def decode_samples(data: bytes) -> list[Sample]:
    """Raises msgspec.DecodeError for a line that is none."""
    return [msgspec.json.decode(line, type=Sample) for line in data.splitlines() if line.strip()]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU over all its samples. ``times``: ns in each of STATES; ``launch_ns``: with a kernel running."""

    gpu: str
    host: str
    model: str
    times: Times
    launch_ns: int
    peak_bytes: int
    total_bytes: int

    @property
    def wall_ns(self) -> int:
        return sum(self.times)

    @property
    def used(self) -> bool:
        return self.launch_ns > 0 or self.peak_bytes * 100 >= self.total_bytes * _HELD_PERCENT_MIN


def gpus_of(samples: Iterable[Sample]) -> list[Gpu]:
    """Every GPU in ``samples``, in order of host and name."""
    found: dict[str, Gpu] = {}
    for seen in samples:
        launch_ns = seen.wall_ns * min(seen.launch_permille, 1000) // 1000
        interval = Interval(
            wall_ns=seen.wall_ns,
            busy_ns=launch_ns if seen.cores_permille < 0 else min(launch_ns, seen.wall_ns * seen.cores_permille // 1000),
            launch_ns=launch_ns,
            active=seen.launch_permille > 0,
            held_percent=seen.used_bytes * 100 // seen.total_bytes if seen.total_bytes else 0,
            bandwidth_percent=seen.bandwidth_permille // 10,
        )
        known = found.get(seen.gpu, Gpu(seen.gpu, seen.host, seen.model, (0,) * len(STATES), 0, 0, 0))
        found[seen.gpu] = msgspec.structs.replace(
            known,
            times=tuple(before + more for before, more in zip(known.times, states_of(interval), strict=True)),
            launch_ns=known.launch_ns + launch_ns,
            peak_bytes=max(known.peak_bytes, seen.used_bytes),
            total_bytes=max(known.total_bytes, seen.total_bytes),
        )
    return sorted(found.values(), key=lambda gpu: (gpu.host, gpu.gpu))


class Saving(msgspec.Struct, frozen=True):
    """How many GPUs there are, had work, and would do for it if they were shared."""

    gpus: int
    used: int
    needed: int
    overcommit_percent: int
    duty_percent_max: int = DUTY_PERCENT_MAX
    freed_percent: float = 0.0


def saving_of(gpus: Iterable[Gpu], overcommit_percent: int) -> Saving:
    """First fit, the largest memory first: the work of each GPU goes to the first that still has room for its peak of memory (with
    overcommit) and, up to DUTY_PERCENT_MAX, for its mean launch time. Work that alone exceeds these has a GPU for itself."""
    known = sorted(gpus, key=lambda gpu: (-gpu.total_bytes, gpu.gpu))
    bins: list[tuple[int, int, bool]] = [(gpu.total_bytes * (100 + overcommit_percent), DUTY_PERCENT_MAX * 10, True) for gpu in known]
    work = sorted((gpu for gpu in known if gpu.used), key=lambda gpu: (-gpu.peak_bytes, gpu.gpu))
    for gpu in work:
        need_bytes, duty = gpu.peak_bytes * 100, gpu.launch_ns * 1000 // gpu.wall_ns if gpu.wall_ns else 0
        # The work so far is on fewer GPUs than there are that held as much as this: one of them is empty, so there always is a place.
        at = next(at for at, (room, rest, empty) in enumerate(bins) if need_bytes <= room and (duty <= rest or empty))
        bins[at] = (bins[at][0] - need_bytes, max(0, bins[at][1] - duty), False)
    needed = sum(not empty for _, _, empty in bins)
    return Saving(len(known), len(work), needed, overcommit_percent, freed_percent=percent_of(len(known) - needed, len(known)))
