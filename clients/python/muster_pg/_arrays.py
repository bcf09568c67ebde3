"""Arrays of numpy and torch as objects: dtype, shape and bytes, as Go's tensor.Tensor has them.

Neither library is imported before a rank passes an array of it, or asks for one.
"""

from __future__ import annotations

import array
import math
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._errors import Invalid, make

# By name: the number of a dtype, its bits, and its name in numpy (or ml_dtypes) and torch; "" if they have none.
_DTYPES: Dict[str, Tuple[int, int, str]] = {
    "BOOL": (1, 8, "bool"),
    "F4": (2, 4, "float4_e2m1fn_x2"),
    "F6_E2M3": (3, 6, ""),
    "F6_E3M2": (4, 6, ""),
    "U8": (5, 8, "uint8"),
    "I8": (6, 8, "int8"),
    "F8_E5M2": (7, 8, "float8_e5m2"),
    "F8_E4M3": (8, 8, "float8_e4m3fn"),
    "F8_E8M0": (9, 8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (10, 8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (11, 8, "float8_e5m2fnuz"),
    "I16": (12, 16, "int16"),
    "U16": (13, 16, "uint16"),
    "F16": (14, 16, "float16"),
    "BF16": (15, 16, "bfloat16"),
    "I32": (16, 32, "int32"),
    "U32": (17, 32, "uint32"),
    "F32": (18, 32, "float32"),
    "C64": (19, 64, "complex64"),
    "F64": (20, 64, "float64"),
    "I64": (21, 64, "int64"),
    "U64": (22, 64, "uint64"),
}
_BY_NUMBER = {number: name for name, (number, _, _) in _DTYPES.items()}
_BY_LIBRARY = {theirs: name for name, (_, _, theirs) in _DTYPES.items() if theirs}
_KEYS = {"DType", "Data", "Shape"}
_FORMATS = {"?": "BOOL", "B": "U8", "b": "I8", "h": "I16", "H": "U16", "e": "F16", "i": "I32", "I": "U32", "f": "F32", "d": "F64", "q": "I64", "Q": "U64"}
if array.array("l").itemsize == 8:
    _FORMATS.update(l="I64", L="U64")
else:
    _FORMATS.update(l="I32", L="U32")


class Array:
    """An array that another rank has sent: its dtype (by the name in safetensors files, such as
    F32), its shape, and its bytes, row by row and little-endian.

    A rank that passes no array of its own to a verb gets these: numpy() and torch() make arrays of
    those libraries, as does numpy.asarray(a).
    """

    def __init__(self, dtype: str, shape: Sequence[int], data: Any) -> None:
        """data has the buffer protocol, and exactly the bytes of such an array."""
        self.dtype, self.shape, self.data = dtype, tuple(shape), memoryview(data).cast("B")
        if dtype not in _DTYPES:
            raise make(Invalid, f"{dtype!r} is no dtype: there are {', '.join(_DTYPES)}")
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in self.shape):
            raise make(Invalid, f"{list(self.shape)} is no shape")
        if _DTYPES[dtype][1] * math.prod(self.shape) != 8 * len(self.data):
            raise make(Invalid, f"{self} does not have {len(self.data)} bytes")

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        return f"<muster_pg.Array {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Tuple[Any, ...]:
        return Array, (self.dtype, self.shape, bytes(self.data))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def numpy(self) -> Any:
        """Returns a numpy array of its own memory; of bfloat16 and 8-bit floats with ml_dtypes."""
        import numpy

        name = _DTYPES[self.dtype][2]
        try:
            dtype: Any = numpy.dtype(name or self.dtype)
        except TypeError:
            raise make(Invalid, f"numpy has no {name or self.dtype}: import ml_dtypes, or use torch()") from None
        return numpy.frombuffer(bytearray(self.data), numpy.uint8).view(dtype).reshape(self.shape)

    def torch(self) -> Any:
        """Returns a torch tensor of its own memory."""
        import torch

        dtype = getattr(torch, _DTYPES[self.dtype][2] or self.dtype, None)
        if dtype is None:
            raise make(Invalid, f"this version of torch has no {_DTYPES[self.dtype][2] or self.dtype}")
        shape = self.shape if self.dtype != "F4" else (*self.shape[:-1], self.shape[-1] // 2)
        if not self.data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=torch.uint8).view(dtype).reshape(shape)


def library(v: object) -> str:
    """Returns "numpy" or "torch" if v is an array of that, and "" for other objects."""
    for name, kind in (("numpy", "ndarray"), ("torch", "Tensor")):
        module = sys.modules.get(name)
        if module is not None and isinstance(v, getattr(module, kind, ())):
            return name
    return ""


def library_in(v: object) -> str:
    """Returns the library of the first array in an object."""
    if isinstance(v, dict):
        v = list(v.values())
    if isinstance(v, (list, tuple)):
        return next((name for name in map(library_in, v) if name), "")
    return library(v)


def of(v: Any) -> Optional[Array]:
    """Returns the array that v is: of numpy, torch, module array, or a memoryview of numbers. It
    shares v's memory where that is contiguous. None: v is no array.
    """
    if isinstance(v, Array):
        return v
    name = library(v)
    if name == "numpy":
        return _of_numpy(v)
    if name == "torch":
        return _of_torch(v)
    if isinstance(v, array.array) or isinstance(v, memoryview) and (v.format not in ("B", "c") or v.ndim != 1):
        view = memoryview(v)
        dtype = _FORMATS.get(view.format)
        if dtype is None:
            raise make(Invalid, f"a {type(v).__name__} of {view.format!r} has no dtype of a tensor")
        return Array(dtype, view.shape or (), view.tobytes() if not view.c_contiguous else view)
    return None


def _dtype(v: Any, name: str, *types: type) -> str:
    """Returns the name of v's dtype, if v has one of these types: others add something to an array,
    such as a mask, that would be lost.
    """
    if type(v) not in types:
        raise make(Invalid, f"a {type(v).__name__} cannot be sent, but its arrays")
    if name not in _BY_LIBRARY:
        raise make(Invalid, f"an array of {name} cannot be sent: there are {', '.join(sorted(_BY_LIBRARY))}")
    return _BY_LIBRARY[name]


def _of_numpy(v: Any) -> Array:
    import numpy

    dtype = _dtype(v, v.dtype.name, numpy.ndarray, numpy.memmap)
    if not v.dtype.isnative or sys.byteorder == "big":
        v = v.astype(v.dtype.newbyteorder("<"))
    return Array(dtype, v.shape, memoryview(v.copy(order="C").reshape(-1).view("u1") if not v.flags.c_contiguous else v.reshape(-1).view("u1")))


def _of_torch(v: Any) -> Array:
    import torch

    dtype = _dtype(v, str(v.dtype)[len("torch.") :], torch.Tensor, torch.nn.Parameter)
    shape = v.shape if dtype != "F4" else (*v.shape[:-1], 2 * v.shape[-1])  # an element of torch is two numbers
    return Array(dtype, shape, bytes_of(v))


def kind(dtype: str) -> Tuple[int, int]:
    """Returns the number of a dtype, in whose descending order files of safetensors have their tensors,
    and the bits of an element.
    """
    return _DTYPES[dtype][:2]


def identity(v: Any) -> Tuple[str, Any]:
    """Returns the name of the dtype of an array of numpy or torch, on any device, and what it has in
    common with the arrays that have the same elements in the same memory.
    """
    if library(v) == "torch":
        import torch

        dtype = _dtype(v, str(v.dtype)[len("torch.") :], torch.Tensor, torch.nn.Parameter)
        _strided(v)
        if v.device.type == "meta":
            raise make(Invalid, "a tensor is on meta: it has no elements")
        if dtype == "F4" and not v.shape:
            raise make(Invalid, "a tensor of 4-bit floats has no axes")
        end = v.storage_offset() + sum((n - 1) * s for n, s in zip(v.shape, v.stride())) + 1
        if v.numel() and end * v.element_size() > v.untyped_storage().size():
            raise make(Invalid, "the memory of a tensor has been freed")
        return dtype, id(v) if not v.numel() or v.is_conj() or v.is_neg() else (str(v.device), v.data_ptr(), v.stride())
    import numpy

    dtype = _dtype(v, v.dtype.name, numpy.ndarray, numpy.memmap)
    return dtype, (v.ctypes.data, v.strides, v.dtype.isnative) if v.size else id(v)


def data(v: Any) -> memoryview:
    """Returns the bytes of an array of numpy or torch, on any device."""
    a = of(v if library(v) == "numpy" else v.detach().cpu())
    return a.data if a is not None else memoryview(b"")


def bytes_of(t: Any) -> memoryview:
    """Returns the bytes of a torch tensor: its memory, if that is contiguous."""
    if t.device.type != "cpu":
        raise make(Invalid, f"a tensor is on {t.device}: pass t.cpu()")
    _strided(t)
    return memory(t.resolve_conj().resolve_neg().contiguous())


def _strided(t: Any) -> None:
    if str(t.layout) != "torch.strided":
        raise make(Invalid, f"a tensor is {str(t.layout)[len('torch.') :]}: pass t.to_dense()")


def memory(t: Any) -> memoryview:
    """Returns the memory of a contiguous torch tensor."""
    import torch

    return memoryview(t.detach().view(-1).view(torch.uint8).numpy())


def scalar(v: object) -> Any:
    """Returns the bool, int, float, str or bytes that a scalar of numpy is, and any other object
    itself.
    """
    numpy = sys.modules.get("numpy")
    return v.item() if isinstance(v, getattr(numpy, "generic", ())) and v.dtype.kind in "biufSU" else v  # type: ignore[attr-defined]


def to_map(a: Array) -> Dict[str, Any]:
    """Returns a as msgpack has it: the map of Go's tensor.Tensor."""
    return {"DType": _DTYPES[a.dtype][0], "Data": a.data, "Shape": list(a.shape)}


def is_map(m: Dict[Any, Any]) -> bool:
    """Reports whether a map is an array as msgpack has it."""
    return m.keys() == _KEYS and isinstance(m["Data"], bytes)


def from_map(m: Dict[Any, Any]) -> Any:
    """Returns the array that a map is, or the map."""
    if not is_map(m):
        return m
    if not isinstance(m["DType"], int) or m["DType"] not in _BY_NUMBER or not isinstance(m["Shape"], (list, type(None))):
        raise make(Invalid, f"a tensor of dtype {m['DType']!r} and shape {m['Shape']!r}")
    return Array(_BY_NUMBER[m["DType"]], m["Shape"] or (), m["Data"])


def as_library(v: Any, name: str) -> Any:
    """Returns an array of the library, or the Array itself if name is ""."""
    return v.numpy() if name == "numpy" else v.torch() if name == "torch" else v


def fill(v: Any, a: Array) -> Any:
    """Writes a into v, an array of numpy or torch of the same dtype and shape, and returns v."""
    if library(v) == "torch":
        import torch

        with torch.no_grad():
            v.copy_(a.torch())
    else:
        v[...] = a.numpy()
    return v


def writable(v: Any) -> bool:
    return library(v) == "torch" or bool(v.flags.writeable)


class Reduction:
    """An array that is reduced with those of other ranks, as numbers that the store reduces: of 32
    or 64 bits. Floats of 16 bits are reduced as 32-bit ones, and integers of 8 and 16 bits wrap at
    the end; integers are averaged as 64-bit ones.
    """

    _KINDS = {"int32": 1, "int64": 2, "uint32": 3, "uint64": 4, "float32": 5, "float64": 6}
    _WIDER = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32"}

    def __init__(self, v: Any, average: bool) -> None:
        text = str(of(v))  # refuses one that cannot be sent
        self._example = a = v
        self._library = library(v)
        name = a.dtype.name if self._library == "numpy" else str(a.dtype)[len("torch.") :]
        wide = self._WIDER.get(name, name)
        if average and "int" in wide:
            wide = "uint64" if wide in ("uint32", "uint64") else "int64"
        if wide not in self._KINDS:
            raise make(Invalid, f"an array of {name} cannot be reduced: there are {', '.join((*self._KINDS, *self._WIDER))}")
        if self._library == "torch":
            import torch

            a = a.detach().to(getattr(torch, wide)).numpy()
        self._wide, self.kind = wide, self._KINDS[wide]
        self._numbers = a.astype("<" + {"i": "i", "u": "u", "f": "f"}[wide[0]] + str(int(wide[-2:]) // 8), copy=False)
        self.type = name if len(v.shape) == 1 and name in self._KINDS else text  # or the name of Go's type: a Go rank passes a slice
        self.count: int = self._numbers.size

    def payload(self) -> bytes:
        b: bytes = self._numbers.tobytes()
        return b

    def result(self, got: bytes, size: int, average: bool) -> Any:
        """Returns the reduced array, of the caller's library and dtype."""
        import numpy

        out = numpy.frombuffer(bytearray(got), self._numbers.dtype).reshape(self._numbers.shape)
        if average and self._wide.startswith("float"):
            out = out / out.dtype.type(size)
        elif average:
            floor = out // size
            out = floor + ((out < 0) & (out % size != 0))  # truncated toward 0, as Go divides
            out = out.astype(self._numbers.dtype, copy=False)
        if self._library == "torch":
            import torch

            return torch.from_numpy(numpy.ascontiguousarray(out).reshape(self._numbers.shape)).to(self._example.dtype)
        with numpy.errstate(over="ignore"):  # then it is infinite
            return out.astype(self._example.dtype, copy=False)


def parts(v: object) -> List[Any]:
    """Returns what v has for each rank: the rows of an array, or the elements of a list."""
    return [v[i] for i in range(len(v))] if library(v) else v  # type: ignore[index,arg-type,return-value]
