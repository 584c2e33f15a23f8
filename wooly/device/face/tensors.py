"""torch.Tensor as users see it: our tensors say ``cuda:0`` and move like CUDA tensors; and the legacy typed classes:
``torch.cuda.FloatTensor(2, 3)``, ``isinstance(x, torch.cuda.LongTensor)``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from wooly.device.backend import BACKEND, OURS, TensorBase, is_ours, raw_device
from wooly.device.face.api import Face, overridable, overridable_property, put, wrapping
from wooly.device.face.devices import index_of, ours, shown, to_backend

__all__ = ["patch"]

ELEMENT_TYPES: Final[dict[str, torch.dtype]] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TypedTensor(type):
    """Metaclass of the typed classes: calling one makes a tensor, and instances are our tensors of the element type."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        # As torch.FloatTensor: sizes or a torch.Size make memory, anything else is data.
        there = ours(index_of(device))
        if all(isinstance(arg, int) for arg in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device=there)
        if len(args) == 1 and isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device=there)
        if len(args) != 1:
            raise TypeError(f"new(): expected sizes or one sequence of data, got {len(args)} arguments")
        if isinstance(args[0], torch.Tensor):
            return args[0].to(device=there, dtype=cls.dtype)
        return torch.tensor(args[0], dtype=cls.dtype, device=there)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and is_ours(instance) and instance.dtype == cls.dtype


def patch_legacy(face: Face) -> None:
    """Replace torch.cuda's typed classes, and let the legacy default-type switch accept them."""
    for name, dtype in ELEMENT_TYPES.items():
        put(torch.cuda, name, _TypedTensor(name, (), {"dtype": dtype, "__module__": "torch.cuda", "is_cuda": True, "is_sparse": False}))

    original = torch.set_default_tensor_type
    new: Any = Tensor.__new__
    switched = False

    def legacy_new(*args: Any, **kwargs: Any) -> Any:  # dynamo has a replacement of the original, and compares signatures
        """``torch.Tensor(2, 3)`` and ``torch.Tensor([1])`` are of the default type, which torch's own constructor seeks on the CPU."""
        if switched and args[0] is Tensor and not kwargs:
            name = next(name for name, dtype in ELEMENT_TYPES.items() if dtype == torch.get_default_dtype())
            return getattr(torch.cuda, name)(*args[1:])
        return new(*args, **kwargs)

    @wrapping(original)
    def set_default_tensor_type(t: Any) -> None:
        nonlocal switched
        name = t if isinstance(t, str) else f"{getattr(t, '__module__', '')}.{getattr(t, '__name__', '')}"
        short = name.removeprefix("torch.cuda.")
        if short != name and short in ELEMENT_TYPES:
            torch.set_default_dtype(ELEMENT_TYPES[short])
            torch.set_default_device("cuda")
            switched = True
            put(Tensor, "__new__", legacy_new)  # stays: a type's own constructor does not come back when it is deleted
            return
        original(t)
        if switched:
            torch.set_default_device(None)
            switched = False

    put(torch, "set_default_tensor_type", set_default_tensor_type)


_PINNED: Final = "_wooly_pinned"  # an attribute of a CPU storage; torch keeps the Python object as long as the memory lives
_CUDA_TYPE: Final = "torch.cuda."
_BACKEND_TYPE: Final = f"torch.{BACKEND}."


def patch(face: Face) -> None:
    """Give torch.Tensor its face."""
    _attributes()
    _moves()
    _subclasses()
    _types()
    _pinning()
    _printing()
    _data()
    _script_modules()


def _attributes() -> None:
    def device(self: Tensor) -> torch.device:
        found = raw_device(self)
        return shown(found) if found.type in OURS else found

    put(Tensor, "device", overridable_property(device, None, TensorBase.device))
    put(Tensor, "is_cuda", overridable_property(is_ours, None, TensorBase.is_cuda))
    original = Tensor.get_device

    @overridable(original)
    def get_device(self: Tensor) -> int:
        index = device(self).index
        return original(self) if index is None else index

    put(Tensor, "get_device", get_device)


