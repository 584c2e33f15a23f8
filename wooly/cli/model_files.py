"""Reads tensors from model files: safetensors directly, files of torch.save through torch."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from wooly.cli.errors import CommandError

__all__ = ["DTYPES", "Tensor", "model_files", "read_tensors"]

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
