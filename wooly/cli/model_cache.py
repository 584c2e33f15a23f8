"""``wooly model-cache list|add|delete``: models that a node keeps, so that uploads of them need no bytes. Tensors are read from safetensors
files directly, from files of torch.save through torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import ml_dtypes
import msgspec
import numpy as np
from blake3 import blake3

from bus_schemas import subjects
from bus_schemas.batch import LIMITS
from bus_schemas.dataport import (
    MODELS_VERB,
    Forget,
    Forgotten,
    Keep,
    Kept,
    Listed,
    ModelCacheOpened,
    ModelManifest,
    Models,
    ModelTensor,
    OpenModelCache,
    check_model_name,
    encode_manifest,
)
from bus_schemas.session import NodeInfo
from wooly import config as configuration
from wooly.cli.bus import connect, discover, principal_of
from wooly.cli.group import CommandError, echo
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import bytes_text, print_json, print_table
from wooly.errors import NoServerError, ProtocolError
from wooly.transport.bus import bus_credentials
from wooly.transport.data_port import DataPort

__all__ = ["DTYPES", "ModelNode", "find_node", "model_cache", "model_files", "read_tensors"]

DTYPES: Final = {"f16": "F16", "bf16": "BF16", "f32": "F32"}
"""What floating-point tensors may be converted to, and its name in files."""

_NUMPY: Final[Mapping[str, np.dtype[Any]]] = {
    name: np.dtype(kind)
    for name, kind in {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2, "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2",
        "U8": "u1", "BOOL": "?", "C64": "<c8",
    }.items()
}  # fmt: skip
_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
_TORCH_NAMES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
_TORCH_SUFFIXES: Final = (".pt", ".pth", ".bin")
_NESTED: Final = ("state_dict", "model", "module", "model_state_dict")
"""Where checkpoints keep their weights beside other things."""
_HEADER: Final = struct.Struct("<Q")
_HEADER_BYTES_MAX: Final = 100 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """``data``: its elements in row-major order, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def model_files(source: Path) -> list[Path]:
    """The files of a model: ``source`` itself, or those of a folder, by name: its .safetensors, else what torch saved.

    Raises CommandError."""
    if not source.exists():
        raise CommandError(f"--source {source} does not exist")
    if not source.is_dir():
        if source.suffix not in (".safetensors", *_TORCH_SUFFIXES):
            raise CommandError(f"--source {source}: use a .safetensors, {', '.join(_TORCH_SUFFIXES)} file, or a folder of them")
        return [source]
    for suffixes in ((".safetensors",), _TORCH_SUFFIXES):
        found = sorted(path for path in source.iterdir() if path.suffix in suffixes)
        if found:
            return found
    raise CommandError(f"--source {source} holds no .safetensors, {', '.join(_TORCH_SUFFIXES)} file")


def read_tensors(path: Path, dtype: str | None) -> Iterator[Tensor]:
    """The tensors of one file, floating-point ones as ``dtype`` (of DTYPES; None: as they are). Raises CommandError."""
    for tensor in _safetensors(path) if path.suffix == ".safetensors" else _torch_file(path):
        yield tensor if dtype is None or tensor.dtype not in _FLOATS else _converted(tensor, DTYPES[dtype])


def _converted(tensor: Tensor, dtype: str) -> Tensor:
    """To nearest, ties to even, as torch does."""
    if dtype == tensor.dtype:
        return tensor
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range is infinite, as in torch
        values = np.frombuffer(tensor.data, _NUMPY[tensor.dtype]).astype(_NUMPY[dtype])
    return Tensor(tensor.name, dtype, tensor.shape, values.view(np.uint8).data)


# -- safetensors -----------------------------------------------------------------------------------------------------------------------


