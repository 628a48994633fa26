"""A dtorchd of this program's own."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import weakref

from . import _library

_daemons = weakref.WeakSet()


def _let_go():
    for daemon in _daemons:
        daemon._let_go()


os.register_at_fork(after_in_child=_let_go)


class OwnDaemon:
    """A dtorchd that ends with stop() or, by the pipe that both hold, with this process, however that ends. A forked child
    does not have it.

    flags: of dtorchd, as {"workers_count": 2}. RuntimeError: it did not come up; the message ends with its log.
    """

    def __init__(self, flags, timeout):
        self._process = None
        self._folder = tempfile.mkdtemp(prefix="dtorch-")
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._log = pathlib.Path(self._folder, "log")
        self.address = str(pathlib.Path(self._folder, "dtorchd.sock"))
        theirs, self._lifetime = os.pipe()
        _daemons.add(self)
        try:
            self._start(flags, theirs)
            self._wait(timeout)
        except BaseException:
            self.stop()
            raise

    def _start(self, flags, theirs):
        command = [str(_library.folder() / "dtorchd"), "--runtime.dir", self._folder, "--runtime.lifetime_fd", str(theirs)]
        for name, value in flags.items():
            command += ["--" + name.replace("_", ".", 1), str(value).lower() if isinstance(value, bool) else str(value)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DTORCH_")}
        try:
            with open(self._log, "w") as log:
                self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, pass_fds=[theirs], start_new_session=True)
        finally:
            os.close(theirs)

    def _wait(self, timeout):
        deadline = time.monotonic() + timeout
        while not os.path.exists(self.address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = self._log.read_text(errors="replace").splitlines()[-10:]
                raise RuntimeError("\n  ".join(["dtorchd did not start", *lines]))
            time.sleep(0.01)

    def _let_go(self):
        """In a forked child."""
        if self._lifetime is not None:
            os.close(self._lifetime)
            self._lifetime = None
        self._remove_folder.detach()

    def stop(self):
        """Waits for its end. Idempotent."""
        if self._lifetime is None:
            return
        lifetime, self._lifetime = self._lifetime, None
        os.close(lifetime)
        if self._process is not None:
            self._process.terminate()  # the pipe may be held by a child, too
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._remove_folder()
