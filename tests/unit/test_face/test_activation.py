"""Switching on: only when asked, cheap when not, never breaking ``import torch``, refusing what is not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fork_server import run_script
from tests.support.stack import plain_environment
from wooly.config import HIDE_LOCAL, Config
from wooly.device.face import checks
from wooly.errors import ActivationError, UnsupportedTorch
from wooly.remedies import check_version


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh interpreter without any configuration but ``environ``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WOOLY", "CONTROLLER", "GPU", "PRIO", "REQUIRED", "TORCH_DEVICE"))}
    kept |= {"OMP_NUM_THREADS": "1", "HOME": "/nonexistent", **environ}
    return subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, timeout=120, check=False)


def script(folder: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a copy of an interpreter that has imported torch."""
    path = folder / "script.py"
    path.write_text(code)
    return run_script(path, env=plain_environment(HOME="/nonexistent", **environ), cwd=folder)


def test_nothing_happens_unasked() -> None:
    found = python(
        "import sys, torch\n"
        "print(torch.cuda.is_available(), sorted(m for m in sys.modules if m.startswith(('wooly', 'bus_schemas', 'wis', 'nats', 'click'))))"
    )
    assert found.stdout == "False ['wooly', 'wooly._autoload', 'wooly.config', 'wooly.errors']\n" and found.stderr == ""


def test_nothing_costs_less_than_20_ms_of_processor_time() -> None:
    code = (
        "import sys, time\n"
        "import dataclasses, re, tomllib  # torch loads these itself\n"
        "start = time.process_time()\n"
        "from wooly._autoload import autoload\n"
        "autoload()\n"
        "print((time.process_time() - start) * 1e3)"
    )
    assert any(float(python(code).stdout) < 20 for _ in range(10)), "cold caches make some of them longer, not all"


def test_the_bus_in_the_environment_switches_it_on() -> None:
    # No bus answers there: nothing connects before the device is used.
    found = python("import torch; print(torch.cuda.is_available(), torch.cuda.device_count())", WOOLY_NATS_URL="nats://127.0.0.1:1")
    assert found.stdout == "True 1\n" and found.stderr == ""


def test_a_mistyped_variable_is_said_once() -> None:
    found = python("import torch; torch.cuda.is_available()", WOOLY_NATS_URL="nats://127.0.0.1:1", WOOLY_WEIGTH="200")
    assert found.stderr == "wooly: WOOLY_WEIGTH is not a variable that wooly knows, so it does nothing (did you mean WOOLY_WEIGHT?)\n"
    assert found.returncode == 0 and python("import torch", WOOLY_WEIGTH="200").stderr == ""


@pytest.mark.parametrize(
    ("value", "shown"), [("", "False 0"), ("-1", "False 0"), ("-1,0", "False 0"), ("0", "True 1"), ("remote", "True 1")]
)
def test_cuda_visible_devices_hides_the_device(value: str, shown: str, tmp_path: Path) -> None:
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    found = script(tmp_path, code, WOOLY_NATS_URL="nats://127.0.0.1:1", CUDA_VISIBLE_DEVICES=value)
    assert found.stdout == f"{shown}\n" and found.stderr == ""


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "7", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-0"])
def test_a_script_that_uses_a_hidden_device_fails_as_on_cuda(value: str, tmp_path: Path) -> None:
    found = script(tmp_path, "import torch; torch.zeros(1, device='cuda')", WOOLY_NATS_URL="nats://127.0.0.1:1", CUDA_VISIBLE_DEVICES=value)
    assert found.returncode == 1 and "RuntimeError: No CUDA GPUs are available" in found.stderr.splitlines()[-1]
    assert "stays off" not in found.stderr


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_refused_in_one_sentence(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ActivationError, match=f"^the client runs on Linux only, and this is {platform}: run the script in"):
        checks.check_process(Config())


def test_the_bus_in_the_config_file_switches_it_on(tmp_path: Path) -> None:
    (tmp_path / "config").write_text('WOOLY_NATS_URL = "nats://127.0.0.1:1"\nGPU_COUNT = 2\n')
    found = python(
        "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())", WOOLYAI_CLIENT_CONFIG=str(tmp_path / "config")
    )
    assert found.stdout == "True 2\n"


def test_no_bus_is_an_error_at_first_use_that_says_so() -> None:
    found = python("import torch; torch.zeros(1, device='cuda')", WOOLY_NATS_URL="nats://127.0.0.1:1", WOOLY_RECOVERY_WAIT_S="0")
    assert found.returncode == 1 and "NoServerError: no NATS server answers at nats://127.0.0.1:1" in found.stderr
    assert "check WOOLY_NATS_URL" in found.stderr


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"WOOLY_NATS_URL": "bus:4222"}, "WOOLY_NATS_URL='bus:4222' (from the environment) is not allowed"),
        (
            {"WOOLY_NATS_URL": "nats://b:1", "PRIO": "9"},
            "PRIO='9' (from the environment) is not allowed; use an integer from 0 (highest) to 4",
        ),
        ({"WOOLYAI_CLIENT_CONFIG": "/nonexistent/config"}, "WOOLYAI_CLIENT_CONFIG names /nonexistent/config, which does not exist"),
        ({"WOOLY_NATS_URL": "nats://b:1", "WOOLY_QUEUE": "1"}, "WOOLY_QUEUE='1' (from the environment) needs a controller"),
    ],
)
def test_a_script_that_asked_for_the_device_and_cannot_have_it_fails(environ: dict[str, str], says: str, tmp_path: Path) -> None:
    code = "import torch; print(torch.cuda.is_available(), torch.ones(2).sum().item())"
    found = python(code, **environ)
    assert found.returncode == 1 and found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert (
        line.startswith("wooly: ")
        and says in line
        and line.endswith("; WOOLY_ON_FAILURE=cpu runs the script on the CPU, `wooly doctor` shows more")
    )
    found = script(tmp_path, code, WOOLY_ON_FAILURE="cpu", **environ)
    assert found.returncode == 0 and found.stdout == "False 2.0\n"
    assert found.stderr.startswith("wooly: the remote device stays off: ") and says in found.stderr and found.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["wis", "bus_schemas"])