def _safetensors(path: Path) -> Iterator[Tensor]:
    """Eight bytes of length, a JSON header, then data that the header cuts."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER.size:
                raise CommandError(f"{path} is not a safetensors file: it has {size} bytes")
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror})") from None
    (length,) = _HEADER.unpack(whole[: _HEADER.size])
    start = _HEADER.size + length
    if length > _HEADER_BYTES_MAX or start > size:
        raise CommandError(f"{path} is not a safetensors file, or is cut off: its header would have {length} bytes")
    try:
        header = json.loads(bytes(whole[_HEADER.size : start]))
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, AttributeError):
        raise CommandError(f"{path} is not a safetensors file: its header cannot be read") from None
    for name, entry in entries:
        yield _entry(path, name, entry, whole[start:])


def _entry(path: Path, name: str, entry: Any, data: memoryview) -> Tensor:
    try:
        dtype, shape, (begin, end) = str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise CommandError(f"{path}: tensor {name!r} is not described as a safetensors file does") from None
    if dtype not in _NUMPY:
        raise CommandError(f"{path}: tensor {name!r} has the type {dtype}, which is not known; known are {', '.join(_NUMPY)}")
    nbytes = math.prod(shape) * _NUMPY[dtype].itemsize
    if not 0 <= begin <= end <= data.nbytes or end - begin != nbytes:
        raise CommandError(f"{path}: tensor {name!r} has {nbytes} bytes, its place is {begin}..{end} of {data.nbytes}: the file is cut off")
    return Tensor(name, dtype, shape, data[begin:end])


# -- what torch saved --------------------------------------------------------------------------------------------------------------------


def _torch_file(path: Path) -> Iterator[Tensor]:
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # a file is read here, no device is needed
    try:
        import torch
    except ImportError:
        raise CommandError(f"{path} needs torch to be read; install it, or use a .safetensors file") from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpicklers do
        reason = str(error).strip().split("\n")[0]
        raise CommandError(f"{path} is not a state dict that torch can load safely ({reason})") from None
    for name, value in _state_dict(path, loaded).items():
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout is not torch.strided or value.is_quantized:
            raise CommandError(f"{path}: tensor {name!r} is sparse or quantized; only dense ones are kept")
        kind = _TORCH_NAMES.get(str(value.dtype).removeprefix("torch."))
        if kind is None:
            raise CommandError(f"{path}: tensor {name!r} has the type {value.dtype}, which is not known")
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        yield Tensor(str(name), kind, tuple(value.shape), flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b""))


def _state_dict(path: Path, loaded: Any) -> Mapping[Any, Any]:
    """The weights in what was loaded: itself, or where checkpoints keep them."""
    import torch

    for found in (loaded, *(loaded.get(key) for key in _NESTED if isinstance(loaded, Mapping))):
        if isinstance(found, Mapping) and any(isinstance(value, torch.Tensor) for value in found.values()):
            return found
    raise CommandError(f"{path} holds no state dict: a dictionary of tensors, itself or under {', '.join(_NESTED)}")


T = TypeVar("T")

_REQUEST_S: Final = 5.0
_CHUNKS_A_ROUND: Final = 8
_opened: Final = msgspec.msgpack.Decoder(ModelCacheOpened)


def find_node(urls: Sequence[str], name: str | None, wait_s: float = 1.0) -> NodeInfo:
    """The node called ``name`` (or with this id), or the only one. Raises CommandError, NoServerError."""
    found = [node for node, _ in discover(urls, wait_s)]
    if name is not None:
        found = [node for node in found if name in (node.name, node.node)]
    if not found:
        raise CommandError(f"no node {name} answers; see: wooly ping" if name else "the bus answers, but no node is on it")
    if len(found) > 1:
        raise CommandError(f"say which node: --node {' or --node '.join(node.name for node in found)}")
    return found[0]


class ModelNode:
    """One device of a node, for one tenant. Close it after use."""

    def __init__(self, urls: Sequence[str], node: NodeInfo, tenant: str, gpu: int = 0) -> None:
        opened = asyncio.run(_open(urls, node, OpenModelCache(tenant, gpu)))
        if opened.fault is not None:
            raise CommandError(f"node {node.name}: {opened.fault.message}")
        self._port = DataPort(opened.data_port, opened.name, opened.token, bus_credentials(configuration.load(task=False), urls).tls)

    @property
    def sent_bytes(self) -> int:
        return self._port.sent_bytes

    def close(self) -> None:
        self._port.close()

    def add(self, name: str, dtype: str, tensors: Iterable[Tensor]) -> ModelManifest:
        """Keep a model; only chunks that the node lacks are sent. Raises RefusedError with the node's reason, NodeLostError."""
        sent: list[ModelTensor] = []
        waiting: list[tuple[Tensor, list[memoryview]]] = []
        for tensor in tensors:
            step = LIMITS.chunk_bytes
            waiting.append((tensor, [tensor.data[at : at + step] for at in range(0, tensor.data.nbytes, step)]))
            if sum(len(chunks) for _, chunks in waiting) >= _CHUNKS_A_ROUND:
                sent += self._send(waiting)
                waiting = []
        sent += self._send(waiting)
        manifest = ModelManifest(name, dtype, tuple(sent))
        data = encode_manifest(manifest)
        if len(data) > LIMITS.chunk_bytes:
            raise CommandError(f"a list of {len(sent)} tensors is too long to be kept; split the model")
        self._port.put([memoryview(data)])
        _expect(self._port.ask(Keep(blake3(data).digest())), Kept)
        return manifest

    def models(self) -> Listed:
        return _expect(self._port.ask(Models()), Listed)

    def delete(self, name: str) -> int:
        """Bytes that came free. Raises RefusedError when there is no such model."""
        return _expect(self._port.ask(Forget(name)), Forgotten).freed_bytes

    def _send(self, tensors: Sequence[tuple[Tensor, Sequence[memoryview]]]) -> list[ModelTensor]:
        names = iter(self._port.put([chunk for _, chunks in tensors for chunk in chunks]))
        return [
            ModelTensor(tensor.name, tensor.dtype, tensor.shape, tensor.data.nbytes, tuple(next(names) for _ in chunks))
            for tensor, chunks in tensors
        ]


