"""Whether a placement rule is right: each of its rows is run and compared with the operator on whole tensors."""
import itertools

import numpy as np

from ._library import Error
from ._placement import Partial, Replicate


class RowResult:
    """One row of a rule, run on one sample: placements along one mesh dimension, and what was wrong (`fault`; None:
    nothing). `refused`: why the row does not take tensors of these sizes; it was not run then."""

    def __init__(self, inputs, outputs, fault=None, refused=None):
        self.inputs = inputs
        self.outputs = outputs
        self.fault = fault
        self.refused = refused

    def __repr__(self):
        return f"{self.inputs} -> {self.outputs}: {self.fault or self.refused or 'right'}"


def _split(array, dim, parts):
    """As torch.chunk does, with empty parts for ranks that get none."""
    size = -(-array.shape[dim] // parts) if array.shape[dim] else 0
    bounds = [min(part * size, array.shape[dim]) for part in range(parts + 1)]
    return [np.take(array, range(bounds[part], bounds[part + 1]), axis=dim) for part in range(parts)]


def _summands(array, op, parts, random):
    """Parts that combine to `array`; they differ from rank to rank."""
    holder = random.integers(parts, size=array.shape)
    if array.dtype == bool:  # sum and max are "or", product and min "and"
        neutral = op in ("min", "product")
        return [np.where(holder == part, array, neutral) for part in range(parts)]
    if op in ("min", "max"):
        # One rank has each element; the others have one that does not win.
        one = array.dtype.type(1)
        worse = array + one if op == "min" else array - one
        worse = np.where(worse < array if op == "min" else worse > array, array, worse)  # it wrapped
        return [np.where(holder == part, array, worse).astype(array.dtype) for part in range(parts)]
    if op == "product":
        return [array if part == 0 else np.ones_like(array) for part in range(parts)]
    if array.dtype.kind == "u":
        return [np.where(holder == part, array, 0).astype(array.dtype) for part in range(parts)]
    noise = [random.integers(-3, 4, size=array.shape).astype(array.dtype) for _ in range(parts - 1)]
    scale = parts if op == "avg" else 1
    return [*noise, (array * scale - sum(noise)).astype(array.dtype)]


class _Sample:
    """A call's arguments, whose arrays are put as a row says."""

    def __init__(self, session, arguments, named):
        self.session, self.arguments, self.named = session, arguments, named
        self.random = np.random.default_rng(0)

    def place(self, placements):
        """Positional and named arguments, and the tensors among them in order. `placements`: one for each tensor."""
        placements, tensors = iter(placements), []

        def placed(value):
            if isinstance(value, (list, tuple)) and any(isinstance(each, np.ndarray) for each in value):
                return [placed(each) for each in value]
            if not isinstance(value, np.ndarray):
                return value
            tensors.append(self.put(value, next(placements)))
            return tensors[-1]

        given = [placed(value) for value in self.arguments]
        return given, {key: placed(value) for key, value in self.named.items()}, tensors

    def put(self, value, placement):
        parts = self.session.world_size
        if isinstance(placement, Partial):
            summands = _summands(value, placement.reduce_op, parts, self.random)
            return self.session.put_shards(summands, value.shape, [placement])
        if isinstance(placement, Replicate):
            return self.session.put(value)
        return self.session.put_shards(_split(value, placement.dim, parts), value.shape, [placement])


def verify_rule(session, name, arguments, named, outputs, rtol, atol, timeout):
    sample = _Sample(session, arguments, named)

    def values(placements):
        """Of the results, then of the tensors given, which the call may have written to."""
        given, by_name, tensors = sample.place(placements)
        made = session.call(name, *given, outputs=outputs, **by_name)
        return [each.numpy(timeout) for each in ([made] if outputs == 1 else [*made]) + tensors]

    given, by_name, _ = sample.place(itertools.repeat(Replicate()))
    told = session.explain(name, *given, outputs=outputs, timeout=timeout, **by_name)
    want = values(itertools.repeat(Replicate()))

    def run(inputs):
        try:
            got = values(inputs)
        except Error as error:
            refused = "cannot be split so" in str(error)
            return {"refused" if refused else "fault": str(error)}
        for number, (value, expected) in enumerate(zip(got, want)):
            if value.shape != expected.shape or not np.allclose(value, expected, rtol=rtol, atol=atol, equal_nan=True):
                what = f"result {number}" if number < outputs else f"tensor {number - outputs} afterwards"
                return {"fault": f"{what} is {value}, wanted {expected}"}
        return {}

    results = [RowResult(inputs, placements, **run(inputs)) for inputs, placements in told.rows
               if not all(isinstance(each, Replicate) for each in inputs)]
    if all(result.refused for result in results):
        raise ValueError(f"no row of {name}'s rule takes these arguments on {session.world_size} workers: nothing was verified")
    return results
