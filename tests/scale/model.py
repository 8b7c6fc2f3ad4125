#!/usr/bin/env python3
"""Writes a random F16 model of a given size, the same in every run.

usage: model.py OUT.gguf MEGABYTES
"""

import random
import struct
import sys

ROW = 2048
N_ROWS = 2048
# The highest bit of the exponent is zero, so that all values are finite and below 2.
MASK = int.from_bytes(b"\xff\xbf" * ROW, "little")


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def main():
    path, megabytes = sys.argv[1], int(sys.argv[2])
    size = ROW * N_ROWS * 2
    n_tensors = max(1, megabytes * 1_000_000 // size)
    names = [f"blk.{i // 4}.{('ffn_up', 'ffn_gate', 'ffn_down', 'attn_v')[i % 4]}.weight" for i in range(n_tensors)]
    keys = [("general.architecture", "llama"), ("general.file_type", 1), ("llama.block_count", (n_tensors + 3) // 4)]
    header = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(keys))
    for key, value in keys:
        header += text(key)
        header += struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
    for i, name in enumerate(names):
        header += text(name) + struct.pack("<IQQIQ", 2, ROW, N_ROWS, 1, i * size)
    generator = random.Random(1)
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for _ in range(n_tensors * N_ROWS):
            row = int.from_bytes(generator.randbytes(2 * ROW), "little") & MASK
            file.write(row.to_bytes(2 * ROW, "little"))


main()
