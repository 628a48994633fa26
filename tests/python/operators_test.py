"""PyTorch's own operator samples with all inputs Replicate, against PyTorch in this process.

Every ATen call that the samples make (samples.py) is made on the workers of each daemon, and so are its twins. Values,
shapes, dtypes, and strides where all inputs are contiguous, must be the same on every rank, of results and of the arguments
that the call writes to; or the call is refused, and the reason is counted.
"""
import collections
import contextlib
import pathlib
import sys
import time

import torch

import dtorch
import parts
import samples
from cases import Case, Fault, Row
from daemon import Daemon

BATCH = 64  # cases under way


class Conformance:
    """`sessions`: each call is made in all of them."""

    def __init__(self, sessions):
        self.sessions = sessions
        self.under_way = collections.deque()
        self.passed = collections.Counter()
        self.refused = collections.defaultdict(collections.Counter)
        self.wrong = []

    def check(self, call):
        for session in self.sessions:
            case = Case(call, session.world, session.world.shape, [Row.replicate(call)])
            try:
                case.issue(session, None)
            except (dtorch.Error, TypeError, OverflowError) as error:
                self.note(case, Fault(error))
            else:
                self.under_way.append(case)
        if len(self.under_way) >= BATCH:
            self.flush(BATCH // 2)

    def flush(self, keep=0):
        while len(self.under_way) > keep:
            case = self.under_way.popleft()
            self.note(case, case.finish())

    def note(self, case, fault):
        name = case.call.name
        if fault is None:
            self.passed[name] += 1
        elif fault.refused:
            self.refused[name][fault.reason] += 1
        else:
            self.wrong.append(f"{case.call}: {fault.text}")

    def result(self):
        """What came out, as JSON has it."""
        return {"passed": self.passed, "refused": self.refused, "wrong": self.wrong}

    def add(self, result):
        """Of another part."""
        self.passed.update(result["passed"])
        for name, reasons in result["refused"].items():
            self.refused[name].update(reasons)
        self.wrong += result["wrong"]

    def __str__(self):
        refusals = sum(sum(reasons.values()) for reasons in self.refused.values())
        return (f"{sum(self.passed.values())} calls of {len(self.passed)} operators as PyTorch's; {refusals} of "
                f"{len(self.refused)} refused; {len(self.wrong)} wrong")


def run(options):
    """One part; what came out of it."""
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        sessions = []
        for workers in options.workers:
            daemon = Daemon(options.bin.resolve(), "--workers.count", str(workers), "--log.level", "error")
            stack.callback(daemon.stop)
            sessions.append(stack.enter_context(dtorch.client.connect(daemon.socket, name="operators_test")))
        return check(options, sessions).result()


def check(options, sessions):
    conformance = Conformance(sessions)
    part, count = parts.numbers(options)
    sources = [source for source in samples.sources(options.samples) if parts.is_chosen(options, source.name)]
    chosen = sources[part::count]
    started = time.monotonic()
    seen = samples.Seen()
    for number, source in enumerate(chosen):
        for program in source.runs():
            for call in samples.calls(program, seen):
                conformance.check(call)
        conformance.flush()
        if number % 20 == 0:
            print(f"[{time.monotonic() - started:5.0f} s] {number}/{len(chosen)} {source.name}: {conformance}", flush=True)
    return conformance


def report(conformance, options):
    counts = " and on ".join(map(str, options.workers))
    with open(options.report, "w") as out:
        out.write("# Calls that are refused\n\n"
                  "Written by `tests/python/operators_test.py`: do not edit. Of PyTorch's operator samples, with all inputs "
                  f"Replicate, on {counts} workers: {conformance}. By operator, the commonest reasons, how many calls were "
                  "refused for each, and how many of the operator's ran.\n\n"
                  "| operator | refused | ran | reason |\n| --- | --- | --- | --- |\n")
        for name in sorted(conformance.refused):
            for reason, count in conformance.refused[name].most_common(3):
                out.write(f"| `{name}` | {count} | {conformance.passed[name]} | {reason.replace('|', ' ')} |\n")


def main():
    parser = parts.parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="of each daemon")
    parser.add_argument("--samples", type=int, default=0, help="the first so many of an operator and dtype; 0: all")
    parser.add_argument("--report", help="write the refusals to this file, as rows of a Markdown table")
    parser.add_argument("--faults", help="write what is wrong to this file")
    options = parser.parse_args()
    conformance = Conformance([])
    for result in parts.results(run, options):
        conformance.add(result)
    if options.report:
        report(conformance, options)
    if options.faults:
        pathlib.Path(options.faults).write_text("".join(f"{line}\n" for line in conformance.wrong))
    print(conformance)
    for name, reasons in sorted(conformance.refused.items(), key=lambda item: -sum(item[1].values()))[:40]:
        print(f"  refused: {name}: {reasons.most_common(1)[0]}")
    for line in conformance.wrong[:60]:
        print(f"  wrong: {line}")
    sys.exit(1 if conformance.wrong or not conformance.passed else 0)


if __name__ == "__main__":
    main()
