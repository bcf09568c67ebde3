"""Runs the reference implementation (PyPI safetensors) for the tests.

reference.py write: from a JSON list of {"tensors": {name: {"dtype", "shape", "data"}}, "metadata"} to a list of files.
reference.py read:  from a JSON list of files to a list of {"tensors": [[name, dtype, shape, data]], "metadata"} or null
                    where it refuses one.

Bytes are base64, standard input and output JSON.
"""

import base64
import ctypes
import json
import os
import sys
import tempfile

import safetensors

NAMES = {
    "BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
    "U64": "uint64",
}


def write(case):
    specs, buffers = {}, []
    for name, t in (case["tensors"] or {}).items():
        data = base64.b64decode(t["data"])
        buffer = ctypes.create_string_buffer(data, len(data) + 1)  # never nowhere
        buffers.append(buffer)
        shape = list(t["shape"])
        if t["dtype"] == "F4":
            shape[-1] //= 2  # it doubles the last axis
        specs[name] = safetensors.TensorSpec(
            dtype=NAMES[t["dtype"]], shape=shape, data_ptr=ctypes.addressof(buffer), data_len=len(data))
    return base64.b64encode(safetensors.serialize(specs, case["metadata"])).decode()


def read(file):
    file = base64.b64decode(file or "")
    try:
        tensors = safetensors.deserialize(file)
    except safetensors.SafetensorError:
        return None
    with tempfile.TemporaryDirectory() as directory:
        name = os.path.join(directory, "file")
        with open(name, "wb") as f:
            f.write(file)
        with safetensors.safe_open(name, "np") as opened:  # maps it
            assert sorted(opened.keys()) == sorted(name for name, _ in tensors)
            metadata = opened.metadata()
    data = lambda t: base64.b64encode(bytes(t["data"])).decode()
    return {"tensors": [[name, t["dtype"], list(t["shape"]), data(t)] for name, t in tensors], "metadata": metadata}


run = {"write": write, "read": read}[sys.argv[1]]
json.dump([run(item) for item in json.load(sys.stdin)], sys.stdout)
