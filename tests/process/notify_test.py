"""dtorchd as systemd sees it (Type=notify). Argument: the folder of the built programs."""
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv[1]).resolve()
START_LIMIT = 60
STOP_LIMIT = 20


class Service:
    """dtorchd with a notification socket and a runtime directory of its own, ended at the end of the block."""

    def __init__(self, *flags, watchdog=None):
        self.folder = tempfile.TemporaryDirectory(prefix="dtorch-notify.")
        path = pathlib.Path(self.folder.name)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path / "notify"))
        self.log = path / "log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DTORCH_")}
        environment |= {"NOTIFY_SOCKET": str(path / "notify"), "RUNTIME_DIRECTORY": str(path / "run")}
        if watchdog:
            environment["WATCHDOG_USEC"] = str(int(watchdog * 1e6))
        with open(self.log, "w") as log:
            command = [BIN / "dtorchd", *flags]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.socket.close()
        self.folder.cleanup()

    def messages(self, limit):
        """Each state that arrives within `limit` seconds; ends early when the daemon has."""
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(min(left, 0.1))
            try:
                yield from self.socket.recv(65536).decode().splitlines()
            except socket.timeout:
                if self.process.poll() is not None:
                    return

    def wait_for(self, state, limit):
        """All messages up to `state`, or an AssertionError with the daemon's log."""
        seen = []
        for message in self.messages(limit):
            seen.append(message)
            if message == state:
                return seen
        raise AssertionError(f"no {state} within {limit} s, only {seen}; log:\n{self.log.read_text()}")

    def children(self):
        """Names of the daemon's child processes."""
        names = []
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                names.append(pathlib.Path(f"/proc/{pid}/comm").read_text().strip())
        return names


class Notify(unittest.TestCase):
    def test_ready_once_the_workers_are_and_stopping_at_sigterm(self):
        with Service() as service:
            service.wait_for("READY=1", START_LIMIT)
            self.assertEqual([name for name in service.children() if name == "dtorch-worker"], ["dtorch-worker"] * 2)
            service.process.send_signal(signal.SIGTERM)
            after = service.wait_for("STOPPING=1", STOP_LIMIT)
            self.assertNotIn("READY=1", after)
            self.assertEqual(service.process.wait(STOP_LIMIT), 0, service.log.read_text())

    def test_in_thread_mode_too(self):
        with Service("--workers.mode=thread") as service:
            service.wait_for("READY=1", START_LIMIT)
            service.process.send_signal(signal.SIGTERM)
            service.wait_for("STOPPING=1", STOP_LIMIT)
            self.assertEqual(service.process.wait(STOP_LIMIT), 0, service.log.read_text())

    def test_a_worker_that_never_says_hello_is_no_readiness(self):
        with tempfile.TemporaryDirectory(prefix="dtorch-notify.") as folder:
            mute = pathlib.Path(folder) / "mute-worker"
            mute.write_text("#!/bin/sh\necho this is the last line of a mute worker >&2\nexec sleep 60\n")
            mute.chmod(mute.stat().st_mode | stat.S_IXUSR)
            with Service(f"--worker.binary={mute}", "--workers.start_timeout=1s") as service:
                self.assertNotIn("READY=1", list(service.messages(START_LIMIT)))
                self.assertNotEqual(service.process.wait(STOP_LIMIT), 0)
                self.assertIn("the last line of a mute worker", service.log.read_text())

    def test_the_watchdog_hears_from_it_in_time(self):
        with Service(watchdog=1.0) as service:
            service.wait_for("READY=1", START_LIMIT)
            heard = [time.monotonic()]
            for message in service.messages(3.0):
                if message == "WATCHDOG=1":
                    heard.append(time.monotonic())
            gaps = [later - earlier for earlier, later in zip(heard, heard[1:])]
            self.assertGreaterEqual(len(gaps), 3)
            self.assertLess(max(gaps), 1.0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
