"""What ./dev lint and ./dev format do: clang-format, clang-tidy, shellcheck, sources that no build lists, type names."""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

CXX = (".cc", ".h", ".cu")
BUILD = "build/lint"  # its own: clang-tidy cannot read GCC's precompiled headers
TIDY_ARGUMENTS = [
    "--extra-arg=-Wno-unknown-warning-option",
    f"--extra-arg=-include{os.path.abspath('cmake/clang_tidy_14.h')}",
]
CLEAN = pathlib.Path(BUILD) / "clean.json"  # what clang-tidy found nothing in: digests by unit
RECENT_COMMITS = 1
FULL_BUDGET = 24 * 3600


def git(*arguments, check=True):
    result = subprocess.run(["git", *arguments], capture_output=True, text=True)
    if check and result.returncode:
        sys.exit(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.split("\n") if result.returncode == 0 else []


def changed_files(everything, since):
    """Tracked and new files that exist, the most recently changed first, and the words that say which they are."""
    tracked = [f for f in git("ls-files") if f]
    if everything:
        return tracked, "all files"
    head = git("rev-parse", "HEAD")[0]
    if since is None:
        upstream = (git("merge-base", "HEAD", "origin/main", check=False) or [""])[0]
        recent = git("rev-list", f"--max-count={RECENT_COMMITS + 1}", "HEAD")
        recent = [r for r in recent if r]
        since = upstream if upstream not in ("", head) else recent[-1] if len(recent) > RECENT_COMMITS else None
    names = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    names += git("log", "--name-only", "--format=", f"{since}..HEAD" if since else "HEAD")
    what = f"files changed since {since[:12]}" if since else "files of all commits"
    return [f for f in dict.fromkeys(names) if f and os.path.isfile(f)], what


def check_format(files, fix):
    if not files:
        return []
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    result = subprocess.run(["clang-format-14", *mode, *files], capture_output=True, text=True)
    return [result.stderr + "./dev format puts this right\n"] if result.returncode else []


def check_listed():
    """A source that no CMakeLists.txt names is never compiled, and a test among them never run."""
    problems = []
    for name in git("ls-files", "--", "*.cc", "*.cu", "*.proto", "*_test.py"):
        path = pathlib.PurePath(name)
        lists = [folder / "CMakeLists.txt" for folder in path.parents]
        words = " ".join(pathlib.Path(f).read_text() for f in lists if os.path.isfile(f))
        wanted = path.stem if path.suffix == ".proto" else path.name
        if name and wanted not in words:
            problems.append(f"{name}: no CMakeLists.txt of its folder or above lists it\n")
    return problems


def check_waits():
    """Waits of Abseil's that end at a time of day: docs/gotchas.md."""
    calls = r"\b(?:Await|LockWhen|WaitFor\w*|Wait)With(?:Timeout|Deadline)\("
    return [f"{name}: {found[0]}...) follows the wall clock: wait with std::condition_variable\n"
            for name in git("ls-files", "--", "*.cc", "*.h") if name
            for found in [re.search(calls, pathlib.Path(name).read_text())] if found]


def check_type_names():
    """Two types of one name become one when a program links both: the linker takes either's functions for both."""
    where = {}
    for name in git("ls-files", "--", "*.h"):
        if not name:
            continue
        for found in re.finditer(r"^(?:class|struct|enum class) (\w+)\b(?!<)[^;()]*?\{", pathlib.Path(name).read_text(), re.M):
            where.setdefault(found[1], []).append(name)
    return [f"{name}: a type of this name in {' and '.join(files)}\n" for name, files in where.items() if len(files) > 1]


def check_shell(files):
    def is_shell(name):
        with open(name, "rb") as file:
            first = file.readline(64)
        return first.startswith(b"#!") and (b"bash" in first or first.rstrip().endswith(b"/sh"))

    scripts = [f for f in files if is_shell(f)]
    if not scripts:
        return []
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    return [result.stdout] if result.returncode else []


def units_for(files):
    """The translation units that show clang-tidy each changed file: itself, or for a header one that includes it."""
    units = [f for f in files if f.endswith(".cc")]
    for header in (f for f in files if f.endswith(".h")):
        own = header[:-2] + ".cc"
        users = [own] if os.path.isfile(own) else git("grep", "-l", f'#include "{header}"', "--", "*.cc", check=False)
        users = [u for u in users if u]
        if users and not set(users) & set(units):
            units.append(users[0])
    return units


def generate_headers():
    listing = subprocess.run(["ninja", "-C", BUILD, "-t", "targets", "all"], capture_output=True, text=True)
    if listing.returncode:
        sys.exit(listing.stdout + listing.stderr)
    headers = [line.split(":")[0] for line in listing.stdout.splitlines() if ".pb.h: CUSTOM_COMMAND" in line]
    built = subprocess.run(["ninja", "-C", BUILD, "--quiet", *headers], capture_output=True, text=True)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)


