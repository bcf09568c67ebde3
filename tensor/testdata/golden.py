"""Writes golden.txt, which the tests of the floats read: python golden.py >golden.txt

Needs numpy and ml_dtypes; it was made with numpy 2.4.6 and ml_dtypes 0.6.0. All numbers are hexadecimal: codes, or the
bits of a float32.
"""

import ml_dtypes
import numpy as np

EIGHT = {
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
SMALL = {
    "F4": (ml_dtypes.float4_e2m1fn, 16),
    "F6_E2M3": (ml_dtypes.float6_e2m3fn, 64),
    "F6_E3M2": (ml_dtypes.float6_e3m2fn, 64),
}
SIXTEEN = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}


def values(dtype, codes):
    """The float32 that each code means."""
    unsigned = np.uint8 if codes <= 256 else np.uint16
    return np.arange(codes).astype(unsigned).view(dtype).astype(np.float32)


def between(dtype, codes):
    """What lies in the middle of two neighbours, and the float32s next to it."""
    v = values(dtype, codes).astype(np.float64)
    v = np.unique(v[np.isfinite(v)])
    if len(v) > 600:
        v = v[:: len(v) // 300]
    mid = ((v[1:] + v[:-1]) / 2).astype(np.float32)
    return [np.nextafter(mid, np.float32(-np.inf)), mid, np.nextafter(mid, np.float32(np.inf))]


def inputs():
    rng = np.random.default_rng(4)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4028235e38, 2.0**-126, 2.0**-127, 1.5 * 2.0**-127]
    edges = [6, 7, 7.5, 7.75, 8, 28, 30, 32, 240, 244, 248, 256, 448, 464, 480, 512, 57344, 61440, 65504, 65520, 65536]
    edges += [1.5 * 2.0**127, 2.0**-133, 2.0**-134, 2.0**-24, 2.0**-25]
    edges = np.array(edges, np.float32)
    near = [np.nextafter(edges, np.float32(0)), edges, np.nextafter(edges, np.float32(np.inf))]
    all_of = [np.array(special, np.float32), *near, *(-e for e in near)]
    for dtype in EIGHT.values():
        all_of += [rng.choice(x, 60) for x in between(dtype, 256)]
    for dtype, codes in SMALL.values():
        all_of += between(dtype, codes)
    for dtype in SIXTEEN.values():
        all_of += [rng.choice(x, 60) for x in between(dtype, 65536)]
    bits = rng.integers(0, 2**32, 400, np.uint32).view(np.float32)
    all_of += [bits[~np.isnan(bits)]]  # numpy keeps what a NaN carries, as a float16; ours has one NaN
    all_of += [(rng.standard_normal(600) * 10.0 ** rng.integers(-9, 6, 600)).astype(np.float32)]
    _, first = np.unique(np.concatenate(all_of).view(np.uint32), return_index=True)
    return np.concatenate(all_of)[np.sort(first)]


def main():
    np.seterr(all="ignore")
    print("decode", *EIGHT)
    for row in np.stack([values(d, 256).view(np.uint32) for d in EIGHT.values()], 1):
        print(*(f"{b:x}" for b in row))
    for name, (dtype, codes) in SMALL.items():
        print("decode", name)
        for b in values(dtype, codes).view(np.uint32):
            print(f"{b:x}")
    every = SIXTEEN | EIGHT | {n: d for n, (d, _) in SMALL.items()}
    print("encode", *every)
    v = inputs()
    codes = [v.astype(d).view(np.uint16 if n in SIXTEEN else np.uint8) for n, d in every.items()]
    for bits, *row in zip(v.view(np.uint32), *codes):
        print(f"{bits:x}", *(f"{c:x}" for c in row))


main()