def _expect(answer: object, kind: type[T]) -> T:
    if not isinstance(answer, kind):
        raise ProtocolError(f"the node answered {type(answer).__name__}: client and node are of different versions")
    return answer


async def _open(urls: Sequence[str], node: NodeInfo, request: OpenModelCache) -> ModelCacheOpened:
    import nats

    async with connect(urls) as client:
        try:
            subject = subjects.node_request(node.node, MODELS_VERB, principal_of(urls))
            answer = await client.request(subject, msgspec.msgpack.encode(request), timeout=_REQUEST_S)
            return _opened.decode(answer.data)
        except (nats.errors.Error, TimeoutError):
            raise NoServerError(f"node {node.name} does not answer; is it running, and of this version?") from None
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the node's answer is unreadable ({error}); client and node are of different versions") from error


_node_flag: Final = click.option("--node", default=None, metavar="NAME", help="The node, where there are several.")
_tenant_flag: Final = click.option("--tenant", default=None, metavar="NAME", help="Whose models (default: WOOLY_TENANT).")


@click.group("model-cache")
def model_cache() -> None:
    """Models that a node keeps: sessions with WOOLYAI_WEIGHTS_DEDUP=1 upload their weights from there."""


@model_cache.command("list")
@nats_flag
@_node_flag
@_tenant_flag
@json_flag
def list_(nats_url: str | None, node: str | None, tenant: str | None, as_json: bool) -> None:
    """List models, and what of them is on the devices."""
    config = _config(nats_url, tenant)
    info = find_node(config.nats_urls, node)
    rows, found = [], []
    used = bytes_max = 0
    for device in info.devices:
        with _closing(ModelNode(config.nats_urls, info, config.tenant, device.index)) as models:
            listed = models.models()
        used, bytes_max = listed.used_bytes, listed.bytes_max
        for at, model in enumerate(listed.models):
            found.append({"gpu": device.index, **msgspec.structs.asdict(model)})
            resident = f"{bytes_text(model.resident_bytes)} of {model.holders}" if model.holders else "no"
            here = (model.name, model.dtype, model.tensors, bytes_text(model.nbytes), model.chunks, model.chunks_missing or "")
            rows.append((at, device.index, *(here if device is info.devices[0] else ("",) * len(here)), device.index, resident))
    if as_json:
        print_json({"node": info.name, "used_bytes": used, "bytes_max": bytes_max, "models": found})
        return
    rows.sort(key=lambda row: row[:2])  # a model's devices below one another
    columns = ("model", "dtype", "tensors", "size", "chunks", "missing", "gpu", "resident, sessions")
    print_table(columns, [row[2:] for row in rows], numbers=columns[2:7], empty="no models")
    echo(f"{bytes_text(used)} of {bytes_text(bytes_max)} used on {info.name}, by all tenants")


