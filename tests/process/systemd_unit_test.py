"""systemd-analyze finds nothing to say about deploy/dtorchd.service. Arguments: the unit, the built dtorchd."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

UNIT, DAEMON = map(pathlib.Path, sys.argv[1:3])


def verify(text):
    """What systemd-analyze says of a unit with this text."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / UNIT.name
        copy.write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy]
        result = subprocess.run(command, capture_output=True, text=True, timeout=50)
    return result.stdout + result.stderr + (f"exit code {result.returncode}" if result.returncode else "")


class SystemdUnit(unittest.TestCase):
    def setUp(self):
        self.text = re.sub(r"^ExecStart=\S+", f"ExecStart={DAEMON.resolve()}", UNIT.read_text(), flags=re.M)

    def test_the_unit_is_clean(self):
        self.assertEqual(verify(self.text), "")

    def test_a_mistake_in_it_would_be_seen(self):
        self.assertIn("notfy", verify(self.text.replace("Type=notify", "Type=notfy")))
        self.assertIn("WatchdogSecs", verify(self.text.replace("WatchdogSec=", "WatchdogSecs=")))

    def test_the_start_limit_leaves_the_daemon_its_own(self):
        limits = dict(re.findall(r"^(Timeout\w+Sec)=(\d+)$", self.text, flags=re.M))
        printed = subprocess.run([DAEMON, "--print-config"], capture_output=True, text=True, timeout=50, check=True).stdout
        self.assertIn("start_timeout = 1m ", printed)
        self.assertGreater(int(limits["TimeoutStartSec"]), 60)
        self.assertIn("[shutdown]\ntimeout = 8s ", printed)
        self.assertGreater(int(limits["TimeoutStopSec"]), 8)


if __name__ == "__main__":
    if not shutil.which("systemd-analyze"):
        print("SKIP: no systemd-analyze here")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
