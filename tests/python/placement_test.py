"""The proof of the placement rules: what sharded operators give is what PyTorch gives on whole tensors in this process.

The unit is a *row*: an operator overload, the placements of its tensor arguments and results along one mesh dimension. The
daemon is asked which rows it accepts for PyTorch's operator samples (samples.py). Each row that is not all Replicate runs,
on at least five samples that differ in rank, evenness and dtype, on 2 and on 3 workers; a random tenth also on 1, on 4, and
with another row on a mesh of 2 x 2. Placements, shapes, dtypes and values of the results are checked on every rank, and
those of the arguments that the operator writes to; replicas are the same, bit for bit. Summands of Partial arguments are
random.

Arguments: the folder of the programs; --part I/N: the Ith of N parts of the samples; --budget SECONDS: as much of it as fits,
in the order of the seed; --random N: so many random operators x placements instead; --seed S; --only TEXT: operators with
this in their name; --samples N: the first N of an operator and dtype (default 12; 0: all); --docs FILE: writes what is
proven as Markdown; --report FILE: what is wrong or not proven.

Ends with 1 when a value is wrong, or, after a whole run, when an operator of the daemon's registry has no proof.
"""
import argparse
import collections
import pathlib
import random
import sys
import time

import torch

import dtorch
import placing
import samples
from cases import Case, Fault, Row, remote_arguments
from daemon import Daemon
from samples import is_tensor

PROOFS, MOST = 5, 8  # of a row
BATCH = 64  # cases under way
WORKERS = 4
MESHES = {"1": (1,), "2": (2,), "3": (3,), "4": (4,), "2x2": (2, 2)}


class Proof:
    """What is known of a row of an overload."""

    def __init__(self):
        self.kinds = collections.Counter()  # of samples that passed or are under way
        self.passed = 0
        self.wrong = []
        self.spare = []  # calls of kinds that were there before
        self.seeds = []  # some calls, to make variants of

    @property
    def started(self):
        return sum(self.kinds.values())


