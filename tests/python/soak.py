"""A daemon under random load and random deaths: sessions come and go, workers and clients are killed, stopped and continued.
Every answer is checked against NumPy; an error must be one that the deaths explain. In pauses nothing may be left: no
tensor, session, descriptor or thread, and memory must not grow. Arguments: the folder of the programs; --minutes M; --seed S."""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np

import dtorch
from daemon import Daemon
from dtorch import Partial, Replicate, Shard

WORKERS = 3
CLIENTS = 3
PLACEMENTS = (Shard(0), Replicate(), Partial())
# What a client may be told while workers die, and while it cancels.
EXPLAINED = (dtorch.WorkerLost, dtorch.TensorLost, dtorch.Cancelled, dtorch.DeadlineExceeded)
PAUSE_EVERY = 45       # s
GROWTH = 24 << 20      # bytes that a process may grow by, from the first pause to the last
PATIENCE = 60          # s


def write_fault(file, text):
    """A line of its own."""
    with open(file, "a") as out:
        out.write(text.replace("\n", " | ") + "\n")


# --- a client ---

class Client:
    """Runs random programs on int64 tensors until SIGTERM; prints what came of them as JSON."""

    def __init__(self, socket, seed, faults):
        self.socket = socket
        self.random = random.Random(seed)
        self.faults = faults
        self.counts = collections.Counter()
        self.ends = False
        signal.signal(signal.SIGTERM, self.end)

    def end(self, *_):
        self.ends = True

    def fault(self, text):
        write_fault(self.faults, text)

    def run(self):
        while not self.ends:
            session = dtorch.client.connect(self.socket, timeout=PATIENCE)
            session.implicit = True
            for _ in range(self.random.randint(1, 20)):
                if self.ends:
                    break
                try:
                    self.program(session)
                    self.counts["programs"] += 1
                except EXPLAINED as error:
                    self.counts[type(error).__name__] += 1
                    session.await_workers().wait(PATIENCE)
            session.close()
            self.counts["sessions"] += 1
        print(json.dumps(self.counts))

    def mesh(self, session):
        ranks = self.random.sample(range(WORKERS), self.random.randint(1, WORKERS))
        return session.mesh(ranks)

    def program(self, session):
        draw = self.random
        mesh = self.mesh(session)
        extent = draw.randint(1, 40)
        values = []  # pairs: on the workers, here
        for step in range(draw.randint(5, 120)):
            kind = draw.random()
            if kind < 0.1 or not values:
                array = np.asarray([draw.randint(-1000, 1000) for _ in range(extent)], np.int64)
                values.append((session.put(array, [draw.choice(PLACEMENTS)], mesh), array))
            elif kind < 0.55:
                (x, a), (y, b) = draw.choice(values), draw.choice(values)
                name, function = draw.choice((("add", np.add), ("sub", np.subtract), ("mul", np.multiply)))
                values.append((session.call(f"aten::{name}.Tensor", x, y), function(a, b)))
            elif kind < 0.7:
                index = draw.randrange(len(values))
                x, a = values[index]
                x = session.call("aten::clone", x.redistribute([draw.choice((Shard(0), Replicate()))]))
                session.call("aten::add_.Scalar", x, step)
                values[index] = (x, a + step)
            elif kind < 0.85:
                index = draw.randrange(len(values))
                x, a = values[index]
                values[index] = (x.redistribute([draw.choice(PLACEMENTS)]), a)
            elif kind < 0.87:
                session.cancel()
                return
            elif kind < 0.95:
                self.check(*draw.choice(values))
            else:
                x, a = draw.choice(values)
                self.check(session.call("aten::sum", x), a.sum())
            if len(values) > 12:
                values.pop(draw.randrange(len(values)))
        for x, a in values:
            self.check(x, a)

    def check(self, tensor, want):
        got = np.asarray(tensor.get().wait(PATIENCE))
        self.counts["answers"] += 1
        if not np.array_equal(got, want):
            self.fault(f"a wrong value: {got} where {want} was wanted")


# --- what kills ---

