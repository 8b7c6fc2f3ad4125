"""Compares the time and memory of a graft onto a large body with copying the body.

    cargo build --release --features full && python3 tests/peer/graft_speed.py [FOLDER] [GIGABYTES]

Makes a body of random F16 weights and a donor of a head's tensors in FOLDER (default: a temporary
one). Then runs, three times alternately, `cp` of the body with a sync to disk, and `graft-mtp`, which also
returns only when its output is on disk. Needs three times the size of the body on disk.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPECCONV = Path(__file__).parents[2] / "target/release/specconv"
D, FF, HEADS, KV, HEAD_DIM = 4096, 4096, 16, 4, 256
F32, F16 = 0, 1


def layer(block: int) -> list:
    q = HEADS * HEAD_DIM
    rows = [
        ("attn_norm", [D], F32), ("attn_q", [D, 2 * q], F16), ("attn_k", [D, KV * HEAD_DIM], F16),
        ("attn_v", [D, KV * HEAD_DIM], F16), ("attn_output", [q, D], F16),
        ("attn_q_norm", [HEAD_DIM], F32), ("attn_k_norm", [HEAD_DIM], F32),
        ("post_attention_norm", [D], F32), ("ffn_gate", [D, FF], F16), ("ffn_up", [D, FF], F16),
        ("ffn_down", [FF, D], F16),
    ]
    return [(f"blk.{block}.{name}.weight", shape, dtype) for name, shape, dtype in rows]


def size(shape: list, dtype: int) -> int:
    n = 1
    for axis in shape:
        n *= axis
    return n * (4 if dtype == F32 else 2)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write(path: Path, keys: dict, tensors: list) -> None:
    """Writes finite weights of about 1/64: one megabyte repeated, each time with another start."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        if isinstance(value, str):
            header += text(key) + struct.pack("<I", 8) + text(value)
        elif isinstance(value, float):
            header += text(key) + struct.pack("<If", 6, value)
        else:
            header += text(key) + struct.pack("<II", 4, value)
    offset = 0
    for name, shape, dtype in tensors:
        header += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        header += struct.pack("<IQ", dtype, offset)
        offset += -(-size(shape, dtype) // 32) * 32
    header += bytes(-len(header) % 32)
    noise = os.urandom(1 << 20)
    # Exponents from 2^-9 to 2^-6, signs and mantissas at random.
    half = bytes((b & 0x9F) | 0x20 if i % 2 else b for i, b in enumerate(noise[:1 << 16])) * 16
    ones = struct.pack("<f", 1.0) * (1 << 18)
    with open(path, "wb") as file:
        file.write(header)
        for _, shape, dtype in tensors:
            left = -(-size(shape, dtype) // 32) * 32
            while left:
                chunk = (ones if dtype == F32 else half)[:left]
                file.write(chunk)
                left -= len(chunk)


def timed(command: list, output: Path) -> tuple:
    """Returns the seconds and the peak resident set in bytes."""
    output.unlink(missing_ok=True)
    os.sync()
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, command
    with open(output, "rb") as file:
        os.fsync(file.fileno())
    return time.monotonic() - start, usage.ru_maxrss * 1024


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    target_bytes = float(sys.argv[2] if len(sys.argv) > 2 else 4) * 1e9
    keys = {
        "general.architecture": "qwen35", "qwen35.block_count": 1, "qwen35.embedding_length": D,
        "qwen35.feed_forward_length": FF, "qwen35.attention.head_count": HEADS,
        "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
    }
    trunk = layer(0) + [("output_norm.weight", [D], F32)]
    n_vocab = int((target_bytes - sum(size(s, d) for _, s, d in trunk)) / 2 / D)
    body, donor = folder / "body.gguf", folder / "donor.gguf"
    write(body, keys, [("token_embd.weight", [D, n_vocab], F16)] + trunk)
    own = [("eh_proj", [2 * D, D], F16), ("enorm", [D], F32), ("hnorm", [D], F32)]
    own = [(f"blk.1.nextn.{name}.weight", shape, dtype) for name, shape, dtype in own]
    write(donor, {}, layer(1) + own)
    copy, out = folder / "copy.gguf", folder / "out.gguf"
    graft = [SPECCONV, "graft-mtp", "--overwrite", "--target", body, "--mtp", donor, "-o", out]
    print(f"body {body.stat().st_size / 1e9:.2f} GB, donor {donor.stat().st_size / 1e6:.0f} MB")
    for _ in range(3):
        cp_s, _ = timed(["cp", "--reflink=never", body, copy], copy)
        copy.unlink()
        graft_s, rss = timed(graft, out)
        out.unlink()
        print(f"cp {cp_s:.2f} s, graft {graft_s:.2f} s, {graft_s / cp_s:.2f} of it, "
              f"resident at most {rss / 1e6:.0f} MB")
    if len(sys.argv) < 2:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
