"""Compares time and memory of quantizing with llama.cpp's, and checks that the files are equal. Started by
quantize_bench.sh.

usage: quantize_bench.py LLAMA_QUANTIZE SPECCONV MAKE_MODEL [options]
"""

import argparse
import filecmp
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TYPES = "Q4_K_M,Q5_K_M,Q6_K,Q8_0"
COLUMNS = "{:8} {:8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>8} {:>7}"


class Run:
    """Wall time and CPU time in seconds, and peak memory in MB, of a command."""

    def __init__(self, *command):
        command = [str(word) for word in command]
        with tempfile.TemporaryFile("w+") as log:
            start = time.perf_counter()
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            _, status, usage = os.wait4(child.pid, 0)
            self.wall_s = time.perf_counter() - start
            # The child was already waited for; Popen must not wait again.
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode != 0:
                log.seek(0)
                sys.exit(f"{' '.join(command)}\n{log.read()[-4000:]}")
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.peak_mb = usage.ru_maxrss * 1024 / 1e6


def copy(source, n_bytes, output):
    """Copies: reads all of source, writes as many of its bytes, and syncs, as specconv does."""
    command = '{ head -c "$1" > "$2"; cat > /dev/null; } < "$0"; sync "$2"'
    done = Run("sh", "-c", command, source, n_bytes, output)
    output.unlink()
    return done


def median(runs, field):
    return statistics.median(getattr(run, field) for run in runs)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", type=pathlib.Path)
    parser.add_argument("ours", type=pathlib.Path)
    parser.add_argument("make_model", type=pathlib.Path)
    parser.add_argument("--types", default=TYPES, help=f"default: {TYPES}")
    parser.add_argument("--isa", default="best", help="such as avx512,avx2,scalar; default: best")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=3, help="the median counts; default: 3")
    return parser.parse_args()


def work_folder():
    memory = pathlib.Path("/dev/shm")
    return os.environ.get("BENCH_WORK") or (memory if os.access(memory, os.W_OK) else None)


def main():
    args = parse()
    failed = []
    with tempfile.TemporaryDirectory(dir=work_folder()) as temporary:
        folder = pathlib.Path(temporary)
        source, own, theirs = (folder / name for name in ["source.gguf", "own.gguf", "peer.gguf"])
        Run(args.make_model, source)
        size = source.stat().st_size
        print(f"{size / 1e9:.2f} GB of BF16, {args.threads} threads, median of {args.runs} runs")
        print(COLUMNS.format("type", "isa", "ours s", "peer s", "ratio", "ours MB", "peer MB",
                             "copy s", "ours/copy"))
        for ftype in args.types.split(","):
            for isa in args.isa.split(","):
                same = compare(args, ftype, isa, source, own, theirs)
                if not same:
                    failed.append(f"{ftype} {isa}")
    if failed:
        sys.exit(f"files differ: {', '.join(failed)}")


def compare(args, ftype, isa, source, own, theirs):
    """Prints a line; returns true if the files are equal."""
    flags = [] if isa == "best" else ["--isa", isa]
    ours, peers, copies = [], [], []
    for _ in range(args.runs):
        ours.append(Run(args.ours, "quantize", "--overwrite", *flags, source, own, ftype, args.threads))
        peers.append(Run(args.peer, source, theirs, ftype, args.threads))
        same = filecmp.cmp(own, theirs, shallow=False)
        n_bytes = own.stat().st_size
        theirs.unlink()
        own.unlink()
        copies.append(copy(source, n_bytes, own))
        if not same:
            break
    own_s, peer_s, copy_s = (median(runs, "wall_s") for runs in [ours, peers, copies])
    print(COLUMNS.format(
        ftype, isa, f"{own_s:.2f}", f"{peer_s:.2f}", f"{peer_s / own_s:.2f}",
        f"{median(ours, 'peak_mb'):.0f}", f"{median(peers, 'peak_mb'):.0f}",
        f"{copy_s:.2f}", f"{own_s / copy_s:.2f}"), flush=True)
    print(f"  CPU time: ours {median(ours, 'cpu_s'):.2f} s, peer {median(peers, 'cpu_s'):.2f} s,"
          f" ratio {median(peers, 'cpu_s') / median(ours, 'cpu_s'):.2f};"
          f" files {'equal' if same else 'DIFFER'}", flush=True)
    return same


main()
