"""``wooly utilization``: states of devices, their waste and its cost; also of GPUs that Wooly does not manage (``watch``, ``samples``)."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from bus_schemas.utilization import BUSY, STATES, percent_of
from wooly.cli.gpu_samples import Gpu, Sample, decode_samples, encode_sample, gpus_of, read_dcgm, read_nvml, saving_of
from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json, get_text
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import print_json, print_table
from wooly.cli.reports import leave_to_subcommand
from wooly.remedies import install_extra
from wooly.rest import Credentials, open_url

__all__ = ["utilization"]

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


Read = Callable[[int, int], list[Sample]]
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
        except (OSError, ValueError) as error:
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