@functools.cache
def included(name):
    """The project's files that a source or header names, and itself."""
    names = re.findall(r'^#include "([^"]+)"', pathlib.Path(name).read_text(), re.M)
    generated = {n: "proto/" + n.replace(".grpc.pb.h", ".proto").replace(".pb.h", ".proto") for n in names}
    return [name] + [f for n in names for f in (n, generated[n]) if os.path.isfile(f)]


def digests(units):
    """Of all that clang-tidy reads of the project for each unit."""
    tools = subprocess.run(["clang-tidy-14", "--version"], capture_output=True).stdout
    common = tools + b"".join(pathlib.Path(f).read_bytes() for f in (".clang-tidy", "cmake/lint.py", "cmake/clang_tidy_14.h"))
    commands = {os.path.relpath(entry["file"]): entry["command"]
                for entry in json.loads((pathlib.Path(BUILD) / "compile_commands.json").read_text())}
    found = {}
    for unit in units:
        files, seen = [unit], set()
        while files:
            name = files.pop()
            if name not in seen:
                seen.add(name)
                files += included(name)
        read = b"".join(name.encode() + pathlib.Path(name).read_bytes() for name in sorted(seen))
        found[unit] = hashlib.sha256(common + commands.get(unit, "").encode() + read).hexdigest()
    return found


def check_tidy(units, budget):
    """Problems, and the units that the budget left no time for. What was clean before, and is the same, is not read again."""
    generate_headers()
    deadline = time.monotonic() + budget
    problems, left_out = [], []
    clean = json.loads(CLEAN.read_text()) if CLEAN.exists() else {}
    digest = digests(units)
    same = [unit for unit in units if clean.get(unit) == digest[unit]]
    if same:
        print(f"clang-tidy: {len(same)} of {len(units)} files were clean before, and are the same", flush=True)
    units = [unit for unit in units if unit not in same]

    def run(unit):
        if time.monotonic() > deadline:
            return unit, None, 0
        start = time.monotonic()
        command = ["clang-tidy-14", "-p", BUILD, "--quiet", *TIDY_ARGUMENTS, unit]
        return unit, subprocess.run(command, capture_output=True, text=True), time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (unit, result, seconds) in enumerate(pool.map(run, units), 1):
            if result is None:
                left_out.append(unit)
                continue
            print(f"[{number}/{len(units)}] clang-tidy {unit} {seconds:.0f} s", flush=True)
            if result.returncode:
                problems.append(result.stdout or result.stderr)
                continue
            clean[unit] = digest[unit]
            CLEAN.write_text(json.dumps(clean))
    return problems, left_out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--since")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--fix", action="store_true", help="format only, in place")
    options = parser.parse_args()

    files, what = changed_files(options.all, options.since)
    sources = [f for f in files if f.endswith(CXX)]
    print(f"{what}: {len(files)}, {len(sources)} of them C++", flush=True)
    problems = check_format(sources, options.fix)
    left_out = []
    if not options.fix:
        problems += check_listed() + check_waits() + check_type_names() + check_shell(files)
        budget = options.budget or (FULL_BUDGET if options.all else 360)
        tidy, left_out = check_tidy(units_for(sources), budget)
        problems += tidy
    for problem in problems:
        print(problem, end="")
    if left_out:
        print(f"clang-tidy: no time left for {len(left_out)} files: {' '.join(left_out)}")
    print(f"lint: {len(problems)} problems" if problems else "lint: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
