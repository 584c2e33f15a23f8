"""Samples of GPUs that Wooly does not manage, as DCGM exporter and NVML report them: their states, and what sharing would save. Pure.

Sources of the formats: Prometheus text exposition format 0.0.4; the fields DCGM_FI_* of the DCGM API reference as dcgm-exporter prints them
(``etc/dcp-metrics-included.csv`` and ``etc/default-counters.csv`` there); ``nvmlUtilization_t`` and ``nvmlMemory_t`` of the NVML reference.

A launch is what they call utilization: the part of the time with a kernel running. The cores that it occupied are known where
DCGM_FI_PROF_SM_ACTIVE is exported; without it a launch counts as busy, and none as underused. Neither tool knows of a queue or
of transfers apart from kernels: blocked and fragmented are 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from bus_schemas.utilization import STATES, Interval, Times, percent_of, states_of

__all__ = [
    "DUTY_PERCENT_MAX", "Gpu", "Saving", "Sample", "decode_samples", "encode_sample", "gpus_of", "read_dcgm", "read_nvml", "saving_of",
]  # fmt: skip

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