class Soak:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.daemon = Daemon(options.bin.resolve(), "--workers.count", str(WORKERS), "--workers.threads", "1",
                             "--workers.restart_delay", "50ms", "--workers.restart_max_delay", "200ms",
                             "--workers.restart_limit", "1000000",
                             "--heartbeat.interval", "200ms", "--heartbeat.silent_after", "1s",
                             "--worker.silent_kill", "5s", "--log.level", "warn")
        self.faults = pathlib.Path(self.daemon.folder.name, "faults")
        self.faults.touch()
        self.clients = []
        self.done = collections.Counter()   # what was done to them
        self.counts = collections.Counter()  # what came of it
        self.pauses = []
        self.next_seed = options.seed * 1000

    def fault(self, text):
        write_fault(self.faults, text)

    def start_client(self):
        self.next_seed += 1
        self.clients.append(subprocess.Popen(
            [sys.executable, __file__, str(self.options.bin), "--client", self.daemon.socket, "--seed", str(self.next_seed),
             "--faults", self.faults], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def worker_pids(self):
        return [worker["pid"] for worker in self.status()["workers"] if worker["pid"] > 0]

    def status(self):
        begin = time.monotonic()
        status = self.daemon.status()
        took = time.monotonic() - begin
        # With the start of a process on a busy machine.
        if took > 3:
            self.fault(f"status took {took:.1f} s")
        return status

    def signal(self, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def act(self):
        """One thing that happens to somebody."""
        action = self.random.choice(("kill worker", "kill worker", "stop worker", "kill client", "stop client", "status"))
        if action == "status":
            self.done[action] += 1
            return self.status()
        if action.endswith("worker"):
            pids = self.worker_pids()
        else:
            pids = [client.pid for client in self.clients if client.poll() is None]
        if not pids:
            return
        # Mostly one after the other: all together must be up now and then, however long that takes here.
        if action == "kill worker" and self.status()["health"] != "healthy" and self.random.random() < 0.8:
            return
        self.done[action] += 1
        pid = self.random.choice(pids)
        if action.startswith("kill"):
            return self.signal(pid, signal.SIGKILL)
        self.signal(pid, signal.SIGSTOP)
        time.sleep(self.random.choice((0.1, 0.5, 1.5)))
        self.signal(pid, signal.SIGCONT)

    def reap(self, ends):
        """Clients that have ended: by a kill, or because they were told to."""
        for client in list(self.clients):
            if client.poll() is None and not ends:
                continue
            try:
                out, err = client.communicate(timeout=2 * PATIENCE)
            except subprocess.TimeoutExpired:
                client.kill()
                out, err = client.communicate()
                self.fault("a client does not end")
            self.clients.remove(client)
            if client.returncode == 0:
                self.counts.update(json.loads(out.splitlines()[-1]))
            elif client.returncode not in (-signal.SIGKILL, -signal.SIGTERM):  # the latter: before it listens
                self.fault(f"a client ended with {client.returncode}: {err[-2000:]}; {self.status()['workers']}")

    def pause(self):
        """Everybody ends; then nothing may be left."""
        for client in self.clients:
            client.send_signal(signal.SIGTERM)
        self.reap(ends=True)
        deadline = time.monotonic() + PATIENCE
        while True:
            status = self.status()
            left = {"sessions": len(status["sessions"]), "in flight": status["operators_in_flight"],
                    "tensor bytes": sum(worker["tensor_bytes"] for worker in status["workers"])}
            if status["health"] == "healthy" and not any(left.values()):
                break
            if time.monotonic() > deadline:
                self.fault(f"left in a pause: {status['health']}, {left}")
                break
            time.sleep(0.2)
        self.pauses.append(self.measure())

    def measure(self):
        """Of the daemon: its resident memory, descriptors and threads."""
        process = pathlib.Path(f"/proc/{self.daemon.process.pid}")
        resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {"resident": resident, "descriptors": len(list((process / "fd").iterdir())),
                "threads": len(list((process / "task").iterdir()))}

    def run(self):
        end = time.monotonic() + self.options.minutes * 60
        while time.monotonic() < end:
            pause = min(end, time.monotonic() + PAUSE_EVERY)
            while time.monotonic() < pause:
                while len(self.clients) < CLIENTS:
                    self.start_client()
                time.sleep(self.random.uniform(0.2, 1.5))
                self.act()
                self.reap(ends=False)
            self.pause()
            print(f"[{self.options.minutes - (end - time.monotonic()) / 60:6.1f} min] {dict(self.counts)}; done to them: "
                  f"{dict(self.done)}; daemon {self.pauses[-1]}", flush=True)
        self.judge()

    def judge(self):
        first, last = self.pauses[0], self.pauses[-1]
        if last["resident"] - first["resident"] > GROWTH:
            self.fault(f"the daemon grew from {first['resident']} to {last['resident']} bytes")
        for what in ("descriptors", "threads"):
            if last[what] > first[what] + 4:
                self.fault(f"the daemon had {first[what]} {what} in the first pause, {last[what]} in the last")
        if not self.counts["answers"]:
            self.fault("no answer was checked")
        faults = self.faults.read_text().splitlines()
        if faults:
            print(pathlib.Path(self.daemon.folder.name, "log").read_text()[-20000:])
        self.daemon.stop()
        for text in faults[:40]:
            print(f"fault: {text}")
        print(f"{self.counts['answers']} answers of {self.counts['programs']} programs and {self.counts['sessions']} sessions "
              f"checked; {sum(self.done.values())} things done to workers and clients; {len(faults)} faults")
        sys.exit(1 if faults else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--faults", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        return Client(options.client, options.seed, options.faults).run()
    print(f"seed {options.seed}", flush=True)
    Soak(options).run()


if __name__ == "__main__":
    main()
