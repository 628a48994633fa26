"""One rank of torch DTensor on gloo, measured on request: bench/run's peer.

Arguments: rank, world size, a file for the rendezvous. Each line of input, "pipelined N", "mm N" or "gather N", is one repetition;
its answer is a line of JSON with microseconds. All ranks must be given the same lines.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def pipelined(x, count):
    def run(times):
        y = x
        for _ in range(times):
            y = y + x
        dist.barrier()

    run(min(count, 2000))
    start = time.perf_counter()
    run(count)
    return {"us": (time.perf_counter() - start) / count * 1e6}


def mm(x, count):
    right = x.redistribute(placements=[Replicate()])

    def run(times):
        y = x
        for _ in range(times):
            y = y @ right
        dist.barrier()

    run(min(count, 2000))
    start = time.perf_counter()
    run(count)
    return {"us": (time.perf_counter() - start) / count * 1e6}


def gather(x, count):
    times = []
    for i in range(count + 100):
        start = time.perf_counter()
        (x + x).full_tensor()
        if i >= 100:
            times.append((time.perf_counter() - start) * 1e6)
    return {"us": statistics.median(times)}


def main():
    rank, world, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    x = distribute_tensor(torch.ones(8, 8), init_device_mesh("cpu", (world,)), [Shard(0)])
    print("ready", flush=True)
    for line in sys.stdin:
        what, count = line.split()
        print(json.dumps({"pipelined": pipelined, "mm": mm, "gather": gather}[what](x, int(count))), flush=True)
    os._exit(0)  # to take gloo down in order may take minutes


if __name__ == "__main__":
    with torch.inference_mode():
        main()
