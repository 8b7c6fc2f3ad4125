"""Measures `specrun serve` beside llama-server under load. Started by load.sh.

usage: load.py SPECRUN PEER_BIN MODEL.gguf [--clients N,N..] [--seconds S] [--rounds N] [--slots N]
               [--n-predict N] [--prompt-chars N] [--ours="FLAGS"] [--peers="FLAGS"] [-- FLAGS OF BOTH]

Both servers run at the same time with the same file, slots, threads and speculators. Clients take turns: for
each number of concurrent clients, one server is loaded for some seconds, then the other, in several rounds.
Each client streams one greedy text after another. Reports tokens/s, and the time to the first token, per
further token, and of a whole request (median and 95th percentile). Prompt caches are off, so that both
evaluate the same tokens.
"""

import argparse
import asyncio
import json
import math
import os
import pathlib
import shlex
import statistics
import sys
import time

from http_client import Request, body_of, events_of
from server import Server

sys.path.append(str(pathlib.Path(__file__).parents[1] / "speed"))
from idle import busy_share

PROMPTS = pathlib.Path(__file__).parents[2] / "models/prompts.jsonl"
# Tokens of context per slot.
CONTEXT = 1024


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("specrun", type=pathlib.Path)
    parser.add_argument("peer", type=pathlib.Path, help="folder with llama-server")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-predict", type=int, default=96)
    parser.add_argument("--prompt-chars", type=int, help="length to which the bundled prompts are cut")
    parser.add_argument("--ours", default="", help="more flags of specrun serve")
    parser.add_argument("--peers", default="", help="more flags of llama-server")
    own, both = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, both = own[:at], own[at + 1:]
    args = parser.parse_args(own)
    args.both = both
    return args


def servers(args):
    """Returns both servers."""
    context, threads = CONTEXT * args.slots, ["-t", args.threads]
    ours = [args.specrun, "serve", "-m", args.model, "-np", args.slots, "-c", CONTEXT, *threads]
    ours += ["--port", 18201, "--max-queue", 256, *args.both, *shlex.split(args.ours)]
    peer = [args.peer / "llama-server", "-m", args.model, "-np", args.slots, "-c", context, *threads]
    peer += ["--port", 18202, *args.both, *shlex.split(args.peers)]
    env = os.environ | {"LD_LIBRARY_PATH": str(args.peer)}
    return Server("specrun", ours), Server("llama-server", peer, env=env)


class Load:
    """Results of the clients of one server."""

    def __init__(self):
        self.n_tokens, self.seconds, self.n_drafted, self.n_accepted = 0, 0.0, 0, 0
        self.first, self.each, self.whole = [], [], []

    def add(self, request, timings):
        n = timings["predicted_n"]
        self.first.append(request.first - request.started)
        self.whole.append(request.ended - request.started)
        if n > 1:
            self.each.append((request.ended - request.first) / (n - 1))
        self.n_drafted += timings.get("draft_n", 0)
        self.n_accepted += timings.get("draft_n_accepted", 0)

    def speed(self):
        return self.n_tokens / self.seconds


async def load(server, args, n_clients, prompts, into):
    """Loads a server until the time is over. Only tokens that arrive in that time count; unfinished requests
    are cancelled."""
    start = time.perf_counter()
    end = start + args.seconds
    turns = iter(range(10**9))

    async def client():
        while True:
            prompt = prompts[next(turns) % len(prompts)]
            body = {"prompt": prompt, "n_predict": args.n_predict, "temperature": 0,
                    "cache_prompt": False, "stream": True}
            request = Request(server.port, "POST", "/completion", body, counted=b'"stop":false')
            try:
                await request.run()
            finally:
                into.n_tokens += request.n_counted
            events = events_of(request)
            if request.status != 200 or not events or not events[-1].get("stop"):
                sys.exit(f"{server.name}: status {request.status}: {body_of(request)[-500:]!r}")
            into.add(request, events[-1]["timings"])

    tasks = [asyncio.create_task(client()) for _ in range(n_clients)]
    done, open_ = await asyncio.wait(tasks, timeout=end - time.perf_counter(), return_when="FIRST_EXCEPTION")
    for task in done:
        task.result()
    into.seconds += time.perf_counter() - start
    for task in open_:
        task.cancel()
    await asyncio.gather(*open_, return_exceptions=True)
    await server.idle()


def quantiles(times, unit, digits):
    """Returns the median and the 95th percentile as text."""
    if len(times) < 2:
        return "-"
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return " / ".join(f"{cuts[i] * unit:.{digits}f}" for i in (9, 18))


async def main():
    args = parse()
    lines = map(json.loads, PROMPTS.read_text().splitlines())
    prompts = [line["prompt"][: args.prompt_chars] for line in lines]
    ours, peer = servers(args)
    with ours, peer:
        for server in (ours, peer):
            await server.ready()
        warm_up = argparse.Namespace(**{**vars(args), "seconds": 3})
        for server in (ours, peer):
            await server.idle()
            await load(server, warm_up, args.slots, prompts, Load())
        busy = busy_share()
        print(f"{args.model.name}, {args.slots} slots, {args.threads} threads, {args.n_predict} tokens, "
              f"{args.rounds} rounds of {args.seconds:.0f} s; other load {100 * busy:.0f} % of the CPU")
        columns = "{:>7} {:13} {:>9} {:>6} {:>7} {:>6} {:>15} {:>13} {:>13}"
        print(columns.format("clients", "server", "tokens/s", "ratio", "drafts", "rate", "first token ms",
                             "per token ms", "request s"), flush=True)
        for n_clients in map(int, args.clients.split(",")):
            found = {server.name: Load() for server in (ours, peer)}
            ratios = []
            for i in range(args.rounds):
                speeds = {}
                for server in (ours, peer) if i % 2 == 0 else (peer, ours):
                    one = Load()
                    await load(server, args, n_clients, prompts, one)
                    speeds[server.name] = one.speed()
                    whole = found[server.name]
                    for name, value in vars(one).items():
                        setattr(whole, name, getattr(whole, name) + value)
                ratios.append(speeds["specrun"] / speeds["llama-server"] if speeds["llama-server"] else math.inf)
            for name, one in found.items():
                ratio = f"{statistics.median(ratios):.2f}" if name == "specrun" else ""
                rate = f"{one.n_accepted / one.n_drafted:.3f}" if one.n_drafted else "-"
                print(columns.format(n_clients, name, f"{one.speed():.1f}", ratio, one.n_drafted, rate,
                                     quantiles(one.first, 1e3, 0), quantiles(one.each, 1e3, 1),
                                     quantiles(one.whole, 1, 2)), flush=True)


asyncio.run(main())
