"""The proof of the placement rules: what sharded operators give is what PyTorch gives on whole tensors in this process.

The unit is a *row*: an operator overload, the placements of its tensor arguments and results along one mesh dimension. The
daemon is asked which rows it accepts for PyTorch's operator samples (samples.py). Each row that is not all Replicate runs,
on at least five samples that differ in rank, evenness and dtype, on 2 and on 3 workers; a random tenth also on 1, on 4, and
with another row on a mesh of 2 x 2. Placements, shapes, dtypes and values of the results are checked on every rank, and
those of the arguments that the operator writes to; replicas are the same, bit for bit. Summands of Partial arguments are
random.

Ends with 1 when a value is wrong or, after a whole run, when an operator of the daemon's registry has no proof or a row of
one has too few.
"""
import collections
import pathlib
import random
import sys
import time

import torch

import dtorch
import parts
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
    """What is known of a row of an overload, while it is proven."""

    def __init__(self):
        self.kinds = collections.Counter()  # of samples that passed or are under way
        self.passed = 0
        self.wrong = 0
        self.spare = []  # calls of kinds that were there before
        self.seeds = []  # some calls, to make variants of

    @property
    def started(self):
        return sum(self.kinds.values())


class Prover:
    """Asks for rows, runs them, keeps what came out."""

    def __init__(self, bin, rng):
        self.bin, self.rng = bin, rng
        self.torch_rng = torch.Generator().manual_seed(rng.randrange(1 << 30))
        self.start()
        self.registry = {name for name, _ in self.session.operators()}
        self.proofs = {}  # by overload and row
        self.by_pattern = {}  # rows that calls of equal structure had
        self.under_way = []
        self.cases = 0
        self.indivisible = 0  # cases that a row takes, but not with these sizes on that mesh
        self.wrong = []

    def start(self):
        self.daemon = Daemon(self.bin, "--workers.count", str(WORKERS), "--log.level", "error")
        self.session = dtorch.client.connect(self.daemon.socket, name="placement_test")
        self.meshes = {name: self.session.mesh(range(torch.Size(shape).numel()), shape) for name, shape in MESHES.items()}
        self.is_broken = False  # a worker died

    def stop(self):
        self.session.close()
        self.daemon.stop()

    def consider(self, call):
        """Runs the rows of `call` that need more proofs."""
        if call.name not in self.registry or self.is_broken:
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
                proof.wrong += 1
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
        if self.is_broken and not self.under_way:
            self.stop()
            self.start()

    def note(self, case, fault):
        if self.is_broken:
            return
        self.is_broken = bool(fault and " was lost, pid " in fault.text)
        if fault and is_indivisible(fault):
            self.indivisible += 1
        elif fault:
            text = f"{case}: {fault.text}"
            if case.call.name not in {name for name, _ in self.wrong}:
                print(f"  first of {case.call.name}: {text[:600]}", flush=True)
            self.wrong.append((case.call.name, text))
        case.finished(fault)

    def result(self):
        """What came out, as JSON has it."""
        return {"registry": sorted(self.registry), "cases": self.cases, "indivisible": self.indivisible,
                "rows": [[name, text, proof.passed, proof.wrong] for (name, text), proof in self.proofs.items()],
                "wrong": self.wrong}

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
    return not partial or all(bool(leaf.isfinite().all()) for leaf in call.tensors + call.outcome.values if is_tensor(leaf))


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
    part, count = parts.numbers(options)
    sources = [source for source in samples.sources(options.samples) if parts.is_chosen(options, source.name)]
    if options.budget:
        rng.shuffle(sources)
    return sources[part::count]


def run(options):
    """One part; what came out of it."""
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    prover = Prover(options.bin.resolve(), rng)
    try:
        (try_random if options.random else prove)(options, prover, rng)
    finally:
        prover.stop()
    return prover.result()


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
    wanted = options.random // parts.numbers(options)[1]
    while prover.cases < wanted:
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
        if prover.is_broken:
            prover.flush()
        if prover.cases >= told:
            told += 1000
            tell(started, f"of {wanted}", prover)
    prover.flush()
    tell(started, "end", prover)


def count(proof, fault):
    proof.passed += fault is None
    proof.wrong += bool(fault and not is_indivisible(fault))


def some(iterator, rng, wanted):
    """`wanted` items of an iterator's first 60."""
    items = [item for item, _ in zip(iterator, range(60))]
    return rng.sample(items, min(len(items), wanted))


def tell(started, where, prover):
    print(f"[{time.monotonic() - started:5.0f} s] {where}: {len(prover.proofs)} rows of "
          f"{len({name for name, _ in prover.proofs})} overloads, {prover.cases} cases, {len(prover.wrong)} wrong", flush=True)


