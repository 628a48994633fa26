"""Whether a placement rule is right: each of its rows is run and compared with the operator on whole tensors."""
import numpy as np

from ._placement import Partial, Replicate


class RowResult:
    """One row of a rule, run on one sample: placements along one mesh dimension, and what was wrong (None: nothing)."""

    def __init__(self, inputs, outputs, fault):
        self.inputs = inputs
        self.outputs = outputs
        self.fault = fault

    def __repr__(self):
        return f"{self.inputs} -> {self.outputs}: {self.fault or 'right'}"


def _split(array, dim, parts):
    """As torch.chunk does, with empty parts for ranks that get none."""
    size = -(-array.shape[dim] // parts) if array.shape[dim] else 0
    bounds = [min(part * size, array.shape[dim]) for part in range(parts + 1)]
    return [np.take(array, range(bounds[part], bounds[part + 1]), axis=dim) for part in range(parts)]


def _summands(array, op, parts, random):
    """Parts that combine to `array`; they differ from rank to rank."""
    if op in ("min", "max"):
        # One rank has each element; the others have one that does not win.
        holder = random.integers(parts, size=array.shape)
        worse = array + (1 if op == "min" else -1)
        return [np.where(holder == part, array, worse).astype(array.dtype) for part in range(parts)]
    if op == "product":
        return [array if part == 0 else np.ones_like(array) for part in range(parts)]
    noise = [random.integers(-3, 4, size=array.shape).astype(array.dtype) for _ in range(parts - 1)]
    scale = parts if op == "avg" else 1
    return [*noise, (array * scale - sum(noise)).astype(array.dtype)]


def verify_rule(session, name, arguments, named, outputs, rtol, atol, timeout):
    random = np.random.default_rng(0)
    parts = session.world_size

    def arrays(value):
        return isinstance(value, np.ndarray)

    def placed(value, placements):
        if isinstance(value, (list, tuple)) and any(map(arrays, value)):
            return [placed(each, placements) for each in value]
        if not arrays(value):
            return value
        placement = next(placements)
        if isinstance(placement, Partial):
            return session.put_shards(_summands(value, placement.reduce_op, parts, random), value.shape, [placement])
        if isinstance(placement, Replicate):
            return session.put(value)
        return session.put_shards(_split(value, placement.dim, parts), value.shape, [placement])

    def run(placements):
        placements = iter(placements)
        given = [placed(value, placements) for value in arguments]
        by_name = {key: placed(value, placements) for key, value in named.items()}
        return given, by_name

    def everywhere():
        while True:
            yield Replicate()

    given, by_name = run(everywhere())
    told = session.explain(name, *given, outputs=outputs, timeout=timeout, **by_name)
    listed = lambda made: [made] if outputs == 1 else made
    want = [each.numpy(timeout) for each in listed(session.call(name, *given, outputs=outputs, **by_name))]
    results = []
    for inputs, placements in told.rows:
        if all(isinstance(each, Replicate) for each in inputs):
            continue
        given, by_name = run(inputs)
        made = listed(session.call(name, *given, outputs=outputs, **by_name))
        fault = None
        for number, (tensor, expected) in enumerate(zip(made, want)):
            got = tensor.numpy(timeout)
            if got.shape != expected.shape or not np.allclose(got, expected, rtol=rtol, atol=atol, equal_nan=True):
                fault = f"result {number} is {got}, wanted {expected}"
        results.append(RowResult(inputs, placements, fault))
    return results
