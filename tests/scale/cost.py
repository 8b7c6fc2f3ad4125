#!/usr/bin/env python3
"""Prints the table of docs/scale.md: a checkpoint of 1.5 TB to Q4_K_M on 1, 8 and 64 workers.

The rates of the program are measured (docs/bench); those of network and storage are assumptions that are easy to replace.

usage: cost.py
"""

GB = 1e9
INPUT = 1500 * GB               # BF16
OUTPUT = INPUT / 2 * 4.85 / 8   # Q4_K_M: 4.85 bits per weight
CORES = 16                      # of a worker
QUANTIZE = 0.258 * GB           # BF16 that a core quantizes to Q4_K_M in a second, docs/bench/2026-11-21.md
LINK = 3.1 * GB                 # of a worker, 25 Gbit/s, each way
STORAGES = [
    # name, bytes per second that the storage reads and writes for all workers together
    ("one server, 25 Gbit/s", 3.1 * GB, 3.1 * GB),
    ("parallel file system", 40 * GB, 20 * GB),
]


def minutes(seconds):
    return f"{seconds / 60:.1f}"


def row(workers, read_limit, write_limit):
    """Returns the cells of a number of workers."""
    quantize = INPUT / (workers * CORES * QUANTIZE)
    read = INPUT / min(workers * LINK, read_limit)
    write = OUTPUT / min(workers * LINK, write_limit)
    limits = {"cores": quantize, "reading": read, "writing": write}
    limit = max(limits, key=limits.get)
    shards = limits[limit]
    # One machine reads all parts to check them, and copies them unless they are whole files.
    check = OUTPUT / min(LINK, read_limit)
    copy = OUTPUT / min(LINK, read_limit, write_limit)
    if workers == 1:
        check = copy = 0

    def moved(n_read, n_written):
        return f"{(INPUT + n_read * OUTPUT) / 1e12:.2f} / {n_written * OUTPUT / 1e12:.2f}"

    split, whole = (moved(0, 1), moved(0, 1)) if workers == 1 else (moved(1, 1), moved(2, 2))
    return [minutes(shards), limit, split, minutes(shards + check), whole, minutes(shards + check + copy)]


def main():
    for name, read_limit, write_limit in STORAGES:
        print(f"{name}\n")
        print("| workers | shards, min | limit | split: TB read / written | split: min | one file: TB read / written | one file: min |")
        print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
        for workers in (1, 8, 64):
            print("| " + " | ".join([str(workers), *row(workers, read_limit, write_limit)]) + " |")
        print()


main()
