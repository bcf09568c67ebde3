"""Writes golden.txt, which the tests of the floats read: python golden.py >golden.txt

Needs numpy and ml_dtypes; numpy 2.4.6 and ml_dtypes 0.6.0 made it. A line is the bits of a float32, and the codes of
the nearest float16 and bfloat16, in hexadecimal.
"""

import ml_dtypes
import numpy as np

SIXTEEN = [np.float16, ml_dtypes.bfloat16]


def between(dtype):
    """What lies in the middle of two neighbours, and the float32s next to it."""
    v = np.arange(65536).astype(np.uint16).view(dtype).astype(np.float64)
    v = np.unique(v[np.isfinite(v)])
    v = v[:: len(v) // 300]
    mid = ((v[1:] + v[:-1]) / 2).astype(np.float32)
    return [np.nextafter(mid, np.float32(-np.inf)), mid, np.nextafter(mid, np.float32(np.inf))]


def inputs():
    rng = np.random.default_rng(4)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4028235e38, 2.0**-126, 2.0**-127, 1.5 * 2.0**-127]
    edges = np.array([65504, 65520, 65536, 1.5 * 2.0**127, 2.0**-133, 2.0**-134, 2.0**-24, 2.0**-25], np.float32)
    near = [np.nextafter(edges, np.float32(0)), edges, np.nextafter(edges, np.float32(np.inf))]
    all_of = [np.array(special, np.float32), *near, *(-e for e in near)]
    for dtype in SIXTEEN:
        all_of += [rng.choice(x, 60) for x in between(dtype)]
    bits = rng.integers(0, 2**32, 400, np.uint32).view(np.float32)
    all_of += [bits[~np.isnan(bits)]]  # numpy keeps what a NaN carries, as a float16; ours has one NaN
    all_of += [(rng.standard_normal(600) * 10.0 ** rng.integers(-9, 6, 600)).astype(np.float32)]
    _, first = np.unique(np.concatenate(all_of).view(np.uint32), return_index=True)
    return np.concatenate(all_of)[np.sort(first)]


def main():
    np.seterr(all="ignore")
    v = inputs()
    for bits, *row in zip(v.view(np.uint32), *(v.astype(d).view(np.uint16) for d in SIXTEEN)):
        print(f"{bits:x}", *(f"{c:x}" for c in row))


main()
