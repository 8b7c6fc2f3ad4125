"""Compares the time from program start to first token, and peak memory, with llama.cpp's.

    python3 first_token.py PEER_BIN OUR_BIN MODEL.gguf ...

PEER_BIN is the folder with llama-bench of llama.cpp b11434, OUR_BIN the folder with specrun. Both programs
load the model, evaluate a prompt of eight tokens and end. They run alternately, on two threads, with the file
in the page cache; llama.cpp without its warm-up pass. Times are medians. Memory is the peak resident set,
including pages of the mapped file; its excess is the difference to the size of file and caches. Fails if our
time is longer than llama.cpp's, or if the excess is above 5%. For small models the excess is the program itself.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 7
THREADS = 2
N_TOKENS = 8
MAX_EXCESS = 0.05


def run(*command):
    """Returns the seconds and the peak memory in bytes of a command."""
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        # The child was already waited for; Popen must not wait again.
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            log.seek(0)
            sys.exit(f"{' '.join(command)}\n{log.read()[-4000:]}")
    return seconds, usage.ru_maxrss * 1024


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    peer_bin, our_bin, *models = map(pathlib.Path, sys.argv[1:])
    failed = False
    columns = "{:32} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>7}"
    print(columns.format("model", "ours ms", "peer ms", "ratio", "ours MB", "peer MB", "file MB", "excess"))
    for model in models:
        tokens = ",".join(str(3 + i) for i in range(N_TOKENS))
        threads = str(THREADS)
        own = [str(our_bin / "specrun"), "generate", "-m", str(model), "--tokens", tokens]
        own += ["-n", "1", "-t", threads]
        peer = [str(peer_bin / "llama-bench"), "-m", str(model), "-p", str(N_TOKENS), "-n", "0"]
        peer += ["-r", "1", "--no-warmup", "-t", threads]
        pairs = [(run(*own), run(*peer)) for _ in range(RUNS)]
        ours, theirs = (statistics.median(pair[i][0] for pair in pairs) for i in range(2))
        our_peak, their_peak = (max(pair[i][1] for pair in pairs) for i in range(2))
        size = model.stat().st_size
        # The caches of eight tokens have one or two megabytes.
        excess = our_peak / size - 1
        print(columns.format(model.name, f"{1e3 * ours:.0f}", f"{1e3 * theirs:.0f}",
                             f"{ours / theirs:.2f}", f"{our_peak / 1e6:.0f}", f"{their_peak / 1e6:.0f}",
                             f"{size / 1e6:.0f}", f"{100 * excess:.1f}%"))
        failed |= ours > theirs or excess > MAX_EXCESS
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
