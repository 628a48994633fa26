"""A dtorchd of this program's own."""
import os
import pathlib
import subprocess
import tempfile
import time

from . import _library


_lifetimes = set()  # of this process's daemons: a forked child does not hold them


def _let_go():
    for lifetime in _lifetimes:
        os.close(lifetime)
    _lifetimes.clear()


os.register_at_fork(after_in_child=_let_go)


class OwnDaemon:
    """A dtorchd that ends with stop() or, by the pipe that both hold, with this process, however that ends.

    flags: of dtorchd, as {"workers_count": 2}. RuntimeError: it did not come up; the message ends with its log.
    """

    def __init__(self, flags, timeout):
        self._folder = tempfile.TemporaryDirectory(prefix="dtorch-")
        self.address = str(pathlib.Path(self._folder.name, "dtorchd.sock"))
        self._log = pathlib.Path(self._folder.name, "log")
        theirs, self._lifetime = os.pipe()
        _lifetimes.add(self._lifetime)
        command = [str(_library.folder() / "dtorchd"), "--runtime.dir", self._folder.name, "--runtime.lifetime_fd",
                   str(theirs)]
        for name, value in flags.items():
            command += ["--" + name.replace("_", ".", 1), str(value).lower() if isinstance(value, bool) else str(value)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DTORCH_")}
        try:
            with open(self._log, "w") as log:
                self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, pass_fds=[theirs], start_new_session=True)
        finally:
            os.close(theirs)
        self._wait(timeout)

    def _wait(self, timeout):
        deadline = time.monotonic() + timeout
        while not os.path.exists(self.address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"dtorchd did not start{self._last_words}")
            time.sleep(0.01)

    def stop(self):
        """Waits for its end. Idempotent."""
        if self._lifetime is None:
            return
        self._process.terminate()  # the pipe may be held by a child, too
        _lifetimes.discard(self._lifetime)
        os.close(self._lifetime)
        self._lifetime = None
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        lines = self._log.read_text(errors="replace").splitlines()[-10:]
        self._last_words = "".join(f"\n  {line}" for line in lines)
        self._folder.cleanup()
