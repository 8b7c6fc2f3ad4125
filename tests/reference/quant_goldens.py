"""Hashes of what ggml's quantizers make of synthetic rows: kernels/tests/golden/quant.txt.

    python3 quant_goldens.py LIBGGML_BASE > kernels/tests/golden/quant.txt

LIBGGML_BASE is the shared library of llama.cpp b11434, built without contraction of a * b + c
(a default x86-64 build of that target, or -ffp-contract=off). The rows are made by exact
arithmetic, so kernels/tests/quant.rs makes the same ones bit for bit.
"""

import ctypes
import struct
import sys

N_ROWS = 6
N_COLS = 512
MASK = (1 << 64) - 1

TYPES = {
    "F32": 0, "F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ1_S": 19, "IQ1_M": 29, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ2_S": 22,
    "IQ3_XXS": 18, "IQ3_S": 21, "IQ4_NL": 20, "IQ4_XS": 23,
    "MXFP4": 39, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42, "TQ1_0": 34, "TQ2_0": 35,
}

# Types whose quants are points of a grid, and data for which ggml finds no point and aborts the process.
GRIDS = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}
TOO_LARGE = ["huge", "random_bits", "below_powers"]

# Types that ggml refuses to quantize without importance: it aborts the process.
NEED_IMPORTANCE = {"IQ2_XXS", "IQ2_XS", "IQ1_S"}


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def gaussian(self):
        """Nearly normal, a multiple of 2^-20 below 6: exact in single precision."""
        return (sum(self.next() >> 44 for _ in range(12)) - 6 * 2**20) / 2**20


def f32_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def gaussian(rng, row, col):
    return rng.gaussian() / 64


def bf16(rng, row, col):
    bits = f32_bits(rng.gaussian() / 64)
    return from_bits((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)


def heavy_tail(rng, row, col):
    word = rng.next() | 1 << 12
    return rng.gaussian() / 64 * (word & -word)


def zero(rng, row, col):
    return 0.0


def minus_zero(rng, row, col):
    return -0.0


def signed_zeros(rng, row, col):
    return -0.0 if rng.next() & 1 else 0.0


def constant(rng, row, col):
    return (row - 2) * 0.3125


def positive(rng, row, col):
    return abs(rng.gaussian()) / 64


def negative(rng, row, col):
    return -abs(rng.gaussian()) / 64


def tiny(rng, row, col):
    return rng.gaussian() * 2.0 ** (-116 - 5 * row)


def huge(rng, row, col):
    return rng.gaussian() * 2.0 ** (15 + 20 * row)


def mixed_scales(rng, row, col):
    return rng.gaussian() * 2.0 ** (5 * (col // 32 % 9) - 30)


def ternary(rng, row, col):
    return (rng.next() % 3 - 1) / 32


def sparse(rng, row, col):
    value = rng.gaussian() / 64
    return value if rng.next() % 10 == 0 else 0.0


def random_bits(rng, row, col):
    bits = rng.next() >> 32
    return from_bits(bits & ~0x00800000 if bits & 0x7F800000 == 0x7F800000 else bits)


def below_powers(rng, row, col):
    """Blocks whose largest number is a few units in the last place below a power of two."""
    value, exponent = rng.gaussian() / 8, 2 * (col // 32 + 16 * row) + 1 - 126
    if col % 32 == 0:
        value = 1 - (rng.next() % 64 + 1) * 2.0**-24
    return value * 2.0**exponent


def subnormal(rng, row, col):
    return from_bits(rng.next() >> 32 & 0x807FFFFF)


def mixed_blocks(rng, row, col):
    """Zero, constant and ordinary blocks, and some of one number, side by side."""
    value, kind = rng.gaussian() / 64, (col // 32 + 16 * row) * 7 % 5
    lonely = value if col % 32 == 5 else 0.0
    return [0.0, 0.25, value, -0.5, lonely][kind]


DATA = [gaussian, bf16, heavy_tail, zero, minus_zero, signed_zeros, constant, positive, negative,
        tiny, huge, mixed_scales, ternary, sparse, random_bits, below_powers, subnormal,
        mixed_blocks]


def squares(rng, col):
    value = rng.gaussian()
    return value * value


def zeros(rng, col):
    return 0.0


def ones(rng, col):
    return 1.0


def third_zero(rng, col):
    value = rng.gaussian()
    return 0.0 if col % 3 == 0 else value * value


IMPORTANCE = [None, squares, zeros, ones, third_zero]


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def floats(values):
    return (ctypes.c_float * len(values))(*values)


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_row_size.restype = ctypes.c_size_t

    def quantize(self, dtype, x, weights):
        n_bytes = self.lib.ggml_row_size(dtype, ctypes.c_int64(N_COLS)) * N_ROWS
        out = ctypes.create_string_buffer(n_bytes)
        if dtype == TYPES["BF16"]:
            self.lib.ggml_fp32_to_bf16_row_ref(x, out, ctypes.c_int64(len(x)))
            return out
        written = self.lib.ggml_quantize_chunk(
            dtype, x, out, ctypes.c_int64(0), ctypes.c_int64(N_ROWS), ctypes.c_int64(N_COLS),
            weights)
        assert written == n_bytes
        return out

    def dequantize(self, name, data):
        n = N_ROWS * N_COLS
        out = (ctypes.c_float * n)()
        if name == "F32":
            return data.raw
        function = {
            "F16": "ggml_fp16_to_fp32_row",
            "BF16": "ggml_bf16_to_fp32_row",
        }.get(name, "dequantize_row_" + name.lower().replace("_k", "_K"))
        getattr(self.lib, function)(data, out, ctypes.c_int64(n))
        # The sign of a NaN that arithmetic made is the machine's choice: use one pattern for all.
        return b"".join(
            b"\x00\x00\xc0\x7f" if value != value else struct.pack("<f", value) for value in out)


def main():
    library = Library(sys.argv[1])
    print("# type data importance fnv1a(bytes) fnv1a(decoded f32); made by quant_goldens.py")
    for i, data in enumerate(DATA):
        rng = SplitMix64(i)
        x = floats([data(rng, row, col) for row in range(N_ROWS) for col in range(N_COLS)])
        for j, importance in enumerate(IMPORTANCE):
            weights = None
            if importance is not None:
                rng = SplitMix64(1000 + j)
                weights = floats([importance(rng, col) for col in range(N_COLS)])
            for name, dtype in TYPES.items():
                if name in GRIDS and data.__name__ in TOO_LARGE:
                    continue
                if weights is None and name in NEED_IMPORTANCE:
                    continue
                encoded = library.quantize(dtype, x, weights)
                decoded = library.dequantize(name, encoded)
                print(name, data.__name__, importance.__name__ if importance else "none",
                      f"{fnv1a(encoded.raw):016x} {fnv1a(decoded):016x}")


main()
