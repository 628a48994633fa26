"""Runs a test's parts, several at once, each in a process of its own with a daemon of its own."""
import argparse
import concurrent.futures
import copy
import json
import multiprocessing
import pathlib

PARTS_A_JOB = 4  # some take longer than others


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bin", type=pathlib.Path, help="the folder of the programs")
    made.add_argument("--part", default="0/1", help="I/N: the Ith of N parts")
    made.add_argument("--jobs", type=int, default=1, help="run all parts, so many at once")
    made.add_argument("--save", help="append what each part found to this file, a line of JSON each")
    made.add_argument("--load", nargs="*", help="take what parts found from these files; run nothing")
    made.add_argument("--seed", type=int, default=6)
    made.add_argument("--only", default="", help="operators with this in their name")
    return made


def numbers(options):
    """(I, N) of --part."""
    part, parts = options.part.split("/")
    return int(part), int(parts)


def results(run, options):
    """Yields what `run(options)` returns of each part: a dictionary, as JSON has them."""
    for result in loaded(options.load) if options.load else made(run, options):
        if options.save:
            with open(options.save, "a") as out:
                out.write(json.dumps(result) + "\n")
        yield result


def loaded(files):
    for file in files:
        yield from map(json.loads, pathlib.Path(file).read_text().splitlines())


def made(run, options):
    if options.jobs == 1:
        yield run(options)
        return
    parts = options.jobs * PARTS_A_JOB
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(run, with_part(options, part, parts)) for part in range(parts)]
        for done, future in enumerate(concurrent.futures.as_completed(futures)):
            yield future.result()
            print(f"{done + 1} of {parts} parts are done", flush=True)


def with_part(options, part, parts):
    changed = copy.copy(options)
    changed.part = f"{part}/{parts}"
    return changed


def is_whole(options):
    """Whether all operators run."""
    return options.part == "0/1" and not options.only
