"""What the documents name exists: files, commands, configuration keys; README's C++ example is examples/hello/hello.cc."""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1])
BIN = pathlib.Path(sys.argv[2])
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A path of the tree: starts with one of its folders, or is a file of its root.
PATH = re.compile(r"`((?:core|proto|shm|comm|dispatch|worker|daemon|client|tests|bench|examples|deploy|docs|cmake)/[\w./-]*)`")


class Documents(unittest.TestCase):
    def test_paths_exist(self):
        for document in DOCUMENTS:
            for path in PATH.findall(document.read_text()):
                with self.subTest(document=document.name, path=path):
                    self.assertTrue((ROOT / path).exists())

    def test_commands_exist(self):
        listed = subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
        for document in DOCUMENTS:
            for command in re.findall(r"\./dev ([a-z]+)", document.read_text()):
                with self.subTest(document=document.name, command=command):
                    self.assertRegex(listed, rf"(?m)^\s+{command}\b")

    def test_configuration_keys_exist(self):
        printed = subprocess.run([BIN / "dtorchd", "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
        keys = "workers|worker(?!\.proto)|runtime|listen|heartbeat|executor|sessions?|comm|shutdown|log"
        for document in DOCUMENTS:
            for key in re.findall(rf"`((?:{keys})\.[a-z_]+)`", document.read_text()):
                with self.subTest(document=document.name, key=key):
                    self.assertIn(key, printed)

    def test_links_of_documents(self):
        for document in DOCUMENTS:
            for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
                with self.subTest(document=document.name, link=link):
                    self.assertTrue((document.parent / link).exists())

    def test_readme_example_of_pytorch(self):
        block = re.search(r"```python\n(def main.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
        self.assertIn(block, (ROOT / "examples/digits.py").read_text())

    def test_readme_example(self):
        block = re.search(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
        self.assertEqual(block, (ROOT / "examples/hello/hello.cc").read_text())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
