"""A real dtorchd with real workers, for tests in Python."""
import json
import os
import signal
import subprocess
import tempfile

LIMIT = 20  # seconds
# Codes that say that a call is not possible, rather than that it went wrong.
REFUSALS = {"INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"}


class Daemon:
    """`bin`: the folder of the programs. Stopped by stop(), which checks that it ends in order."""

    def __init__(self, bin, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="dtorch-test-python-")
        self.socket = f"{self.folder.name}/dtorchd.sock"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DTORCH_")}
        self.log = open(f"{self.folder.name}/log", "w+")
        self.process = subprocess.Popen([bin / "dtorchd", "--runtime.dir", self.folder.name, *flags], env=environment,
                                        stdout=self.log, stderr=self.log, start_new_session=True)
        self.ctl = [bin / "dtorchctl", "--socket", self.socket]
        subprocess.run([*self.ctl, "status", "--wait", "60"], check=True, capture_output=True)

    def status(self):
        """What dtorchctl tells, as a dictionary."""
        return json.loads(subprocess.run([*self.ctl, "--json", "status"], capture_output=True, timeout=LIMIT).stdout)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        self.log.close()
        self.folder.cleanup()
        if code:
            raise AssertionError(f"dtorchd ended with exit code {code}")
