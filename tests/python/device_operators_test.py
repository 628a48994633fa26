"""PyTorch's operator samples through the device `dtorch`, forward and backward, against the same on the CPU.
Arguments: the folder of the programs; --every N --first I: of the operators, some; --samples N: of each operator and dtype."""
import argparse
import collections
import pathlib
import re
import sys
import warnings

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten, tree_map

import dtorch.device
from daemon import Daemon

warnings.filterwarnings("ignore")
# For each dtype of an operator it reads the sources of the whole stack, to find a unit test of PyTorch's; there is none.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

SEED = 5
UNINITIALISED = re.compile("(new_)?empty(_|$)")


def is_tensor(leaf):
    return isinstance(leaf, torch.Tensor)


def plain(sample):
    return all(leaf.layout == torch.strided for leaf in tree_flatten((sample.input, sample.args, sample.kwargs))[0]
               if is_tensor(leaf))


def moved(tree, device):
    """The tree with its tensors there; what requires gradients is a leaf there. Like tensors stay like ones."""
    known = {}

    def move(leaf):
        if isinstance(leaf, torch.device):
            return torch.device(device)
        if not is_tensor(leaf):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return tree_map(move, tree), list(known.values())


def run(op, sample, device):
    """What it gives, and the gradients of its inputs."""
    (argument, args, kwargs), leaves = moved((sample.input, sample.args, sample.kwargs), device)
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(SEED)
    results = op(argument, *args, **kwargs)
    outputs = [leaf for leaf in tree_flatten(results)[0] if is_tensor(leaf) and leaf.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = []
    if outputs and wanted:
        seeds = [torch.ones_like(output) for output in outputs]
        gradients = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)
    return tree_map(lambda leaf: leaf.detach().cpu() if is_tensor(leaf) else leaf, (results, gradients))


class Count:
    def __init__(self):
        self.right = 0
        self.refused = collections.Counter()
        self.wrong = []

    def case(self, op, dtype, sample):
        try:
            want = run(op, sample, "cpu")
        except Exception:
            return  # not one of the CPU's
        try:
            got = run(op, sample, "dtorch")
        except Exception as error:
            text = re.sub(r"\d+", "N", str(error).split("\n")[0])
            self.refused[f"{op.formatted_name}: {type(error).__name__}: {text[:160]}"] += 1
            return
        try:
            if UNINITIALISED.match(op.name):
                got, want = (tree_map(lambda leaf: leaf.shape if is_tensor(leaf) else leaf, each) for each in (got, want))
            torch.testing.assert_close(got, want, equal_nan=True, check_stride=False)
            self.right += 1
        except AssertionError as error:
            text = " ".join(str(error).split())
            self.wrong.append(f"{op.formatted_name} {dtype}: {text[:300]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--samples", type=int, default=10 ** 9)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    daemon = Daemon(options.bin.resolve(), "--workers.count", str(options.workers))
    try:
        dtorch.device.connect(daemon.socket)
        count = Count()
        operators = database.op_db[options.first::options.every]
        for op in operators:
            for dtype in sorted(op.supported_dtypes("cpu"), key=str):
                differentiable = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
                try:
                    samples = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
                except Exception:
                    continue
                for sample in filter(plain, samples[:options.samples]):
                    count.case(op, dtype, sample)
    finally:
        dtorch.device.disconnect()
        daemon.stop()
    refused = sum(count.refused.values())
    for text, times in count.refused.most_common():
        print(f"refused {times} times: {text}")
    for text in count.wrong:
        print(f"WRONG: {text}")
    print(f"{len(operators)} operators: {count.right} cases right, {refused} refused, {len(count.wrong)} wrong")
    sys.exit(not count.right or bool(count.wrong) or refused > 0.05 * count.right)


if __name__ == "__main__":
    main()
