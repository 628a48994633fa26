"""Runs a test's parts, several at once, each as a process of its own."""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

PARTS_A_JOB = 4  # some take longer than others
LIMIT = 3600  # seconds for a part
OF_THE_WHOLE = ("--docs", "--faults", "--report")  # files that only the run of all parts writes


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bin", type=pathlib.Path, help="the folder of the programs")
    made.add_argument("--part", default="0/1", help="I/N: the Ith of N parts")
    made.add_argument("--jobs", type=int, default=1, help="run all parts, so many at once")
    made.add_argument("--save", help="append what each part found to this file, a line of JSON each")
    made.add_argument("--load", nargs="*", help="take what parts found from these files; run nothing")
    made.add_argument("--seed", type=int, default=6)
    made.add_argument("--only", default="", help="operators with one of these, between commas, in their name")
    return made


def is_chosen(options, name):
    return any(text in name for text in options.only.split(","))


def numbers(options):
    """(I, N) of --part."""
    part, parts = options.part.split("/")
    return int(part), int(parts)


def is_whole(options):
    """Whether all operators run."""
    return options.part == "0/1" and not options.only


def results(run, options):
    """Yields what `run(options)` returns of each part: a dictionary, as JSON has them."""
    if options.load:
        found = loaded(options.load)
    else:
        found = [run(options)] if options.jobs == 1 else started(options)
    for result in found:
        if options.save:
            with open(options.save, "a") as out:
                out.write(json.dumps(result) + "\n")
        yield result


def loaded(files):
    for file in files:
        yield from map(json.loads, pathlib.Path(file).read_text().splitlines())


def started(options):
    """Raises RuntimeError at the end, naming the parts that found nothing, having ended before."""
    parts = options.jobs * PARTS_A_JOB
    broken = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(start, part, parts, f"{folder}/{part}"): part for part in range(parts)}
        for done, future in enumerate(concurrent.futures.as_completed(futures)):
            code, output, saved = future.result()
            print(f"{output}part {futures[future]}: {done + 1} of {parts} are done", flush=True)
            if pathlib.Path(saved).exists():
                yield from loaded([saved])
            else:
                broken.append(f"part {futures[future]} ended with {code}")
    if broken:
        raise RuntimeError("; ".join(broken))


def start(part, parts, saved):
    own = [argument for argument, before in zip(sys.argv, [""] + sys.argv)
           if argument not in OF_THE_WHOLE and before not in OF_THE_WHOLE]
    # Of an option that is given twice the last counts.
    command = [sys.executable, "-X", "faulthandler", *own, "--jobs", "1", "--part", f"{part}/{parts}", "--save", saved]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "no answer", f"part {part} took more than {LIMIT} s\n", saved
    return ended.returncode, ended.stdout, saved
