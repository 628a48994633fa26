"""PyTorch's operator samples through the device `dtorch`, forward and backward, against the same on the CPU: on one worker
and, with every input placed at random, on several.

Prints the cases that are refused, with their reasons, and how many ran without gathering an input that was sharded.
"""
import collections
import json
import pathlib
import random
import re
import sys
import warnings

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten, tree_map

import dtorch
import parts
from daemon import Daemon
from dtorch import Replicate, Shard

warnings.filterwarnings("ignore")
# For each dtype of an operator it reads the sources of the whole stack, to find a unit test of PyTorch's; there is none.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

UNINITIALISED = re.compile("(new_)?empty(_|$)")
# Sums over parts are made in another order: so many times PyTorch's usual relative tolerance, and so many roundings of the
# largest element.
SLACK, ROUNDINGS = 20, 4
# Of the cases whose inputs are sharded, so many run without gathering one. It must not fall.
LEAST_SHARE = 0.5


def is_tensor(leaf):
    return isinstance(leaf, torch.Tensor)


def plain(sample):
    return all(leaf.layout == torch.strided for leaf in tree_flatten((sample.input, sample.args, sample.kwargs))[0]
               if is_tensor(leaf))


class Placer:
    """Brings host tensors to the device, placed at random, the same for the same seed."""

    def __init__(self, seed, workers):
        self._random = random.Random(seed)
        self._workers = workers
        self.sharded = False

    def __call__(self, host):
        placement = Replicate()
        if self._workers > 1 and host.dim() and self._random.random() < 0.7:
            placement = Shard(self._random.randrange(host.dim()))
            self.sharded = True
        return dtorch.distribute_tensor(host, placements=[placement])


def moved(tree, device, place):
    """The tree with its tensors where `place` brings them; what requires gradients is a leaf there. Like tensors stay like
    ones."""
    known = {}

    def move(leaf):
        if isinstance(leaf, torch.device):
            return torch.device(device)
        if not is_tensor(leaf):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = place(leaf.detach().clone()).requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return tree_map(move, tree), list(known.values())


def run(op, sample, device, place, seed):
    """What it gives, and the gradients of its inputs."""
    (argument, args, kwargs), leaves = moved((sample.input, sample.args, sample.kwargs), device, place)
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(seed)
    results = op(argument, *args, **kwargs)
    outputs = [leaf for leaf in tree_flatten(results)[0] if is_tensor(leaf) and leaf.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = []
    if outputs and wanted:
        seeds = [torch.ones_like(output) for output in outputs]
        gradients = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)
    return tree_map(lambda leaf: leaf.detach().cpu() if is_tensor(leaf) else leaf, (results, gradients))


def close(got, want, in_parts):
    """As assert_close."""
    def check(a, b):
        if not is_tensor(b):
            torch.testing.assert_close(a, b, equal_nan=True)
        elif b.dtype.is_floating_point or b.dtype.is_complex:
            rtol, atol = torch.testing._comparison.default_tolerances(b.dtype)
            if in_parts:
                finite = b[torch.isfinite(b)].abs()
                rtol, atol = SLACK * rtol, SLACK * atol
                if finite.numel():
                    atol += ROUNDINGS * torch.finfo(b.dtype).eps * finite.max().item()
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        else:
            torch.testing.assert_close(a, b, check_stride=False)

    flat, other = tree_flatten(got), tree_flatten(want)
    assert flat[1] == other[1], f"{flat[1]} where {other[1]} was wanted"
    for a, b in zip(flat[0], other[0]):
        check(a, b)


class Part:
    """What one part finds."""

    def __init__(self, seed):
        self.seed = seed
        self.right = self.sharded = self.kept = 0  # cases; with a sharded input; of these, without gathering one
        self.refused = collections.Counter()
        self.wrong = []
        self.operators = collections.defaultdict(lambda: [0, 0])  # by name: cases right, cases refused

    def case(self, op, dtype, sample, workers):
        try:
            want = run(op, sample, "cpu", lambda host: host, self.seed)
        except Exception:
            return  # not one of the CPU's
        place = Placer(f"{self.seed} {op.formatted_name} {dtype} {self.right}", workers)
        dtorch.session().redistributions(forget=True)
        try:
            got = run(op, sample, "dtorch", place, self.seed)
        except Exception as error:
            text = re.sub(r"\d+", "N", str(error).split("\n")[0])
            self.refused[f"{op.formatted_name}: {type(error).__name__}: {text[:160]}"] += 1
            self.operators[op.formatted_name][1] += 1
            return
        try:
            if UNINITIALISED.match(op.name):
                got, want = (tree_map(lambda leaf: leaf.shape if is_tensor(leaf) else leaf, each) for each in (got, want))
            close(got, want, place.sharded)
        except AssertionError as error:
            text = " ".join(str(error).split())
            self.wrong.append(f"{op.formatted_name} {dtype} on {workers}: {text[:300]}")
            return
        self.right += 1
        self.operators[op.formatted_name][0] += 1
        if place.sharded:
            self.sharded += 1
            moves = dtorch.session().redistributions()
            self.kept += not any("all_gather" in move.collectives and not move.inner and move.operator not in ("redistribute", "get")
                                 for move in moves)

    def found(self):
        return {"right": self.right, "sharded": self.sharded, "kept": self.kept, "refused": self.refused,
                "wrong": self.wrong, "operators": self.operators}


def run_part(options):
    first, step = parts.numbers(options)
    operators = [op for op in database.op_db[first::step] if parts.is_chosen(options, op.formatted_name)]
    part = Part(options.seed)
    for workers in options.workers:
        daemon = Daemon(options.bin.resolve(), "--workers.count", str(workers))
        try:
            dtorch.connect(daemon.socket)
            for op in operators:
                for dtype in sorted(op.supported_dtypes("cpu"), key=str):
                    differentiable = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
                    try:
                        samples = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
                    except Exception:
                        continue
                    for sample in filter(plain, samples[:options.samples]):
                        part.case(op, dtype, sample, workers)
        finally:
            dtorch.disconnect()
            daemon.stop()
    return part.found()


def main():
    parser = parts.parser(__doc__)
    parser.add_argument("--samples", type=int, default=10 ** 9, help="of each operator and dtype")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--report", help="write the whole outcome to this file, as JSON")
    options = parser.parse_args()
    right = sharded = kept = 0
    refused, wrong, operators = collections.Counter(), [], collections.defaultdict(lambda: [0, 0])
    for found in parts.results(run_part, options):
        right, sharded, kept = right + found["right"], sharded + found["sharded"], kept + found["kept"]
        refused.update(found["refused"])
        wrong += found["wrong"]
        for name, (good, bad) in found["operators"].items():
            operators[name][0] += good
            operators[name][1] += bad
    for text, times in refused.most_common():
        print(f"refused {times} times: {text}")
    for text in wrong:
        print(f"WRONG: {text}")
    passing = sum(bad == 0 for _, bad in operators.values())
    share = kept / sharded if sharded else 1
    print(f"{len(operators)} operators, {passing} of them without a refusal: {right} cases right, {sum(refused.values())} "
          f"refused, {len(wrong)} wrong; {sharded} with a sharded input, {share:.1%} of them without gathering one")
    if options.report:
        pathlib.Path(options.report).write_text(json.dumps({"operators": operators, "refused": refused, "share": share}))
    sys.exit(not right or bool(wrong) or passing < 0.95 * len(operators) or share < LEAST_SHARE)


if __name__ == "__main__":
    main()
