"""Two Ray actors, one a worker, measured on request: bench/run's peer for submit-and-get.

Each line of input, "get N", is one repetition: N times both actors add two 8×8 arrays and the value of one is awaited. Its
answer is a line of JSON with the median in microseconds.
"""
import json
import statistics
import sys
import time

import numpy as np
import ray


@ray.remote
class Worker:
    def __init__(self):
        self.x = np.ones((8, 8), np.float32)

    def add(self):
        return self.x + self.x


def get(workers, count):
    times = []
    for i in range(count + 100):
        start = time.perf_counter()
        values = [worker.add.remote() for worker in workers]
        ray.get(values[0])
        if i >= 100:
            times.append((time.perf_counter() - start) * 1e6)
    return {"us": statistics.median(times)}


def main():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    workers = [Worker.remote() for _ in range(2)]
    ray.get([worker.add.remote() for worker in workers])
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(get(workers, int(line.split()[1]))), flush=True)


main()
