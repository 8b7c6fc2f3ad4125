#!/usr/bin/env python3
"""Called by ray.sh in the folder of in.gguf and one.gguf.

usage: ray_check.py SPECCONV ROUNDS
"""

import hashlib
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

import psutil
import ray
from ray.cluster_utils import Cluster

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integrations" / "ray"))
import specconv_ray  # noqa: E402

SHARDS = 16


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plan(specconv, name):
    shutil.rmtree(f"{name}.json.parts", ignore_errors=True)
    for suffix in (".json", ".gguf"):
        pathlib.Path(name + suffix).unlink(missing_ok=True)
    command = ["plan", "quantize", "in.gguf", f"{name}.gguf", "Q4_K_M", "--shards", str(SHARDS), "-o", f"{name}.json"]
    subprocess.run([specconv, *command, "-q"], check=True)


def orphans():
    """Returns the programs whose worker was killed."""
    return [process for process in psutil.process_iter(["ppid"]) if process.info["ppid"] == 1]


def processes(kind):
    """Returns the workers of Ray that run a shard of this check, or the programs that they started."""
    plan_path = str(pathlib.Path("ray.json").resolve())
    found = []
    for process in psutil.Process().children(recursive=True) + orphans():
        try:
            line = process.cmdline() or [""]
        except psutil.Error:
            continue
        is_worker = line[0].startswith("ray::") and "shard" in line[0]
        is_program = len(line) > 2 and line[1] == "run" and line[2] == plan_path
        if is_worker if kind == "worker" else is_program:
            found.append(process)
    return found


def kill(kind, delay, killed):
    """Kills one process, after some time in which shards run."""
    while not processes(kind):
        time.sleep(0.01)
    time.sleep(delay)
    victims = processes(kind)
    if victims:
        victims[random.randrange(len(victims))].kill()
        killed.append(kind)


def one_machine(specconv, rounds, expected):
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL")
    killed = []
    started = time.time()
    for i in range(rounds):
        plan(specconv, "ray")
        kind = ("worker", "program")[i % 2]
        thread = threading.Thread(target=kill, args=(kind, random.random() * 2, killed), daemon=True)
        thread.start()
        reports = specconv_ray.run("ray.json", program=specconv, max_retries=3)
        thread.join(timeout=0.1)
        assert len(reports) == SHARDS
        assert sha256("ray.gguf") == expected, f"round {i}: other bytes than one run"
    ray.shutdown()
    seconds = time.time() - started
    counts = {kind: killed.count(kind) for kind in ("worker", "program")}
    print(f"ray {ray.__version__}, one machine, four workers: {rounds} runs, killed {counts}: equal, {seconds:.0f} s")


def two_nodes(specconv, expected):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    second = cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL")
    for removes in (False, True):
        plan(specconv, "nodes")
        nodes = specconv_ray.spread("nodes.json")
        assert len(set(nodes.values())) == 2

        def progress(n_done, n_shards, report):
            if removes and n_done == 2:
                cluster.remove_node(second, allow_graceful=False)

        specconv_ray.run("nodes.json", program=specconv, nodes=nodes, progress=progress)
        assert sha256("nodes.gguf") == expected, "two nodes: other bytes than one run"
    ray.shutdown()
    cluster.shutdown()
    print("two node processes, once with one removed after two shards: equal")


def main():
    specconv, rounds = sys.argv[1], int(sys.argv[2])
    expected = sha256("one.gguf")
    random.seed(1)
    one_machine(specconv, rounds, expected)
    two_nodes(specconv, expected)


main()