# Reports


class Report:
    """What all parts found together."""

    def __init__(self, results):
        self.registry, self.wrong = set(), []
        self.passed, self.faults = collections.Counter(), collections.Counter()  # by overload and row
        self.cases = self.indivisible = 0
        for result in results:
            self.registry.update(result["registry"])
            self.wrong += map(tuple, result["wrong"])
            self.cases += result["cases"]
            self.indivisible += result["indivisible"]
            for name, text, passed, wrong in result["rows"]:
                self.passed[name, text] += passed
                self.faults[name, text] += wrong

    def proven(self):
        """By overload: texts of the rows that are proven, and on how many samples."""
        by_overload = collections.defaultdict(list)
        for (name, text), passed in sorted(self.passed.items()):
            if passed and not self.faults[name, text]:
                by_overload[name].append((text, passed))
        return by_overload

    def thin(self):
        """Rows with too few proofs."""
        return [(name, text, passed) for (name, text), passed in sorted(self.passed.items())
                if not self.faults[name, text] and passed < PROOFS]


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


def write_docs(report, file, whole):
    """A run that is not whole adds the rows that the file has not."""
    known = {}
    if not whole:
        for line in pathlib.Path(file).read_text().splitlines():
            if line.startswith("| `"):
                name, rows, samples = line.strip("|").split("|")
                known[name.split("`")[1]] = rows[1:-1].split("; "), int(samples)
    for name, rows in report.proven().items():
        before, samples = known.get(name, ([], 0))
        known[name] = sorted({*before, *(text for text, _ in rows)}), max(samples, sum(passed for _, passed in rows))
    lines = {name: f"| `{name}` | {'; '.join(rows)} | {samples} |" for name, (rows, samples) in known.items()}
    with open(file, "w") as out:
        out.write("# Operators that run on sharded tensors\n\n"
                  "Written by `tests/python/placement_test.py`: do not edit. A row names the placements of an operator's tensor "
                  "arguments and of its results along one mesh dimension: R Replicate, S(d) Shard of dimension d, P(op) "
                  "Partial; `[S(0)]`, all tensors of a list. Each row was run on samples of PyTorch's; on the right, on how "
                  "many, each on 2 and 3 workers. All inputs Replicate is always accepted.\n\n"
                  f"{totals(lines)}.\n\n| operator | rows | samples |\n| --- | --- | --- |\n")
        out.writelines(f"{lines[name]}\n" for name in sorted(lines))


def summary(report, whole):
    """Prints it; what makes the run fail, and lines about it. `whole`: everything ran, what has no proof now has none."""
    proven = report.proven()
    failed = []
    print(f"proven: {totals(proven)}; {sum(map(len, proven.values()))} rows, {report.passed.total()} proofs, "
          f"{report.cases} cases, of which {report.indivisible} were refused as indivisible")
    lines = []
    if report.wrong:
        failed.append(f"{len(report.wrong)} wrong")
        lines += [f"wrong: {text}" for _, text in sorted(report.wrong)]
    if whole:
        missing = sorted(report.registry - set(proven))
        thin = report.thin()
        print(f"{len(missing)} operators of the registry without a proof; {len(thin)} rows with fewer than {PROOFS} proofs")
        lines += [f"no proof: {name}" for name in missing]
        lines += [f"only {passed} proofs: {name}: {text}" for name, text, passed in thin]
        failed += [f"{len(missing)} operators without a proof"] * bool(missing)
        failed += [f"{len(thin)} rows with fewer than {PROOFS} proofs"] * bool(thin)
    return failed, lines


def main():
    parser = parts.parser(__doc__)
    parser.add_argument("--budget", type=float, default=0, help="seconds: as much as fits, in the order of the seed")
    parser.add_argument("--random", type=int, default=0, help="so many random operators x placements instead")
    parser.add_argument("--samples", type=int, default=12, help="the first so many of an operator and dtype; 0: all")
    parser.add_argument("--docs", help="write what is proven as Markdown to this file; of --only, into it")
    parser.add_argument("--report", help="write what is wrong or not proven to this file")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    report = Report(parts.results(run, options))
    whole = parts.is_whole(options) and not options.budget and not options.random
    failed, lines = summary(report, whole)
    for line in lines[:40]:
        print(f"  {line[:400]}")
    if options.report:
        pathlib.Path(options.report).write_text("".join(f"{line}\n" for line in lines))
    if options.docs and not failed:
        write_docs(report, options.docs, whole)
    print("; ".join(failed) or "passed")
    sys.exit(1 if failed or not report.cases else 0)


if __name__ == "__main__":
    main()
