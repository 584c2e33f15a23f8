"""``python -P -m services.server.executor``: started by the node server, configured by one JSON object in WOOLY_EXECUTOR."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import socket
import ssl
import sys
import time
from glob import glob
from pathlib import Path
from typing import Final

import msgspec

from jit.backends import create_engine
from jit.errors import ToolchainError, UnknownBackend
from services.kit.at_rest import read_key_wrap
from services.kit.errors import SettingError
from services.kit.log import get_logger, setup_logging
from services.kit.tls import certified_context
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort, listen
from services.server.executor.loop import Commands, Executor
from services.server.executor.memory import DeviceMemory
from services.server.executor.model_cache import CachePort, ModelCache
from services.server.executor.quota_watch import QuotaWatch
from services.server.executor.staging import Staging
from services.server.model_cache_door import opens
from services.server.settings import EXECUTOR_VARIABLE, ExecutorSettings
from wooly.shared.files import more_files
from wooly_server.cgroup import enter_cgroup
from wooly_server.isolation import User
from wooly_server.sandbox import enter, for_programs

_SWITCH_INTERVAL_S: Final = 0.0005
"""The launching thread must not wait Python's default 5 ms for the preparing one or the data port."""

_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Cached programs are large graphs without cycles: looking through them often would show as pauses between launches."""


_FILES_MAX: Final = 16_384
"""Half of them are for swapping, compilers, caches: connections must not use up the files that are needed to read swapped memory back."""
_DEVICES: Final = ("/dev/dri/*", "/dev/kfd", "/dev/nvidia*")
"""Device files of GPUs: the executor keeps the groups that may use them."""


def main() -> int:
    faulthandler.enable()  # a crash in native code says where
    setup_logging("executor")
    settings = msgspec.json.decode(os.environ[EXECUTOR_VARIABLE], type=ExecutorSettings)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    log = get_logger()
    quotas = QuotaWatch()
    # The files of their keys are out of reach from here on, and so is the network.
    tls, cache = _tls(settings), _model_cache(settings, quotas)
    try:
        commands, sockets = _open_sockets(settings)
    except OSError as error:
        log.error("no data port", host=settings.data_host, port=settings.data_port, problem=str(error))
        return 2
    held = _enter_sandbox(settings)
    try:
        engine = create_engine(
            settings.backend,
            cache_dir=Path(settings.cache_dir),
            threads=settings.threads,
            vram_bytes=settings.vram_bytes,
            fuel=settings.fuel,
            device=settings.gpu,
            compile_ms=settings.compile_ms,
        )
    except (UnknownBackend, ToolchainError) as error:
        log.error("no engine", backend=settings.backend, problem=str(error))
        return 2
    staging = Staging(settings.staged_bytes, engine.info.vram_bytes, quotas)
    content = Content(staging, cache)

    def open_cache(name: str, token: str) -> CachePort | None:
        domain = None if cache is None else opens(cache.key, name, token, int(time.time()))
        return None if cache is None or domain is None else CachePort(cache, content, domain)

    data_port = DataPort(
        staging,
        content,
        sockets,
        settings.data_host_advertised,
        open_cache=open_cache,
        tls=tls,
        connections_max=more_files(_FILES_MAX) // 2,
    )
    data_port.start()
    kept = settings.model_cache_state if cache is not None else ""
    log.info("executor ready", gpu=settings.gpu, backend=engine.info.backend, cores=engine.info.cores, sandbox=held, model_cache=kept)
    memory = DeviceMemory(engine, content, settings.memory)
    Executor(
        engine=engine,
        commands=commands,
        data_port=data_port,
        staging=staging,
        content=content,
        memory=memory,
        quotas=quotas,
        orphan_s=settings.orphan_s,
    ).serve()
    memory.shut()
    engine.close()
    return 0


def _open_sockets(settings: ExecutorSettings) -> tuple[Commands, list[socket.socket]]:
    """The command socket, and those of the data port. Raises OSError."""
    for path in (settings.socket, settings.data_socket):
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Commands.open(Path(settings.socket)), listen(Path(settings.data_socket), settings.data_host, settings.data_port)


def _enter_sandbox(settings: ExecutorSettings) -> tuple[str, ...]:
    """The layers that hold, and those that do not: what a tenant's program could break out to is the device and the executor's folders."""
    limits = enter_cgroup(settings.limits)
    if not settings.sandbox:
        return ("no sandbox: WOOLY_SANDBOX is 0", *limits)
    cache = Path(settings.cache_dir)
    devices = settings.backend in ("opencl", "cuda")
    os.environ |= {"TMPDIR": str(cache / "tmp"), "XDG_CACHE_HOME": str(cache)}
    caches = (("CUPY_CACHE_DIR", "cupy"), ("CUDA_CACHE_PATH", "nv"), ("POCL_CACHE_DIR", "pocl")) if devices else ()
    own = {str(cache), str(cache / "tmp"), settings.memory.swap_dir, settings.model_cache_dir}
    own = {*own, *(os.environ.setdefault(name, str(cache / folder)) for name, folder in caches)} - {""}
    for folder in own:
        with contextlib.suppress(OSError):  # what cannot be used is reported where it is used
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    groups = tuple({Path(path).stat().st_gid for name in _DEVICES for path in glob(name)} - {0}) if devices else ()
    sandbox = for_programs(
        write=tuple(sorted(filter(os.path.isdir, own))),
        devices=devices,
        sockets=devices,
        connect=devices,  # drivers do, to sockets of this machine
        execute=True,  # the compile process
        user=None if settings.user is None else User(*settings.user, groups),
        files=more_files(_FILES_MAX),
        processes=settings.limits.processes,
    )
    return (*enter(sandbox), *limits)


def _tls(settings: ExecutorSettings) -> ssl.SSLContext | None:
    """With the node's certificate; the server has looked that it can be used."""
    return None if settings.tls_files is None else certified_context(*settings.tls_files)


def _model_cache(settings: ExecutorSettings, quotas: QuotaWatch) -> ModelCache | None:
    """The node's model cache; None when it has none, or its folder cannot be used: a node works without."""
    if not settings.model_cache_dir:
        return None
    try:
        wrap = read_key_wrap(settings.at_rest_key_file)
        return ModelCache(Path(settings.model_cache_dir), settings.model_cache_bytes, settings.tenant_model_cache_bytes, wrap, quotas)
    except (OSError, SettingError) as error:
        get_logger().error("no model cache", folder=settings.model_cache_dir, problem=str(error))
        return None


if __name__ == "__main__":
    sys.exit(main())
