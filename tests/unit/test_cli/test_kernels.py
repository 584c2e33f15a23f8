"""``wooly wis`` with kernels: from CUDA C++ to a module, its text and its facts, and runs on NumPy arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.command import Wooly

SOURCE = r"""
__constant__ float scale = 2.0f;
extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i] * scale;
}
extern "C" __global__ void reverse(const int *in, int *out) {
    __shared__ int s[64];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.fixture
def module(wooly: Wooly, tmp_path: Path) -> Path:
    (tmp_path / "k.cu").write_text(SOURCE)
    done = wooly("wis", "compile", "k.cu", "-o", "k.wis")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "k.wis: saxpy, reverse\n"
    return tmp_path / "k.wis"


def test_text_and_bytes_are_one(wooly: Wooly, module: Path) -> None:
    text = wooly("wis", "dis", "k.wis").stdout
    assert text.startswith("module 1\n") and "entry saxpy" in text
    (module.parent / "k.txt").write_text(text)
    assert wooly("wis", "asm", "k.txt", "-o", "again.wis").returncode == 0
    assert (module.parent / "again.wis").read_bytes() == module.read_bytes()


def test_findings_of_a_kernel_stand_in_its_text(wooly: Wooly, module: Path) -> None:
    assert [line.split()[0] for line in wooly("wis", "verify", "k.wis").stdout.splitlines()] == ["ok", "ok"]
    text = wooly("wis", "dis", "k.wis").stdout
    (module.parent / "broken.txt").write_text(text.replace("bar 1", "bar 9"))
    found = wooly("wis", "verify", "broken.txt")
    assert found.returncode == 2 and "bar 9  ; error: [reference]" in found.stdout and "break 1 rule" in found.stderr


def test_a_run_on_arrays(wooly: Wooly, module: Path) -> None:
    folder = module.parent
    np.save(folder / "x.npy", np.arange(100, dtype=np.float32))
    args = ("-a", "100", "-a", "0.5", "-a", "x.npy", "-a", "zeros:f32:100")
    done = wooly("wis", "run", "k.wis", "-k", "saxpy", "-g", "4", "-b", "32", *args, "-o", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("thread-instructions")
    assert (np.load(folder / "out" / "arg3.npy") == np.arange(100, dtype=np.float32) / 2).all()


def test_a_run_that_traps_says_where(wooly: Wooly, module: Path) -> None:
    done = wooly("wis", "run", "k.wis", "-k", "reverse", "-b", "65", "-a", "zeros:i32:65", "-a", "zeros:i32:65")
    assert done.returncode == 2
    assert (
        "trap: kernel reverse: load of u32 from shared memory outside of it; in block (0, 0, 0), thread (0, 0, 0), k.cu:11" in done.stdout
    )


def test_a_run_out_of_fuel(wooly: Wooly, module: Path) -> None:
    args = ("-a", "100", "-a", "0.5", "-a", "zeros:f32:100", "-a", "zeros:f32:100")
    done = wooly("wis", "run", "k.wis", "-k", "saxpy", "-g", "4", "--fuel", "10", *args)
    assert done.returncode == 2 and "out of fuel" in done.stdout


def test_facts(wooly: Wooly, module: Path) -> None:
    facts = {fact["kernel"]: fact for fact in json.loads(wooly("wis", "stats", "k.wis", "-b", "64", "--json").stdout)}
    assert facts["saxpy"]["sliceable"] and facts["saxpy"]["barriers"] == "none" and facts["reverse"]["barriers"] == "uniform"
    accesses = {access["what"]: access["safe"] for access in facts["reverse"]["accesses"]}
    assert accesses["store of u32 to shared memory"] is True, "tid.x < 64 fits 64 words"
    assert facts["reverse"]["shared_bytes"] == 256
    wide = json.loads(wooly("wis", "stats", "k.wis", "-k", "reverse", "-b", "65", "--json").stdout)[0]
    assert not any(access["safe"] for access in wide["accesses"] if "shared" in access["what"])
    assert "sliceable" in wooly("wis", "stats", "k.wis").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "k.wis"), "choose one with --kernel: saxpy, reverse"),
        (("run", "k.wis", "-k", "nothing"), "no kernel 'nothing'"),
        (("run", "k.wis", "-k", "reverse"), "takes 2 arguments"),
        (("run", "k.wis", "-k", "reverse", "-a", "absent.npy", "-a", "null"), "absent.npy"),
        (("run", "k.wis", "-k", "reverse", "-a", "zeros:x:3", "-a", "null"), "zeros:TYPE:N"),
        (("run", "k.wis", "-k", "saxpy", "-a", "x", "-a", "1", "-a", "null", "-a", "null"), "takes a number"),
        (("run", "k.wis", "-k", "reverse", "-b", "2000", "-a", "null", "-a", "null"), "2000 threads"),
        (("run", "k.wis", "-k", "reverse", "-b", "4,x", "-a", "null", "-a", "null"), "one to three sizes"),
        (("stats", "k.cu"), "k.cu"),
        (("compile", "bad.cu"), "undefined"),
        (("compile", "bad.ptx"), "bad.ptx"),
    ],
)
def test_mistakes(wooly: Wooly, module: Path, arguments: tuple[str, ...], says: str) -> None:
    (module.parent / "bad.cu").write_text('extern "C" __global__ void f(int *a) { a[0] = nonsense; }')
    (module.parent / "bad.ptx").write_text(".version 99.0\n.target sm_90\n.address_size 64\n")
    done = wooly("wis", *arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr
