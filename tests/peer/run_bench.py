"""Compares the speed of decoding, of verifying drafts and of prefill with llama.cpp's, on the same files and
threads in the same run. Started by run_bench.sh.

usage: run_bench.py PEER_BIN SPECRUN MODEL.gguf.. [--threads N] [--rounds N] [--isa NAME] [--depths N,..]
                    [--cache-types f16,q8_0] [--limit SECONDS] [--deep MODEL.gguf]

--isa is specrun's instruction set: compare avx2 with a build of llama.cpp for AVX2. --depths adds decoding
after contexts of so many tokens, with each of the cache types; a program that takes longer than --limit
[default: 1200] has no result there. --deep names the model of these measurements [default: all]: one with few
layers (examples/random_qwen3.rs) has results after minutes.

Rounds of both programs alternate; medians and their ratios are printed. Spinning threads suffer from
any other load, so every round waits until the CPU is idle.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "speed"))
from idle import wait_until_idle

PROMPT = 512
DECODED = 64
WIDTHS = (2, 4, 8, 16)
FLOAT_CACHES = ("f32", "f16", "bf16")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", type=pathlib.Path, help="folder with llama-bench, llama-batched-bench")
    parser.add_argument("specrun", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa")
    parser.add_argument("--depths", type=lambda text: [int(n) for n in text.split(",")], default=[])
    parser.add_argument("--cache-types", type=lambda text: text.split(","), default=["f16"])
    parser.add_argument("--limit", type=int, default=1200)
    parser.add_argument("--deep", type=pathlib.Path, action="append", default=[])
    return parser.parse_args()


def run(*command, limit=None):
    wait_until_idle()
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def repack_flag(peer, model):
    """Returns the flag that disables repacking, if llama.cpp crashes with it: some CPUs have instructions that
    the system does not permit."""
    probe = [peer / "llama-bench", "-m", model, "-p", PROMPT, "-n", "1", "-r", "1"]
    fine = subprocess.run([str(word) for word in probe], capture_output=True).returncode == 0
    return [] if fine else ["--repack", "0"]


def peer_speed(args, model, extra):
    """Returns the tokens/s of prefill and of decoding."""
    tests = json.loads(
        run(args.peer / "llama-bench", "-m", model, "-t", args.threads, "-p", PROMPT, "-n", DECODED,
            "-r", 1, "-o", "json", *extra)
    )
    return {
        "prefill": next(t["avg_ts"] for t in tests if t["n_gen"] == 0),
        "decode": next(t["avg_ts"] for t in tests if t["n_prompt"] == 0),
    }


def peer_widths(args, model, extra):
    """Returns the time of a pass with one token for each of n sequences, relative to one sequence."""
    widths = (1, *WIDTHS)
    extra = ["--no-repack"] if extra else []
    lines = run(args.peer / "llama-batched-bench", "-m", model, "-t", args.threads, "-c", 4096,
                "-npp", 16, "-ntg", 16, "-npl", ",".join(map(str, widths)),
                "--output-format", "jsonl", *extra)
    rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    seconds = {row["pl"]: row["t_tg"] for row in rows}
    return {n: seconds[n] / seconds[1] for n in WIDTHS}


def peer_deep_decode(args, model, extra, depth, cache_type):
    """Returns the tokens/s of decoding after `depth` tokens, with or without flash attention, whichever is faster:
    on CPUs it is often slower, but quantized caches need it."""
    def speed(flash):
        tests = json.loads(
            run(args.peer / "llama-bench", "-m", model, "-t", args.threads, "-p", 0, "-n", 16, "-d", depth,
                "-ctk", cache_type, "-ctv", cache_type, "-fa", flash, "-r", 1, "-o", "json", *extra,
                limit=args.limit)
        )
        return tests[0]["avg_ts"]

    return max(speed(flash) for flash in ((0, 1) if cache_type in FLOAT_CACHES else (1,)))


def our_bench(args, model, *flags, limit=None):
    isa = ["--isa", args.isa] if args.isa else []
    command = [args.specrun, "bench", "-m", model, "-t", args.threads, *isa, *flags, "--json"]
    return json.loads(run(*command, limit=limit))


def our_deep_decode(args, model, depth, cache_type):
    result = our_bench(args, model, "-p", depth, "--width", 1, "-ctk", cache_type, "-ctv", cache_type,
                       limit=args.limit)
    return result["decode_tokens_per_s"]


def our_speed(args, model):
    def bench(*flags):
        return our_bench(args, model, *flags)

    # llama-bench starts with an empty context: a token has half of the decoded tokens before it on average.
    n_prompt = DECODED // 2
    # One token after the other, as llama-bench does: between wider passes a small model is not in the CPU's caches.
    decode = bench("-p", n_prompt, "--width", 1, "-r", DECODED)
    widths = bench("-p", n_prompt, "--width", max(WIDTHS), "-r", 9)
    return {
        "prefill": bench("-p", PROMPT, "--width", 1, "-r", 1)["prefill_tokens_per_s"],
        "decode": decode["decode_tokens_per_s"],
        "gigabytes": decode["decode_gigabytes_per_s"],
        "bandwidth": decode["read_gigabytes_per_s"],
        "between_widths": widths["decode_tokens_per_s"],
        "widths": {w["n_tokens"]: w["ratio"] for w in widths["widths"]},
    }


def median(rounds, what):
    return statistics.median(what(one) for one in rounds)


def line(model, name, ours, peer, unit):
    print(f"{model.name:32} {name:16} {ours:9.2f} {peer:9.2f} {ours / peer:7.2f}  {unit}", flush=True)


def compare(args, model, extra):
    """Prints decoding, prefill and passes of several tokens."""
    ours, peer = [], []
    for _ in range(args.rounds):
        peer.append({**peer_speed(args, model, extra), "widths": peer_widths(args, model, extra)})
        ours.append(our_speed(args, model))

    def row(name, what, unit):
        line(model, name, median(ours, what), median(peer, what), unit)

    def four(one):
        return 4 * one.get("between_widths", one["decode"]) / one["widths"][4]

    row("decode", lambda one: one["decode"], "tokens/s")
    row(f"prefill {PROMPT}", lambda one: one["prefill"], "tokens/s")
    for n in WIDTHS:
        row(f"T({n})/T(1)", lambda one: one["widths"][n], "")
    row("4 sequences", four, "tokens/s")
    gigabytes, bandwidth = (median(ours, lambda one: one[key]) for key in ("gigabytes", "bandwidth"))
    print(f"{model.name:32} {'weights read':16} {gigabytes:9.2f} {'':17}  GB/s, "
          f"{gigabytes / bandwidth:.2f} of {bandwidth:.1f}", flush=True)


def compare_depths(args, model, extra):
    """Prints decoding after long contexts."""
    for depth in args.depths:
        for cache_type in args.cache_types:
            name = f"at {depth} {cache_type}"
            ours, peer = [], []
            try:
                for _ in range(args.rounds):
                    ours.append(our_deep_decode(args, model, depth, cache_type))
                    peer.append(peer_deep_decode(args, model, extra, depth, cache_type))
            except subprocess.TimeoutExpired as late:
                program = pathlib.Path(late.cmd[0]).name
                found = f"; {args.specrun.name} {ours[0]:.2f} tokens/s" if ours else ""
                print(f"{model.name:32} {name:16} {program} had no result after {late.timeout} s{found}",
                      flush=True)
                continue
            line(model, name, statistics.median(ours), statistics.median(peer), "tokens/s")


def main():
    args = parse()
    print(f"{args.threads} threads, {args.rounds} rounds; medians")
    print(f"{'model':32} {'what':16} {'ours':>9} {'peer':>9} {'ratio':>7}")
    deep = (args.deep or args.models) if args.depths else []
    for model in dict.fromkeys(args.models + deep):
        extra = repack_flag(args.peer, model)
        if model in args.models:
            compare(args, model, extra)
        if model in deep:
            compare_depths(args, model, extra)
        if extra:
            print(f"{model.name:32} the peer ran with {' '.join(extra)}: it dies without")


if __name__ == "__main__":
    main()