@model_cache.command()
@nats_flag
@_node_flag
@_tenant_flag
@click.option(
    "--source", required=True, type=click.Path(path_type=Path), help="A .safetensors, .pt, .pth or .bin file, or a folder of them."
)
@click.option("--dtype", default=None, metavar="TYPE", help=f"Convert floating-point tensors: {', '.join(DTYPES)}.")
@click.option("--name", default=None, help="What to call it (default: the file's name, and the type).")
@json_flag
def add(
    nats_url: str | None, node: str | None, tenant: str | None, source: Path, dtype: str | None, name: str | None, as_json: bool
) -> None:
    """Keep a model on a node; only what the node lacks is sent."""
    if dtype is not None and dtype not in DTYPES:
        raise CommandError(f"--dtype {dtype} is not known; use {', '.join(DTYPES)}")
    config = _config(nats_url, tenant)
    files = model_files(source)
    try:
        name = check_model_name(name if name is not None else _name_of(source, dtype))
    except ValueError as error:
        raise CommandError(f"{error}; say --name") from None
    info = find_node(config.nats_urls, node)
    with _closing(ModelNode(config.nats_urls, info, config.tenant)) as models:
        kept = models.add(name, dtype or "", _tensors(files, dtype))
        sent = models.sent_bytes
    nbytes = sum(tensor.nbytes for tensor in kept.tensors)
    if as_json:
        print_json({"node": info.name, "model": name, "tensors": len(kept.tensors), "nbytes": nbytes, "sent_bytes": sent})
        return
    echo(f"{name}: {len(kept.tensors)} tensors, {bytes_text(nbytes)}, kept on {info.name}; {bytes_text(sent)} were sent")


@model_cache.command()
@nats_flag
@_node_flag
@_tenant_flag
@click.argument("name")
def delete(nats_url: str | None, node: str | None, tenant: str | None, name: str) -> None:
    """Keep a model no longer. Sessions that use it go on."""
    config = _config(nats_url, tenant)
    info = find_node(config.nats_urls, node)
    with _closing(ModelNode(config.nats_urls, info, config.tenant)) as models:
        freed = models.delete(name)
    echo(f"{name}: deleted on {info.name}, {bytes_text(freed)} are free")


def _config(nats_url: str | None, tenant: str | None) -> configuration.Config:
    given = {"WOOLY_NATS_URL": nats_url, "WOOLY_TENANT": tenant}
    config = configuration.load({key: value for key, value in given.items() if value}, task=False)
    if not config.nats_urls:
        raise CommandError("no bus is named: set WOOLY_NATS_URL, or use --nats-url nats://HOST:4222")
    return config


def _name_of(source: Path, dtype: str | None) -> str:
    stem = source.resolve().name if source.is_dir() else source.stem
    return f"{stem}-{dtype}" if dtype else stem


def _tensors(files: list[Path], dtype: str | None) -> Iterator[Tensor]:
    """Of all files; a name that two of them use is an error."""
    seen: dict[str, Path] = {}
    for path in files:
        for tensor in read_tensors(path, dtype):
            if tensor.name in seen:
                raise CommandError(f"tensor {tensor.name!r} is in {seen[tensor.name]} and in {path}; add one of them")
            seen[tensor.name] = path
            yield tensor
    if not seen:
        raise CommandError(f"{files[0]} holds no tensors")


@contextlib.contextmanager
def _closing(models: ModelNode) -> Iterator[ModelNode]:
    try:
        yield models
    finally:
        models.close()