class Prover:
    """Asks for rows, runs them, keeps what came out."""

    def __init__(self, session, rng):
        self.session, self.rng = session, rng
        self.torch_rng = torch.Generator().manual_seed(rng.randrange(1 << 30))
        self.meshes = {name: session.mesh(range(torch.Size(shape).numel()), shape) for name, shape in MESHES.items()}
        self.registry = {name for name, _ in session.operators()}
        self.proofs = {}  # by overload and row
        self.by_pattern = {}  # rows that calls of equal structure had
        self.under_way = []
        self.cases = 0
        self.indivisible = 0  # cases that a row takes, but not with these sizes on that mesh
        self.wrong = []

    def consider(self, call):
        """Runs the rows of `call` that need more proofs."""
        if call.name not in self.registry:
            return
        pattern = pattern_of(call)
        known = self.by_pattern.get(pattern)
        if known is not None and all(proof.started >= MOST for proof in known):
            return
        rows = self.rows_of(call)
        found = []
        for row in rows:
            proof = self.proofs.setdefault((call.name, row.text(call)), Proof())
            found.append(proof)
            self.prove(call, row, rows, proof)
        self.by_pattern[pattern] = found

    def rows_of(self, call):
        """Those that are not all Replicate."""
        mesh = self.meshes["2"]
        try:
            remote = [self.session.put(tensor, mesh=mesh) for tensor in call.tensors]
            args, kwargs = remote_arguments(call, remote)
            explained = self.session.explain(call.name, *args, outputs=len(call.outcome.results), **kwargs)
        except (dtorch.Error, TypeError, OverflowError):
            return []
        rows = [Row(inputs, outputs) for inputs, outputs in explained.rows]
        return [row for row in rows if not row.is_replicate and can_place(call, row)]

    def prove(self, call, row, rows, proof, again=False):
        kind = kind_of(call, row)
        if len(proof.seeds) < 2:
            proof.seeds.append(call)
        if proof.started >= MOST or (proof.kinds[kind] and not again):
            if len(proof.spare) < PROOFS and proof.started < PROOFS:
                proof.spare.append(call)
            return
        proof.kinds[kind] += 1
        meshes = ["2", "3"]
        if self.rng.random() < 0.1:
            meshes += ["1", "4", "2x2"]
        left = set(meshes)

        passed = set()

        def finished(mesh, fault):
            left.discard(mesh)
            if fault is None:
                passed.add(mesh)
            elif not is_indivisible(fault):
                proof.wrong.append(fault.text)
            if not left:
                proof.passed += bool(passed & {"2", "3"})
                proof.kinds[kind] -= not passed & {"2", "3"}

        for mesh in meshes:
            chosen = [row]
            if mesh == "2x2":
                other = self.rng.choice(rows)
                chosen = [row, other if can_mix(call, row, other) else row]
                self.rng.shuffle(chosen)
            self.issue(call, mesh, chosen, finished)

    def issue(self, call, mesh, rows, finished):
        case = Case(call, self.meshes[mesh], MESHES[mesh], rows, lambda fault: finished(mesh, fault),
                    thorough=self.rng.random() < 0.1)
        self.cases += 1
        try:
            case.issue(self.session, self.torch_rng)
        except (dtorch.Error, TypeError, OverflowError) as error:
            self.note(case, Fault(error))
            return
        self.under_way.append(case)
        if len(self.under_way) >= BATCH:
            self.flush(BATCH // 2)

    def flush(self, keep=0):
        while len(self.under_way) > keep:
            case = self.under_way.pop(0)
            self.note(case, case.finish())

    def note(self, case, fault):
        if fault and is_indivisible(fault):
            self.indivisible += 1
        elif fault:
            text = f"{case}: {fault.text}"
            if case.call.name not in {name for name, _ in self.wrong}:
                print(f"  first of {case.call.name}: {text[:600]}", flush=True)
            self.wrong.append((case.call.name, text))
        case.finished(fault)

    def fill(self, out_of_time):
        """More proofs for rows that have too few: samples of kinds that were there, then variants of samples."""
        for (name, text), proof in list(self.proofs.items()):
            if proof.started >= PROOFS or out_of_time():
                continue
            tried = set()
            for call in proof.spare + [variant for seed in proof.seeds for variant in samples.variants(seed)]:
                if proof.started >= PROOFS:
                    break
                if call.key in tried:
                    continue
                tried.add(call.key)
                rows = self.rows_of(call)
                for row in rows:
                    if row.text(call) == text:
                        self.prove(call, row, rows, proof, again=True)
        self.flush()


def is_indivisible(fault):
    """Whether a rank's part would have ended within a block that a view makes one element of."""
    return fault.refused and "cannot be split so" in fault.text


def can_place(call, row):
    """Partial arguments need values that have parts; what is not finite is not linear."""
    partial = [(tensor, placement) for tensor, placement in zip(call.tensors, row.inputs) if placing.is_partial(placement)]
    if not all(placing.has_parts(tensor, placement.reduce_op) for tensor, placement in partial):
        return False
    return not partial or all(bool(leaf.isfinite().all()) for leaf in call.tensors + call.outcome.results if is_tensor(leaf))


def can_mix(call, row, other):
    """Whether their parts may be nested: of Partial tensors only those that are reduced alike on both mesh dimensions."""
    for a, b in zip(row.inputs + row.outputs, other.inputs + other.outputs):
        if placing.is_partial(a) and placing.is_partial(b) and repr(a) != repr(b):
            return False
    return True


def pattern_of(call):
    """Equal for calls whose tensors differ in extents only, as far as these are unlike."""
    extents = {0: 0, 1: 1}
    shapes = tuple((tensor.dtype, tuple(extents.setdefault(e, len(extents)) for e in tensor.shape)) for tensor in call.tensors)
    rest = [str(leaf) for leaf in samples.leaves((call.args, call.kwargs)) if not is_tensor(leaf)]
    return call.name, shapes, tuple(rest)


def kind_of(call, row):
    """Rank, evenness and dtype: what the samples of a row are to differ in."""
    ranks = tuple(tensor.dim() for tensor in call.tensors[:3])
    dtype = call.tensors[0].dtype if call.tensors else None
    evenness = [tuple(evenness_of(tensor.shape[p.dim], count) for count in (2, 3))
                for tensor, p in zip(call.tensors, row.inputs) if placing.is_shard(p)]
    return ranks, tuple(sorted(set(evenness))), dtype


def evenness_of(extent, count):
    if extent % count == 0 and extent:
        return "even"
    return "empty" if placing.chunks(extent, count)[-1][1] == 0 else "uneven"


# Runs


def chosen_sources(options, rng):
    part, parts = (int(number) for number in options.part.split("/"))
    sources = [source for source in samples.sources(options.samples) if options.only in source.name]
    if options.budget or options.random:
        rng.shuffle(sources)
    return sources[part::parts]


def prove(options, prover, rng):
    started = time.monotonic()
    out_of_time = lambda: bool(options.budget) and time.monotonic() - started > options.budget
    seen = samples.Seen()
    sources = chosen_sources(options, rng)
    for number, source in enumerate(sources):
        for program in source.runs():
            for call in samples.calls(program, seen):
                prover.consider(call)
            if out_of_time():
                break
        prover.flush()
        if number % 20 == 0:
            tell(started, f"{number}/{len(sources)} {source.name}", prover)
        if out_of_time():
            print(f"the time is up after {number + 1} of {len(sources)} operators", flush=True)
            break
    prover.fill(lambda: bool(options.budget) and time.monotonic() - started > 1.25 * options.budget)
    tell(started, "end", prover)


def try_random(options, prover, rng):
    """Operators, samples, forms, rows and meshes at random."""
    started = time.monotonic()
    sources = chosen_sources(options, rng)
    told = 0
    while prover.cases < options.random:
        calls = [call for program in some(rng.choice(sources).runs(), rng, 3) for call in samples.calls(program, samples.Seen())
                 if call.name in prover.registry]
        for call in rng.sample(calls, min(len(calls), 12)):
            rows = prover.rows_of(call)
            for row in rng.sample(rows, min(len(rows), 3)):
                other = rng.choice(rows)
                mesh = rng.choice(list(MESHES))
                mix = [row, other if can_mix(call, row, other) else row]
                proof = prover.proofs.setdefault((call.name, row.text(call)), Proof())
                prover.issue(call, mesh, mix if mesh == "2x2" else [row], lambda _, fault, proof=proof: count(proof, fault))
        if prover.cases >= told:
            told += 1000
            tell(started, f"of {options.random}", prover)
    prover.flush()
    tell(started, "end", prover)


def count(proof, fault):
    proof.passed += fault is None
    if fault and not is_indivisible(fault):
        proof.wrong.append(fault.text)


def some(iterator, rng, wanted):
    """`wanted` items of an iterator's first 60."""
    items = [item for item, _ in zip(iterator, range(60))]
    return rng.sample(items, min(len(items), wanted))


def tell(started, where, prover):
    print(f"[{time.monotonic() - started:5.0f} s] {where}: {len(prover.proofs)} rows of "
          f"{len({name for name, _ in prover.proofs})} overloads, {prover.cases} cases, {len(prover.wrong)} wrong", flush=True)


# Reports


def proven_rows(prover):
    """By overload: row texts and numbers of proofs, of rows that are proven."""
    by_overload = collections.defaultdict(list)
    for (name, text), proof in sorted(prover.proofs.items()):
        if proof.passed and not proof.wrong:
            by_overload[name].append((text, proof.passed))
    return by_overload


def find(name):
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def totals(overloads):
    """Counted as the operators of torch DTensor are."""
    names = {overload.split(".")[0] for overload in overloads}
    single = {without_twins(name) for name in names}
    pointwise = {without_twins(name.split(".")[0]) for name in overloads
                 if name.startswith("aten::") and torch.Tag.pointwise in find(name).tags}
    return (f"{len(single)} names without in-place and foreach twins ({len(pointwise)} of them pointwise), "
            f"{len(names)} names, {len(overloads)} overloads")


def without_twins(name):
    base = name.replace("::_foreach_", "::")
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def write_docs(prover, file):
    proven = proven_rows(prover)
    with open(file, "w") as out:
        out.write("# Operators that run on sharded tensors\n\n"
                  "Written by `tests/python/placement_test.py`: do not edit. A row names the placements of an operator's tensor "
                  "arguments and of its results along one mesh dimension: R Replicate, S(d) Shard of dimension d, P(op) "
                  "Partial; `[S(0)]`, all tensors of a list. Each row was run on samples of PyTorch's; on the right, on how "
                  "many, each on 2 and 3 workers. All inputs Replicate is always accepted.\n\n"
                  f"{totals(proven)}.\n\n| operator | rows | samples |\n| --- | --- | --- |\n")
        for name, rows in proven.items():
            out.write(f"| `{name}` | {'; '.join(text for text, _ in rows)} | {sum(passed for _, passed in rows)} |\n")


def summary(prover, complete):
    """Prints it; what makes the run fail."""
    proven = proven_rows(prover)
    failed = []
    print(f"proven: {totals(proven)}; {sum(map(len, proven.values()))} rows, "
          f"{sum(proof.passed for proof in prover.proofs.values())} proofs, {prover.cases} cases, of which "
          f"{prover.indivisible} were refused as indivisible")
    thin = [(name, text, proof.passed) for (name, text), proof in prover.proofs.items()
            if not proof.wrong and proof.passed < PROOFS]
    lines = []
    if prover.wrong:
        failed.append(f"{len(prover.wrong)} wrong")
        lines += [f"wrong: {text}" for _, text in sorted(prover.wrong, key=lambda item: item[0])]
    if complete:
        missing = sorted(prover.registry - set(proven))
        print(f"{len(missing)} operators of the registry without a proof; {len(thin)} rows with fewer than {PROOFS} proofs")
        lines += [f"no proof: {name}" for name in missing]
        lines += [f"only {passed} proofs: {name}: {text}" for name, text, passed in thin]
        failed += [f"{len(missing)} operators without a proof"] * bool(missing)
        unproven = [row for row in thin if not row[2]]
        failed += [f"{len(unproven)} rows without a proof"] * bool(unproven)
    return failed, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--budget", type=float, default=0)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--docs")
    parser.add_argument("--report")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    daemon = Daemon(options.bin.resolve(), "--workers.count", str(WORKERS), "--log.level", "error")
    try:
        with dtorch.connect(daemon.socket, name="placement_test") as session:
            prover = Prover(session, rng)
            (try_random if options.random else prove)(options, prover, rng)
    finally:
        daemon.stop()
    complete = not (options.budget or options.random or options.only or options.part != "0/1")
    failed, lines = summary(prover, complete)
    for line in lines[:40]:
        print(f"  {line[:400]}")
    if options.report:
        pathlib.Path(options.report).write_text("".join(f"{line}\n" for line in lines))
    if options.docs and not failed:
        write_docs(prover, options.docs)
    print("; ".join(failed) or "passed")
    sys.exit(1 if failed or not prover.cases else 0)


if __name__ == "__main__":
    main()
