"""One ATen call on the workers, with its arguments placed in some way, against what PyTorch gives here."""
import re

import torch

import dtorch
import placing
import samples
from daemon import REFUSALS
from samples import compare, is_tensor

LIMIT = 60  # seconds for a value


class Row:
    """Placements along one mesh dimension: of tensor arguments and results, in order."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @property
    def is_replicate(self):
        return all(repr(placement) == "R" for placement in self.inputs + self.outputs)

    @classmethod
    def replicate(cls, call):
        return cls([dtorch.Replicate()] * len(call.tensors), [dtorch.Replicate()] * len(call.outcome.results))

    def text(self, call):
        """The same for lists of different lengths: "[S(0)], R -> S(0)"."""
        placements = iter(map(repr, self.inputs))
        parts = []
        for value in call.bound.values():
            if is_tensor(value):
                parts.append(next(placements))
            elif isinstance(value, (list, tuple)) and any(map(is_tensor, value)):
                parts.append(listed([next(placements) for leaf in value if is_tensor(leaf)]))
        outputs = list(map(repr, self.outputs))
        lists = any("List" in str(result.type) for result in call.overload._schema.returns)
        return f"{', '.join(parts)} -> {listed(outputs) if lists else ', '.join(outputs)}"


def listed(placements):
    return f"[{placements[0] if len(set(placements)) == 1 else ', '.join(placements)}]"


class Fault:
    """Why a case is not as PyTorch's. `refused`: it was not tried."""

    def __init__(self, error):
        self.text = str(error)
        self.refused = isinstance(error, (TypeError, OverflowError)) or getattr(error, "code", None) in REFUSALS

    @property
    def reason(self):
        """The text without what differs from call to call."""
        text = re.sub(r"^\w+: (at \S+: )?", "", self.text)
        text = re.sub(r"^\S+( at \S+)?( on rank \d+)?: ", "", text)
        return re.sub(r"\d+", "N", text.split("\n")[0])[:160]