@pytest.mark.parametrize("order", ["import torch, {}", "import {}, torch"])
def test_a_module_of_the_users_may_be_named_like_one_of_ours(name: str, order: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("MINE = 7\n")
    (tmp_path / "train.py").write_text(f"{order.format(name)}\nimport wooly.session\nprint(torch.cuda.device_count(), {name}.MINE)\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import train"
    found = python(code, WOOLY_NATS_URL="nats://127.0.0.1:1")
    assert found.stdout == "1 7\n" and found.returncode == 0, found.stderr


def test_a_package_of_the_users_that_hides_one_of_ours_is_named(tmp_path: Path) -> None:
    """The script asked for the device: it must not run on without it for the name of a folder."""
    (tmp_path / "wis").mkdir()
    (tmp_path / "wis" / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text("import torch; print('ran')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import train"
    found = python(code, WOOLY_NATS_URL="nats://127.0.0.1:1")
    assert found.returncode == 1 and found.stdout == ""
    assert f"{tmp_path / 'wis' / '__init__.py'} hides the package 'wis' that wooly needs: rename it" in found.stderr
    assert python(code).stdout == "ran\n", "a script that does not ask for the device is left alone"


def test_warnings_as_errors_do_not_break_it_either() -> None:
    found = python("import torch; print('imported')", WOOLY_NATS_URL="bus", WOOLY_ON_FAILURE="cpu", PYTHONWARNINGS="error")
    assert found.stdout == "imported\n" and found.returncode == 0


def test_launched_a_mistake_is_an_error_of_its_own_kind() -> None:
    code = "from wooly import _autoload; _autoload.launch({}); import torch"
    found = python(code, WOOLY_NATS_URL="bus:4222")
    assert found.returncode == 1 and "ConfigError: WOOLY_NATS_URL='bus:4222'" in found.stderr
    assert python(code, WOOLY_NATS_URL="bus:4222", WOOLY_ON_FAILURE="cpu").returncode == 0


def test_a_backward_pass_comes_after_switching_on() -> None:
    code = (
        "import torch\n"
        "x = torch.ones(2, requires_grad=True); (x * 2).sum().backward()\n"
        "from wooly.device.face.checks import check_autograd\n"
        "check_autograd(torch)"
    )
    found = python(code)
    assert "ActivationError: autograd was already used in this process" in found.stderr
    assert python(code.replace("(x * 2).sum().backward()", "pass")).returncode == 0


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.1+cu132", "2.14.0a0+git1"])
def test_tested_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["2.9.1", "2.16.0", "3.0.0", "1.13.1", "nonsense"])
def test_untested_versions(version: str) -> None:
    with pytest.raises(UnsupportedTorch, match=r"is not tested with this version of wooly; install torch 2\.10 to 2\.15"):
        check_version(version)


def test_every_private_name_is_here_and_a_missing_one_is_named() -> None:
    assert checks.missing_names(torch) == []
    bare = SimpleNamespace(_C=SimpleNamespace(_swap_tensor_impl=None))
    missing = checks.missing_names(bare)
    assert "_C._acc.create_empty_tensor" in missing and "_C._swap_tensor_impl" not in missing


def pretend(*, has_cuda: bool, gpus: int = 0, hip: str | None = None, initialized: bool = False) -> Any:
    """A torch as far as the check of a local GPU looks at it: the machine under test has no GPU to show."""
    cuda = SimpleNamespace(device_count=lambda: gpus, is_initialized=lambda: initialized)
    return SimpleNamespace(_C=SimpleNamespace(_has_cuda=has_cuda), cuda=cuda, version=SimpleNamespace(hip=hip))


def test_a_local_gpu_is_never_taken_over_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ActivationError, match="this machine has 1 GPU of its own, which stays in use; set WOOLY_LOCAL_GPU=1"):
        checks.check_local_gpu(pretend(has_cuda=True, gpus=1), opted_in=False)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    checks.check_local_gpu(pretend(has_cuda=True, gpus=0), opted_in=False)
    checks.check_local_gpu(pretend(has_cuda=False, gpus=1), opted_in=False)


def test_a_local_gpu_is_hidden_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ActivationError, match="before the local GPU is first used"):
        checks.check_local_gpu(pretend(has_cuda=True, gpus=1, initialized=True), opted_in=True)
    checks.check_local_gpu(pretend(has_cuda=True, gpus=1), opted_in=True)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == HIDE_LOCAL


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_script_that_hides_every_device_sees_no_remote_one(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    checks.check_local_gpu(pretend(has_cuda=True, gpus=1), opted_in=True)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == value


def test_rocm_is_not_tested() -> None:
    with pytest.raises(UnsupportedTorch, match="ROCm"):
        checks.check_local_gpu(pretend(has_cuda=True, hip="6.4"), opted_in=False)


def test_the_versions_agree() -> None:
    import tomllib

    import wooly

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["version"] == wooly.__version__
    assert project["entry-points"]["torch.backends"] == {"wooly": "wooly._autoload:autoload"}
