"""PyTorch's own operator samples (op_db), with all inputs Replicate, against PyTorch in this process.

Each sample runs here under a dispatch mode that records every ATen call that it makes; each recorded call is then made on
the workers, with the inputs that it had here. Values, shapes, dtypes, and strides where all inputs are contiguous, must
be the same, of results and of the inputs that the call writes to; or the call is refused, and the reason is counted.

Arguments: the folder of the programs; --workers N; --part I/N: every Nth operator, from the Ith; --samples N: the first N
of an operator and dtype, 0: all; --report FILE: the refusals as Markdown.
"""
import argparse
import collections
import itertools
import pathlib
import re
import sys
import time
import warnings

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import dtorch
from daemon import Daemon

WIRE = {getattr(torch, name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                                          "float32", "float64", "complex64", "complex128")}
SEED = 20
# What these return is uninitialised.
EMPTY = re.compile(r"aten::(new_)?empty")


def plain(tensor):
    return (tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.dtype in WIRE
            and not tensor.is_quantized and not tensor.is_nested and not tensor.is_conj() and not tensor.is_neg())


class Recorder(TorchDispatchMode):
    """Keeps the ATen calls: name, arguments as they were before, results and arguments as they were after."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.name()
        random = torch.Tag.nondeterministic_seeded in function.tags
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        memories = [tensor.untyped_storage().data_ptr() for tensor in tensors if plain(tensor) and tensor.numel()]
        usable = all(plain(tensor) for tensor in tensors) and len(set(memories)) == len(memories)
        usable = usable and all(tensor.numel() < 1 << 22 for tensor in tensors)
        before = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)) \
            if usable else None
        if random:
            torch.manual_seed(SEED)
        result = function(*args, **kwargs)
        if usable:
            results = [leaf for leaf in tree_flatten(result)[0]]
            kept = [leaf.detach().clone(memory_format=torch.preserve_format) if isinstance(leaf, torch.Tensor)
                    and leaf.layout == torch.strided else leaf for leaf in results]
            strides = [leaf.stride() if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided else None
                       for leaf in results]
            after = [tensor.detach().clone() for tensor in tensors]
            contiguous = all(tensor.is_contiguous() for tensor in tensors)
            self.calls.append((name, function, before, kept, strides, after, contiguous, random))
        return result


def key_of(name, before):
    """Equal for calls that differ in values only."""
    def describe(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype, tuple(leaf.shape), leaf.stride()
        return type(leaf), str(leaf)
    return name, str([describe(leaf) for leaf in tree_flatten(before)[0]])


class Conformance:
    def __init__(self, session):
        self.session = session
        self.seen = set()
        self.passed = collections.Counter()
        self.refused = collections.defaultdict(collections.Counter)
        self.wrong = []

    def check(self, call):
        name, function, (args, kwargs), expected, strides, after, contiguous, random = call
        key = key_of(name, (args, kwargs))
        if key in self.seen:
            return
        self.seen.add(key)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.compare(name, function, args, kwargs, expected, strides, after, contiguous, random)
            self.passed[name] += 1
        except (dtorch.Error, TypeError, OverflowError) as error:
            self.refused[name][self.reason(error)] += 1
        except AssertionError as error:
            self.wrong.append(f"{name}{describe(args, kwargs)}: {error}")

    @staticmethod
    def reason(error):
        text = re.sub(r"^\w+: ", "", str(error))
        text = re.sub(r"^\S+( at \S+)?( on rank \d+)?: ", "", text)
        return re.sub(r"\d+", "N", text.split("\n")[0])[:160]

    def compare(self, name, function, args, kwargs, expected, strides, after, contiguous, random):
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        remote = {id(leaf): self.session.put(leaf) for leaf in leaves}
        send = lambda leaf: remote[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf
        args, kwargs = tree_map(send, (list(args), dict(kwargs)))
        kwargs.pop("generator", None)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            raise TypeError("a device that is not cpu")
        if random:
            self.session.manual_seed(SEED)
        results = self.session.call(name, *args, outputs=len(expected), **kwargs)
        results = [results] if len(expected) == 1 else results
        for index, (got, want) in enumerate(zip(results, expected)):
            self.same(f"result {index}", got, want, EMPTY.match(name))
            if contiguous and strides[index] is not None:
                known = got.describe().wait().strides
                # Where an extent is 0 or 1 its stride means nothing.
                means = [i for i, extent in enumerate(want.shape) if extent > 1] if want.numel() else []
                assert [known[i] for i in means] == [strides[index][i] for i in means], \
                    f"strides {known}, wanted {strides[index]}"
        schema = function._schema
        if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
            for index, (leaf, want) in enumerate(zip(leaves, after)):
                self.same(f"argument {index} afterwards", remote[id(leaf)], want, False)

    @staticmethod
    def same(what, tensor, want, shape_only):
        got = torch.from_dlpack(tensor.get().wait(60))
        if not isinstance(want, torch.Tensor):
            want = torch.tensor(want)
            got = got.to(want.dtype) if got.dtype == torch.float64 or got.dtype == torch.complex128 else got
        assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
        assert got.dtype == want.dtype, f"{what}: {got.dtype}, wanted {want.dtype}"
        if not shape_only:
            try:
                torch.testing.assert_close(got, want.resolve_conj().resolve_neg(), equal_nan=True, check_stride=False)
            except AssertionError as error:
                raise AssertionError(f"{what}: {str(error).splitlines()[0]}") from None


def describe(args, kwargs):
    show = lambda leaf: f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)
    return "(" + ", ".join(show(leaf) for leaf in tree_flatten((args, kwargs))[0])[:300] + ")"


def samples(op, dtype):
    try:
        yield from op.sample_inputs("cpu", dtype, requires_grad=False)
    except Exception as error:  # a sample that cannot be made here says nothing of us
        print(f"  {op.name} {dtype}: no samples: {str(error).splitlines()[0][:100]}", flush=True)


def run(options, session):
    conformance = Conformance(session)
    part, parts = (int(number) for number in options.part.split("/"))
    chosen = op_db[part::parts]
    started = time.monotonic()
    for number, op in enumerate(chosen):
        for dtype in sorted(op.supported_dtypes("cpu") & WIRE, key=str):
            for sample in itertools.islice(samples(op, dtype), options.samples or None):
                recorder = Recorder()
                torch.manual_seed(SEED)
                try:
                    with recorder, warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    pass  # the calls before it count
                for call in recorder.calls:
                    conformance.check(call)
        if number % 20 == 0:
            print(f"[{time.monotonic() - started:4.0f} s] {number}/{len(chosen)} {op.name}: "
                  f"{sum(conformance.passed.values())} passed, "
                  f"{sum(sum(c.values()) for c in conformance.refused.values())} refused, "
                  f"{len(conformance.wrong)} wrong", flush=True)
    return conformance


def report(conformance, file):
    with open(file, "w") as out:
        for name in sorted(conformance.refused):
            for reason, count in conformance.refused[name].most_common(3):
                out.write(f"| `{name}` | {count} | {conformance.passed[name]} | {reason.replace('|', ' ')} |\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--report")
    options = parser.parse_args()
    daemon = Daemon(options.bin.resolve(), "--workers.count", str(options.workers), "--log.level", "error")
    try:
        with dtorch.connect(daemon.socket, name="operators_test") as session:
            conformance = run(options, session)
    finally:
        daemon.stop()
    if options.report:
        report(conformance, options.report)
    calls, refusals = sum(conformance.passed.values()), sum(sum(c.values()) for c in conformance.refused.values())
    print(f"{calls} calls of {len(conformance.passed)} operators as PyTorch's; {refusals} of "
          f"{len(conformance.refused)} refused; {len(conformance.wrong)} wrong")
    for name, reasons in sorted(conformance.refused.items(), key=lambda item: -sum(item[1].values()))[:40]:
        print(f"  refused: {name}: {reasons.most_common(1)[0]}")
    for line in conformance.wrong[:60]:
        print(f"  wrong: {line}")
    sys.exit(1 if conformance.wrong or not calls else 0)


if __name__ == "__main__":
    main()