class Case:
    """One call under way, on one mesh, with one row for each mesh dimension. `thorough`: looks also at the arguments that
    the call shall leave alone, and at the values that the daemon gathers."""

    def __init__(self, call, mesh, mesh_shape, rows, finished=None, thorough=False):
        self.call, self.mesh, self.mesh_shape, self.rows, self.finished = call, mesh, mesh_shape, rows, finished
        self.thorough = thorough
        self.waits = []

    def __str__(self):
        return f"{self.call} on {'x'.join(map(str, self.mesh_shape))}: {'; '.join(row.text(self.call) for row in self.rows)}"

    def issue(self, session, rng):
        """Sends everything; waits for nothing."""
        call, mesh = self.call, self.mesh
        outcome = call.outcome
        self.coordinates = placing.coordinates(self.mesh_shape)
        self.inputs = [[row.inputs[i] for row in self.rows] for i in range(len(call.tensors))]
        self.outputs = [[row.outputs[i] for row in self.rows] for i in range(len(outcome.results))]
        self.growth = 1.0
        remote = []
        for tensor, placements in zip(call.tensors, self.inputs):
            if any(map(placing.is_partial, placements)):
                locals = placing.distribute(tensor, self.mesh_shape, placements, rng)
                self.growth = max(self.growth, growth(tensor, locals.values()))
                remote.append(session.put_shards([locals[c] for c in self.coordinates], tensor.shape, placements, mesh))
            else:
                remote.append(session.put(tensor, placements, mesh))
        if call.is_random:
            session.manual_seed(samples.SEED, mesh)
        args, kwargs = remote_arguments(call, remote)
        if not remote:
            kwargs.update(mesh=mesh, placements=[row.outputs[0] for row in self.rows])
        results = session.call(call.name, *args, outputs=len(outcome.results), **kwargs)
        results = [results] if len(outcome.results) == 1 else results
        contiguous = all(row.is_replicate for row in self.rows) and all(t.is_contiguous() for t in call.tensors)
        self.waits = [self.ask(f"result {i}", i, result, self.outputs[i], outcome.strides[i] if contiguous else None)
                      for i, result in enumerate(results) if outcome.results[i] is not None]
        self.waits += [self.ask(f"argument {i} afterwards", len(results) + i, remote[i], self.inputs[i], None)
                       for i in (range(len(remote)) if self.thorough else call.written)]

    def ask(self, what, index, tensor, placements, strides):
        """`index`: in the outcome's values."""
        futures = [tensor.describe()] + [tensor.get_local(rank) for rank in self.mesh.ranks]
        return what, index, futures + [tensor.get()] * self.thorough, placements, strides

    def finish(self):
        """None, or the Fault."""
        try:
            for what, index, futures, placements, strides in self.waits:
                info, *values = [future.wait(LIMIT) for future in futures]
                self.check(what, index, info, list(map(torch.from_dlpack, values)), placements, strides)
        except (dtorch.Error, TimeoutError, AssertionError) as error:
            return Fault(error)
        return None

    def check(self, what, index, info, values, placements, strides):
        want = self.call.outcome.values[index]
        want = want if is_tensor(want) else scalar(want, info.dtype)
        assert list(map(repr, info.placements)) == list(map(repr, placements)), \
            f"{what}: placed {info.placements}, the row says {placements}"
        assert tuple(info.shape) == want.shape, f"{what}: shape {list(info.shape)}, wanted {list(want.shape)}"
        assert info.dtype == str(want.dtype)[6:], f"{what}: {info.dtype}, wanted {want.dtype}"
        parts = dict(zip(self.coordinates, values))
        for c, shape in placing.local_shapes(want.shape, self.mesh_shape, placements).items():
            assert parts[c].shape == shape, f"{what}: shape {list(parts[c].shape)} at {c}, its part is {list(shape)}"
        if strides is not None and want.numel():
            means = [i for i, extent in enumerate(want.shape) if extent > 1]  # the stride of one element means nothing
            assert [info.strides[i] for i in means] == [strides[i] for i in means], \
                f"{what}: strides {info.strides}, wanted {strides}"
        if not self.call.leaves_undefined(want):
            whole, joining = placing.join(parts, self.mesh_shape, placements, self.call.is_exact)
            slack = lambda: joining + self.growth * rounding(self.call, index)
            compare(what, *without_layout(whole, want, self.call), slack)
            for gathered in values[len(parts):]:
                compare(f"{what}, gathered", *without_layout(gathered, want, self.call), slack)


def rounding(call, index):
    """What kernels' roundings may change in a value of the outcome: twice PyTorch's own error. Kernels sum in an order, and
    round between steps or do not, that depends on how the elements lie in memory; the parts of a Partial are rounded each by
    itself, also where they cancel."""
    want, error = call.outcome.values[index], call.errors[index]
    return torch.full(want.shape, 2 * error, dtype=torch.float64) if error else 0


def growth(whole, parts):
    """How much larger the parts of a Partial are, all together, than what they make: as much larger are a linear kernel's
    roundings."""
    size = lambda tensor: float(tensor.abs().max()) if tensor.numel() and tensor.dtype != torch.bool else 0.0
    return sum(map(size, parts)) / size(whole) if whole.dtype.is_floating_point and size(whole) else 1.0


def without_layout(got, want, call):
    """Both without the elements that depend on memory: PyTorch's fmod and remainder of half precisions are NaN or a number by
    whether the element lies in a full vector."""
    if not (re.match(r"aten::(fmod|remainder)_?(\.|$)", call.name) and want.dtype in (torch.float16, torch.bfloat16)):
        return got, want
    either = want.isnan() | got.isnan()
    return got.masked_fill(either, 0), want.masked_fill(either, 0)


def scalar(value, dtype):
    """What an operator that returns a number gives as a tensor: complex, float64, int64 or bool."""
    return torch.tensor(value, dtype=getattr(torch, dtype) if dtype in ("float64", "complex128") else None)


def remote_arguments(call, remote):
    """Of a call whose tensors are `remote` ones. TypeError: an argument that is not sent."""
    given = iter(remote)
    args, kwargs = samples.mapped(lambda _: next(given), (call.args, call.kwargs))
    if kwargs.get("generator") is not None:
        raise TypeError("a generator")
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        raise TypeError("a device that is not cpu")
    return args, kwargs
