"""Runs the shards of a specconv plan on a Ray cluster.

The plan, its parts and the inputs are files that all nodes can read; Ray moves paths and numbers only. A shard that
fails, or whose node is lost, runs again, and continues from what the interrupted run left.

    specconv plan quantize model.gguf model-q4.gguf Q4_K_M --shards 64 -o plan.json
    python specconv_ray.py plan.json --address auto
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from typing import Callable, Mapping, Optional, Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def _task() -> Callable[..., dict]:
    """Returns the function that runs one shard. Ray sends it to the workers, which do not need this module."""

    def run_shard(program: str, plan: str, shard: int, folder: str, threads: int) -> dict:
        command = [program, "run", plan, "--shard", str(shard), "--threads", str(threads), "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        raise RuntimeError(f"shard {shard}: exit code {done.returncode}: {done.stderr.strip()}")

    return run_shard


def run(
    plan: str | os.PathLike,
    *,
    program: str = "specconv",
    folder: Optional[str] = None,
    cpus_per_shard: float = 1,
    threads: int = 1,
    max_retries: int = 5,
    nodes: Optional[Mapping[int, str]] = None,
    progress: Optional[Callable[[int, int, dict], None]] = None,
    finish: bool = True,
    finish_args: Sequence[str] = (),
) -> list[dict]:
    """Runs all shards of a plan on the cluster that ray.init has connected, then joins them. Returns the reports of
    the shards, in their order.

    folder: folder in which relative paths start; default: the one where the plan was made.
    cpus_per_shard, threads: cores that a shard reserves, and threads that it starts.
    max_retries: attempts after the first one, per shard.
    nodes: id of the Ray node on which each shard should run, such as one whose disk has its input. Other nodes run
        it if that node is busy or lost.
    progress: called with the number of finished shards, the number of shards, and the report of the last one.
    finish: run "specconv finish" at the end, on this machine, with finish_args.
    """
    path = str(pathlib.Path(plan).resolve())
    described = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    folder = folder or described["folder"]
    shards = [shard["shard"] for shard in described["shards"]]
    task = ray.remote(num_cpus=cpus_per_shard, max_retries=max_retries, retry_exceptions=True)(_task())
    waiting = {}
    for shard in shards:
        options = {"name": f"specconv shard {shard}"}
        if nodes and shard in nodes:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(nodes[shard], soft=True)
        waiting[task.options(**options).remote(program, path, shard, folder, threads)] = shard
    reports = {}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1)
        for reference in done:
            shard = waiting.pop(reference)
            reports[shard] = ray.get(reference)
            if progress:
                progress(len(reports), len(shards), reports[shard])
    if finish:
        subprocess.run([program, "finish", path, *finish_args], cwd=folder, check=True)
    return [reports[shard] for shard in shards]


def spread(plan: str | os.PathLike) -> dict[int, str]:
    """Places consecutive shards on the same node: neighbours read neighbouring bytes, often of the same file."""
    described = json.loads(pathlib.Path(plan).read_text(encoding="utf-8"))
    alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    n_shards = len(described["shards"])
    return {shard: alive[shard * len(alive) // n_shards] for shard in range(n_shards)}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Run the shards of a specconv plan on a Ray cluster, and join them.")
    parser.add_argument("plan", help="plan, as specconv plan writes it")
    parser.add_argument("--address", help="address of the cluster, or auto [default: a new one on this machine]")
    parser.add_argument("--program", default="specconv", help="specconv on all nodes [default: from the PATH]")
    parser.add_argument("--cpus-per-shard", type=float, default=1, help="cores that a shard reserves [default: 1]")
    parser.add_argument("--threads", type=int, default=1, help="threads of a shard [default: 1]")
    parser.add_argument("--max-retries", type=int, default=5, help="attempts after the first one [default: 5]")
    parser.add_argument("--spread", action="store_true", help="run consecutive shards on the same node")
    parser.add_argument("--no-finish", action="store_true", help="do not join the parts")
    args = parser.parse_args(arguments)
    ray.init(address=args.address, log_to_driver=False, logging_level="ERROR")

    def progress(n_done: int, n_shards: int, report: dict) -> None:
        state = "kept" if report["kept"] else f"{report['elapsed_ms'] / 1000:.1f} s"
        print(f"{n_done}/{n_shards}: shard {report['shard']} {state}", file=sys.stderr, flush=True)

    try:
        run(
            args.plan,
            program=args.program,
            cpus_per_shard=args.cpus_per_shard,
            threads=args.threads,
            max_retries=args.max_retries,
            nodes=spread(args.plan) if args.spread else None,
            progress=progress,
            finish=not args.no_finish,
        )
    except (ray.exceptions.RayError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
