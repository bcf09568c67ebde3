"""Python's side of the tests: what it pickles, and whether it finds in a pickle what it should.

    python reference.py golden KIND   prints what KIND's values are pickled to: plain, numpy or torch
    python reference.py versions      prints the versions of what there is
    python reference.py check         reads lines of a name and a pickle, and says of each whether it is that value
"""

import collections
import ctypes
import pickle
import sys
import types

MODULE = "vllm.distributed.device_communicators.pynccl_wrapper"


def nccl():
    """vLLM's class, where vLLM has it."""
    parts = MODULE.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[: i + 1])
        sys.modules.setdefault(name, types.ModuleType(name))

    class ncclUniqueId(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_byte * 128)]

    ncclUniqueId.__module__, ncclUniqueId.__qualname__ = MODULE, "ncclUniqueId"
    sys.modules[MODULE].ncclUniqueId = ncclUniqueId
    return ncclUniqueId.from_buffer_copy(bytes((7 * i) % 256 for i in range(128)))


def plain():
    shared = [1]
    return {
        "none": None,
        "true": True,
        "false": False,
        "ints": [0, 1, -1, 255, 256, 65535, 65536, -128, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)],
        "big_ints": [2**63, 2**64 - 1, -(2**63) - 1, 2**2100, -(2**2100), -(2**71), 2**71],
        "floats": [0.0, -0.0, 1.5, -1e300, 5e-324, float("inf"), float("-inf")],
        "nan": float("nan"),
        "strings": ["", "a", "héllo €", "\n\\\t'\"", "\U0001f600", "x" * 300],
        "bytes": [b"", b"a", bytes(range(256)), b"y" * 300],
        "bytearray": [bytearray(b""), bytearray(b"ab\xff")],
        "list": [],
        "nested": [[[]], [1, [2, [3]]], {"a": [(), (1,)]}],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "dict": {"b": 1, "a": 2, 3: None, (1, "x"): b"y", None: True, 1.5: []},
        "same_keys": {1: "a", 2.0: "b", 2**70: "c"},
        "empty_dict": {},
        "ordered": collections.OrderedDict([("z", 1), ("y", 2)]),
        "shared": [shared, shared, (shared, shared)],
        "many": list(range(1001)),
        "many_keys": {str(i): i for i in range(1001)},
        "nccl": nccl(),
        "handshake": {"rank": 3, "addresses": [("10.0.0.1", 29500)], "ok": True, "blob": b"\x00\x01"},
    }


def numpy_values():
    import numpy as np

    all_types = "?,i1,i2,i4,i8,u1,u2,u4,u8,f2,f4,f8,c8".split(",")
    values = {"np_" + t.replace("?", "b1"): np.arange(6).reshape(2, 3).astype(t) for t in all_types}
    six = np.arange(6, dtype="i4").reshape(2, 3)
    values |= {
        "np_scalar": np.array(2.5),
        "np_empty": np.zeros((0, 3), "f4"),
        "np_vector": np.array([1.5, -2.5], "f4"),
        "np_fortran": np.asfortranarray(six),
        "np_transposed": np.arange(24, dtype="i2").reshape(2, 3, 4).transpose(1, 0, 2),
        "np_strided": np.arange(12, dtype="i8")[::3],
        "np_mixed": {"a": np.array([1, 2], "u1"), "b": [np.array([True])]},
    }
    readonly = np.array([3, 4], "i2")
    readonly.flags.writeable = False
    values["np_readonly"] = readonly
    return values


def torch_values():
    import torch

    names = "bool,uint8,int8,int16,int32,int64,float16,bfloat16,float32,float64,complex64".split(",")
    names += [n for n in "uint16,uint32,uint64".split(",") if hasattr(torch, n)]
    values = {"torch_" + n: torch.arange(6).reshape(2, 3).to(getattr(torch, n)) for n in names}
    for n in "float8_e4m3fn,float8_e5m2,float8_e4m3fnuz,float8_e5m2fnuz,float8_e8m0fnu".split(","):
        if hasattr(torch, n):
            values["torch_" + n] = torch.tensor([0x38, 0x40], dtype=torch.uint8).view(getattr(torch, n))
    six = torch.arange(6, dtype=torch.int32)
    values |= {
        "torch_scalar": torch.tensor(2.5),
        "torch_empty": torch.zeros(0, 3),
        "torch_view": six[2:],
        "torch_transposed": six.reshape(2, 3).t(),
        "torch_expanded": torch.tensor([7.0]).expand(3),
        "torch_mixed": {"w": torch.tensor([1.0]), "n": [1]},
    }
    return values


KINDS = {"plain": plain, "numpy": numpy_values, "torch": torch_values}


def same(a, b):
    """Whether a, which was read, is b, which is a value of this file."""
    name = type(b).__module__.split(".")[0]
    if name == "torch" and hasattr(b, "dtype"):
        import torch

        bits = lambda t: t.detach().contiguous().reshape(-1).view(torch.uint8)
        return isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a).equal(bits(b))
    if name == "numpy" and hasattr(b, "flags") and b.shape is not None and hasattr(b, "setflags") and type(b).__name__ == "ndarray":
        same_type = type(a) is type(b) and a.dtype == b.dtype.newbyteorder("=") and a.shape == b.shape
        return same_type and a.flags.writeable and a.tobytes() == b.astype(a.dtype).tobytes()
    if isinstance(b, ctypes.Structure):
        return type(a) is type(b) and bytes(a) == bytes(b)
    if isinstance(b, collections.OrderedDict):
        b = dict(b)
    if type(a) is not type(b):
        return False
    if isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in b)
    if isinstance(b, float):
        return repr(a) == repr(b)
    return a == b


def versions():
    found = ["python " + sys.version.split()[0]]
    for name in ("numpy", "torch"):
        try:
            found.append(name + " " + __import__(name).__version__)
        except ImportError:
            pass
    return ", ".join(found)


def main(command, kind=None):
    if command == "versions":
        print(versions())
    elif command == "golden":
        print(f"# reference.py made this with {versions()}")
        for name, value in KINDS[kind]().items():
            for protocol in (4,) if kind == "torch" else range(2, 6):
                pickled = pickle.dumps(value, protocol)
                if b"_codecs" not in pickled:  # bytes of protocol 2, which are a call
                    print(name, protocol, pickled.hex())
    else:
        values = plain() | numpy_values()
        try:
            values |= torch_values()
        except ImportError:
            pass
        for line in sys.stdin:
            name, text = line.split()
            if name not in values:
                print(name, "absent")
                continue
            got = pickle.loads(bytes.fromhex(text))
            print(name, "same" if same(got, values[name]) else f"is {got!r}, not {values[name]!r}".replace("\n", " "))


main(*sys.argv[1:])
