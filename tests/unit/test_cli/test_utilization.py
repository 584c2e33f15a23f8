"""GPUs of a plain cluster: what DCGM exporter and NVML say, in the seven states, and how many GPUs would do."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.utilization import STATES
from tests.support.command import Wooly, command_in
from wooly.cli.utilization import Gpu, Sample, decode_samples, encode_sample, gpus_of, read_dcgm, read_nvml, saving_of

S, GIB = 10**9, 1 << 30
_GPUS = (("0", "GPU-c2f76b33-7953-256e-8f33-1343419b1a1c"), ("1", "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a"),
         ("2", "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"))  # fmt: skip
_VALUES = {
    "DCGM_FI_DEV_GPU_UTIL": ("GPU utilization (in %).", ("80", "10", "0")),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("Memory utilization (in %).", ("30", "5", "0")),
    "DCGM_FI_DEV_FB_FREE": ("Framebuffer memory free (in MiB).", ("61440", "4096", "81000")),
    "DCGM_FI_DEV_FB_USED": ("Framebuffer memory used (in MiB).", ("20480", "77824", "920")),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("Ratio of time the graphics engine is active.", ("0.800000", "9223372036854775794", "0.000000")),
    "DCGM_FI_PROF_SM_ACTIVE": ("The ratio of cycles an SM has at least 1 warp assigned.", ("0.500000", "NaN", "0.000000")),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("Ratio of cycles the device memory interface is active sending or receiving data.", ("0.310000", "", "")),
    "DCGM_FI_DEV_GPU_TEMP": ("GPU temperature (in C).", ("61", "40", "30")),
}


def exposition() -> str:
    """In the form of dcgm-exporter 4.4, one node with three GPUs; without lines whose value is empty here."""
    lines = []
    for name, (about, values) in _VALUES.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
        for (number, uuid), value in zip(_GPUS, values, strict=True):
            labels = (
                f'gpu="{number}",UUID="{uuid}",pci_bus_id="00000000:31:00.0",device="nvidia{number}",modelName="NVIDIA H100 80GB HBM3",'
                f'Hostname="node-1",DCGM_FI_DRIVER_VERSION="580.105.08",container="main",namespace="ml",pod="a \\"quoted\\", {{pod}}"'
            )
            lines += [f"{name}{{{labels}}} {value}"] if value else []
    return "\n".join(lines) + "\n"


def gpu(name: str, peak_gib: int, launch_percent: int, total_gib: int = 80) -> Gpu:
    return Gpu(name, "", "", (0,) * 6 + (S,), S * launch_percent // 100, peak_gib * GIB, total_gib * GIB)


def test_dcgm_text_becomes_states() -> None:
    taken = read_dcgm(exposition(), 7, 10 * S)
    assert [seen.gpu for seen in taken] == [uuid for _, uuid in _GPUS] and {seen.host for seen in taken} == {"node-1"}
    assert (taken[0].used_bytes, taken[0].total_bytes, taken[0].model) == (20 * GIB, 80 * GIB, "NVIDIA H100 80GB HBM3")
    # a blank value and NaN are not known: the utilization in percent counts, and a launch as busy
    assert (taken[1].launch_permille, taken[1].cores_permille, taken[1].bandwidth_permille) == (100, -1, 50)
    states = {one.gpu: {state: time_ns // S for state, time_ns in zip(STATES, one.times, strict=True) if time_ns} for one in gpus_of(taken)}
    assert states[_GPUS[0][1]] == {"busy": 5, "underused": 3, "cpu_bound": 2}
    assert states[_GPUS[1][1]] == {"busy": 1, "memory_bound": 9}  # 95 % of its memory is in use
    assert states[_GPUS[2][1]] == {"idle": 10}


def test_memory_bandwidth_bounds_too() -> None:
    seen = Sample(0, S, "g", 500, GIB, 80 * GIB, cores_permille=400, bandwidth_permille=600)
    (one,) = gpus_of([seen])
    assert one.times == (S * 4 // 10, S // 10, S // 2, 0, 0, 0, 0)
    (one,) = gpus_of([Sample(0, S, "g", 500, GIB, 80 * GIB, cores_permille=600)])  # the two are measured at different times
    assert one.times == (S // 2, 0, 0, S // 2, 0, 0, 0)


def test_an_instance_of_mig_is_a_device_of_its_own_and_rubbish_is_none() -> None:
    line = 'DCGM_FI_DEV_{}{{gpu="0",UUID="GPU-a",GPU_I_PROFILE="1g.5gb",GPU_I_ID="{}",Hostname="h"}} 10'
    names = ("GPU_UTIL", "FB_USED", "FB_FREE")
    text = "\n".join(line.format(name, part) for name in names for part in (1, 2))
    rubbish = 'garbage\nDCGM_FI_DEV_GPU_UTIL{gpu="9",bad="label} 1\nDCGM_FI_DEV_GPU_UTIL 5\nDCGM_FI_DEV_FB_USED{gpu="8"} -1\n'
    assert [seen.gpu for seen in read_dcgm(rubbish + text + "\n" + rubbish, 0, S)] == ["GPU-a/1", "GPU-a/2"]


def test_nvml_gives_the_same_samples_by_its_documented_fields() -> None:
    """The functions and fields of nvml.h: utilization in percent, memory in bytes."""
    nvml = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle {index}",
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=40, memory=61),
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=80 * GIB, free=79 * GIB, used=GIB),
        nvmlDeviceGetUUID=lambda device: f"GPU of {device}",
        nvmlDeviceGetName=lambda device: "NVIDIA H100",
    )
    (seen,) = read_nvml(nvml, 7, 10 * S)
    assert seen == Sample(7, 10 * S, "GPU of handle 0", 400, GIB, 80 * GIB, -1, 610, model="NVIDIA H100")
    assert gpus_of([seen])[0].times == (4 * S, 0, 6 * S, 0, 0, 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_the_nvml_module_has_what_is_read_of_it() -> None:
    import pynvml

    for name in ("GetCount", "GetHandleByIndex", "GetUtilizationRates", "GetMemoryInfo", "GetUUID", "GetName"):
        assert callable(getattr(pynvml, f"nvmlDevice{name}"))
    assert {"gpu", "memory"} <= {name for name, _ in pynvml.c_nvmlUtilization_t._fields_}
    assert {"used", "total"} <= {name for name, _ in pynvml.c_nvmlMemory_t._fields_}


@pytest.mark.parametrize(
    ("gpus", "overcommit", "needed"),
    [
        ([gpu("a", 20, 30), gpu("b", 20, 30), gpu("c", 20, 30)], 0, 1),
        ([gpu("a", 20, 31), gpu("b", 20, 30), gpu("c", 20, 30)], 0, 2),  # 91 % of the time
        ([gpu("a", 50, 10), gpu("b", 50, 10)], 0, 2),
        ([gpu("a", 50, 10), gpu("b", 50, 10)], 25, 1),
        ([gpu("a", 1, 0), gpu("b", 4, 0)], 0, 1),  # 1 of 80 GiB without a launch is the driver's
        ([gpu("a", 20, 99), gpu("b", 20, 1)], 0, 2),
        ([gpu("a", 4, 10, 24), gpu("b", 60, 10, 80)], 0, 1),
        ([], 0, 0),
    ],
)
def test_first_fit_by_memory_and_time(gpus: list[Gpu], overcommit: int, needed: int) -> None:
    saving = saving_of(gpus, overcommit)
    assert (saving.gpus, saving.needed) == (len(gpus), needed)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 100), st.sampled_from([16, 24, 80])), max_size=12), st.integers(0, 100))
def test_work_always_fits_on_the_gpus_it_came_from(found: list[tuple[int, int, int]], overcommit: int) -> None:
    gpus = [gpu(str(number), min(peak, total), launch, total) for number, (peak, launch, total) in enumerate(found)]
    saving = saving_of(gpus, overcommit)
    assert saving.needed <= saving.used <= saving.gpus == len(gpus) and (saving.needed > 0) == (saving.used > 0)


def test_samples_survive_their_file() -> None:
    taken = read_dcgm(exposition(), 7, 10 * S)
    assert decode_samples(b"".join(map(encode_sample, taken)) + b"\n") == taken


@pytest.fixture
def exporter() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/metrics"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(exposition().encode() if known else b"go_goroutines 7\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def wooly(tmp_path: Path) -> Wooly:
    return command_in(tmp_path)


def test_a_plain_cluster_is_watched_and_reported_again_from_the_file(exporter: str, wooly: Wooly, tmp_path: Path) -> None:
    """One source answers, one does not: it is named, and its time is not observed."""
    away = "http://127.0.0.1:1/metrics"
    found = wooly(
        "utilization", "watch", "--dcgm", f"{exporter}/metrics", "--dcgm", away, "--for", "1s", "--every", "1s", "--hour-price", "3600"
    )
    assert found.returncode == 0, found.stderr
    assert f"{away} does not answer" in found.stderr
    assert "node-1 GPU-c2f76b33" in found.stdout and "50.0 %" in found.stdout and "waste cost" in found.stdout
    # 20 and 76 GiB exceed the 80 GiB of one GPU, unless 20 % more are promised
    assert "the work of 2 of 3 GPUs would fit on 2" in found.stdout
    report = json.loads(wooly("utilization", "samples", "gpu-samples.jsonl", "--overcommit", "20", "--json").stdout)
    assert (report["saving"]["needed"], report["saving"]["freed_percent"]) == (1, 66.66)
    first = next(one for one in report["gpus"] if one["gpu"] == _GPUS[0][1])
    assert first["wall_ns"] >= S and sum(first["times"]) == first["wall_ns"] and 49.99 <= first["waste_percent"] <= 50.01
    assert len((tmp_path / "gpu-samples.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("watch",), "name what to watch"),
        (("watch", "--nvml", "--dcgm", "http://x"), "name what to watch"),
        (("watch", "--dcgm", "node1:9400"), "is not a URL"),
        (("watch", "--dcgm", "http://127.0.0.1:1/"), "nothing was sampled"),
        (("watch", "--nvml", "--for", "soon"), "is not a time such as 30s"),
        (("watch", "--nvml", "--for", "31d"), "at most 30d"),
        (("watch", "--nvml", "--file", "/proc/samples"), "cannot be written"),
        (("samples", "script.py"), "is no file of samples"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(wooly: Wooly, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "script.py").write_text("print(1)\n")
    if arguments[0] == "watch" and "--for" not in arguments:
        arguments = (*arguments, "--for", "1s")
    found = wooly("utilization", *arguments)
    assert found.returncode == 2 and said in found.stderr.replace("\n", " ")


def test_another_service_is_no_dcgm_exporter(exporter: str, wooly: Wooly) -> None:
    found = wooly("utilization", "watch", "--dcgm", exporter, "--for", "1s")
    assert found.returncode == 2 and "is it a DCGM exporter?" in found.stderr