def _moves() -> None:
    original = Tensor.to

    @overridable(original)
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args:
            first = args[0]
            if isinstance(first, str | int | torch.device):
                args = (to_backend(first), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = to_backend(kwargs["device"])
        return original(self, *args, **kwargs)

    @overridable(Tensor.cuda)
    def cuda(
        self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        return original(self, ours(index_of(device)), non_blocking=non_blocking, memory_format=memory_format)

    put(Tensor, "to", to)
    put(Tensor, "cuda", cuda)
    # The parameters of lazy modules allow methods by identity, from a list made while torch was imported.
    lazy: Any = torch.nn.parameter
    lazy.UninitializedTensorMixin._allowed_methods.extend([to, cuda])


def _subclasses() -> None:
    """Tensors that wrap others (DTensor, results on their way from a collective, fake tensors) are on the device that the others show."""
    for name, keyword in (("_make_wrapper_subclass", "device"), ("_make_subclass", "device_for_backend_keys")):
        put(Tensor, name, staticmethod(_with_backend_device(getattr(Tensor, name), keyword)))
    raw: Any = FakeTensor.device
    put(FakeTensor, "fake_device", property(_fake_device, _set_fake_device))  # what C++ sees: its streams are those of ours
    put(FakeTensor, "device", property(lambda self: shown(raw.fget(self)), raw.fset))


def _fake_device(self: Any) -> torch.device:
    found: torch.device = self._fake_device
    return found


def _set_fake_device(self: Any, device: Any) -> None:
    self._fake_device = to_backend(device)


def _with_backend_device(original: Any, keyword: str) -> Any:
    @wrapping(original)
    def made(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get(keyword) is not None:
            kwargs[keyword] = to_backend(kwargs[keyword])
        result: Tensor = original(*(to_backend(arg) if isinstance(arg, torch.device) else arg for arg in args), **kwargs)
        return result

    return made


def _types() -> None:
    original = Tensor.type

    @overridable(original)
    def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = original(self)
            return name.replace(_BACKEND_TYPE, _CUDA_TYPE)
        wanted = dtype if isinstance(dtype, str) else _class_name(dtype)
        if wanted.startswith(_CUDA_TYPE):
            element = _element_type(wanted)
            there = raw_device(self) if is_ours(self) else ours(index_of(None))
            return self.to(device=there, dtype=element, non_blocking=non_blocking)
        return original(self, dtype, non_blocking, **kwargs)

    put(Tensor, "type", type_)


def _class_name(dtype: Any) -> str:
    return f"{getattr(dtype, '__module__', '')}.{getattr(dtype, '__name__', '')}"


def _element_type(name: str) -> torch.dtype:
    """The dtype of a legacy type name such as ``torch.cuda.HalfTensor``; raises ValueError for one that does not exist."""

    short = name.removeprefix(_CUDA_TYPE)
    if short not in ELEMENT_TYPES:
        raise ValueError(f"invalid type: '{name}'")
    return ELEMENT_TYPES[short]


def _pinning() -> None:
    def mark_pinned(tensor: Tensor) -> Tensor:
        setattr(tensor.untyped_storage(), _PINNED, True)
        return tensor

    @overridable(Tensor.is_pinned)
    def is_pinned(self: Tensor, device: Any = None) -> bool:
        return not is_ours(self) and self.layout is torch.strided and getattr(self.untyped_storage(), _PINNED, False)

    @overridable(Tensor.pin_memory)
    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        if raw_device(self).type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        # There is no local device to pin for; a copy, as CUDA makes, keeps the two from aliasing.
        return self if is_pinned(self) else mark_pinned(self.clone(memory_format=torch.preserve_format))

    put(Tensor, "is_pinned", is_pinned)
    put(Tensor, "pin_memory", pin_memory)


def _printing() -> None:
    from torch import _tensor_str as typed_tensor_str

    _tensor_str: Any = typed_tensor_str  # untyped in torch
    original = _tensor_str._tensor_str

    @wrapping(original)
    def tensor_str(self: Tensor, indent: int) -> Any:
        # Formatting looks at many small results; on a copy here it is one look.
        return original(self.detach().to("cpu") if is_ours(self) else self, indent)

    put(_tensor_str, "_tensor_str", tensor_str)


def _data() -> None:
    get, set_ = TensorBase.data.__get__, TensorBase.data.__set__

    def set_data(self: Tensor, value: Tensor) -> None:
        if isinstance(value, Tensor) and (is_ours(self) != is_ours(value) or (is_ours(self) and _reading(self) != _reading(value))):
            _become(self, value)
        else:
            set_(self, value)

    put(Tensor, "data", overridable_property(get, set_data, TensorBase.data))

    original = torch._has_compatible_shallow_copy_type

    @wrapping(original)
    def has_compatible_shallow_copy_type(tensor: Tensor, other: Tensor) -> bool:
        # Module.to asks this to decide between `param.data = moved` and a new Parameter; with `data` as above the first works
        # across devices too, so parameters keep their identity as they do on CUDA.
        if {raw_device(tensor).type, raw_device(other).type} == {"cpu", BACKEND} and type(other) in (Tensor, torch.nn.Parameter):
            return True
        return original(tensor, other)

    put(torch, "_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type)


def _reading(tensor: Tensor) -> tuple[bool, bool]:
    """Is its memory read as conjugate, as negative?"""
    keys = torch._C._dispatch_keys(tensor)  # which lazy parameters have too
    return keys.has(torch._C.DispatchKey.Conjugate), keys.has(torch._C.DispatchKey.Negative)


def _become(tensor: Tensor, value: Tensor) -> None:
    """``tensor.data = value`` between the CPU and the device, or where one of both is a lazy conjugate: the Python object stays, what it
    stands for is exchanged.

    torch's own assignment copies the new contents into the C++ tensor, which it does not allow there.
    """
    if not tensor.is_leaf:
        with torch.enable_grad():
            fresh = _Moved.apply(tensor, value.detach())  # type: ignore[no-untyped-call]  # in torch
        torch._C._swap_tensor_impl(tensor, fresh)
        return
    gradient = tensor.grad
    fresh = value.detach()
    if fresh is value or value._is_view():
        fresh = fresh.view_as(fresh)
    fresh.requires_grad_(tensor.requires_grad)
    if gradient is not None:
        fresh.grad = gradient.detach().to(device=raw_device(value), dtype=value.dtype)
    torch._C._swap_tensor_impl(tensor, fresh)
    if not tensor.requires_grad:
        return
    hooked: Any = tensor
    if hooked._backward_hooks is not None:  # what was exchanged had them
        hooked._backward_hooks = hooked._backward_hooks
    if hooked._post_accumulate_grad_hooks is not None:
        hooked._post_accumulate_grad_hooks = hooked._post_accumulate_grad_hooks
    # Graphs that were recorded before bring their gradients to what ``fresh`` is now.
    fresh.register_post_accumulate_grad_hook(partial(_hand_over, tensor))  # type: ignore[no-untyped-call]  # in torch


def _hand_over(tensor: Tensor, before: Tensor) -> None:
    """A gradient came for what ``tensor`` was before: it is the tensor's."""
    gradient, before.grad = before.grad, None
    if gradient is None:
        return
    moved = gradient.detach().to(device=raw_device(tensor), dtype=tensor.dtype)
    tensor.grad = moved if tensor.grad is None else tensor.grad + moved
    hooks: Any = tensor._post_accumulate_grad_hooks
    for hook in list((hooks or {}).values()):
        hook(tensor)


class _Moved(torch.autograd.Function):
    """What a tensor becomes that a graph has made: its gradient goes to where it was."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, value: Tensor) -> Tensor:
        ctx.device, ctx.dtype = raw_device(before), before.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.to(device=ctx.device, dtype=ctx.dtype), None


_FLAT: Final = "_flat_weights"  # the attribute in which recurrent layers keep their parameters as a list


def _script_modules() -> None:
    """Modules of TorchScript hold C++ tensors, for which ``data`` has put others into the Python objects: they are given these, in every
    place that shared one."""
    from torch.jit import _script

    module: Any = _script.ScriptModule
    original = module._apply

    @wrapping(original)
    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        parts = list(self.modules()) if recurse else [self]
        held = [(part, name, parameter) for part in parts for name, parameter in part._parameters.items()]
        places: dict[int, list[tuple[Any, str]]] = {}
        for part, name, parameter in held:
            places.setdefault(id(parameter), []).append((part, name))
        recurrent = [(part._c, part._c.getattr(_FLAT)) for part in parts if isinstance(part, module) and part._c.hasattr(_FLAT)]
        for part in parts:
            own = [parameter for _, parameter in part._parameters.items()]
            original(part, fn, recurse=False)
            for parameter in own:
                for owner, name in places[id(parameter)]:
                    owner._parameters[name] = parameter
        for part, weights in recurrent:
            part.setattr(_FLAT, weights)
        return self

    put(module, "_apply", apply)
