"""What each rank of a mesh holds of a value, computed here with torch.chunk: the independent side of placement_test.py."""
import itertools

import torch

from dtorch import Replicate


def is_shard(placement):
    return repr(placement)[0] == "S"


def is_partial(placement):
    return repr(placement)[0] == "P"


def chunks(extent, count):
    """(offset, length) of each part, as torch.chunk splits; it has empty ones where torch.chunk has none."""
    size = -(-extent // count)
    return [(min(i * size, extent), max(min(size, extent - i * size), 0)) for i in range(count)]


def split(value, placement, count, rng):
    """What each of `count` ranks holds of a Shard or a Partial."""
    if is_shard(placement):
        return [value.narrow(placement.dim, offset, length).contiguous()
                for offset, length in chunks(value.shape[placement.dim], count)]
    return parts_of(value, placement.reduce_op, count, rng)


def distribute(value, mesh_shape, placements, rng):
    """By mesh coordinate. Each mesh dimension splits what those before it left."""
    if not mesh_shape:
        return {(): value}
    inner = lambda part: distribute(part, mesh_shape[1:], placements[1:], rng)
    if is_shard(placements[0]) or is_partial(placements[0]):
        parts = list(map(inner, split(value, placements[0], mesh_shape[0], rng)))
    else:
        parts = [inner(value)] * mesh_shape[0]
    return {(i, *rest): local for i, part in enumerate(parts) for rest, local in part.items()}


def local_shapes(shape, mesh_shape, placements):
    """By mesh coordinate, of a value of global `shape`."""
    locals = distribute(torch.empty(shape, device="meta"), mesh_shape,
                        [placement if is_shard(placement) else Replicate() for placement in placements], None)
    return {coordinate: local.shape for coordinate, local in locals.items()}


def join(locals, mesh_shape, placements, to_the_bit=True):
    """The value, and how much rounding its reductions may have cost: a tensor, or 0. Raises AssertionError where replicas
    differ."""
    if not mesh_shape:
        return locals[()], 0
    parts, slacks = [], []
    for i in range(mesh_shape[0]):
        inner = {coordinate[1:]: local for coordinate, local in locals.items() if coordinate[0] == i}
        value, slack = join(inner, mesh_shape[1:], placements[1:], to_the_bit)
        parts.append(value)
        slacks.append(slack)
    placement = placements[0]
    if is_shard(placement):
        whole = torch.cat(parts, placement.dim)
        tensors = [slack if torch.is_tensor(slack) else torch.zeros(part.shape, dtype=torch.float64)
                   for slack, part in zip(slacks, parts)]
        return whole, torch.cat(tensors, placement.dim) if any(map(torch.is_tensor, slacks)) else 0
    if is_partial(placement):
        whole = reduced(parts, placement.reduce_op)
        return whole, sum(slacks) + rounding(whole, parts, placement.reduce_op)
    for i, part in enumerate(parts):
        same = same_bits if to_the_bit else close
        assert same(part, parts[0]), f"replicas differ: {part.flatten()[:6]} on rank {i}, {parts[0].flatten()[:6]}"
    return parts[0], slacks[0]


def same_bits(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.numel() == 0 or torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def close(a, b):
    return torch.allclose(a, b, equal_nan=True)


def rounding(whole, parts, op):
    """Each part is rounded to its dtype: how much their reduction can differ by that from PyTorch's, which rounds once. Four
    roundings each, for kernels that sum in blocks round in between."""
    if op in ("min", "max") or not (whole.is_floating_point() or whole.is_complex()):
        return 0
    magnitude = whole.abs() if op == "product" else sum(part.abs().to(torch.float64) for part in parts)
    return 4 * torch.finfo(whole.dtype).eps * magnitude.to(torch.float64)


def reduced(parts, op):
    dtype = parts[0].dtype
    if dtype == torch.bool:
        combine = torch.logical_and if op in ("min", "product") else torch.logical_or
        whole = parts[0]
        for part in parts[1:]:
            whole = combine(whole, part)
        return whole
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
    stack = torch.stack([part.to(wide) for part in parts])
    if op == "sum":
        return stack.sum(0, dtype=wide).to(dtype)
    if op == "avg":
        return (stack.sum(0, dtype=wide) / len(parts)).to(dtype)
    if op == "product":
        return stack.prod(0, dtype=wide).to(dtype)
    return (stack.amin(0) if op == "min" else stack.amax(0)).to(dtype)


def has_parts(value, op):
    """Whether parts_of() finds parts that are exact: what is not finite, or would overflow, has none."""
    if value.dtype == torch.bool:
        return op != "avg"
    if value.dtype.is_complex and op in ("min", "max"):
        return False
    if not (value.is_floating_point() or value.is_complex()):
        return op != "avg"  # which no collective takes of integers
    limit = torch.finfo(value.dtype).max / 8
    return bool((value.isfinite() & (value.abs() < limit)).all())


def parts_of(value, op, count, rng):
    """Parts that `op` reduces to `value`, without rounding; they are not alike, and of both signs, so that an operator that
    is not what its rule says of it gives something else."""
    if count == 1:
        return [value]
    draw = lambda low, high: torch.randint(low, high, value.shape, generator=rng)
    if value.dtype == torch.bool:
        neutral = op in ("min", "product")
        holder = draw(0, count)
        return [torch.where((holder == i) | draw(0, 2).bool(), value, neutral) for i in range(count)]
    if op in ("sum", "avg"):
        return summands(value, op, count, draw)
    if op == "product":
        # The value on one rank of each element, with the sign changed there and on the next one.
        holder, sign = draw(0, count), (1 - 2 * draw(0, 2)).to(value.dtype)
        if value.dtype == torch.uint8:
            sign = torch.ones_like(value)
        parts = [torch.where(holder == i, value * sign, 1) for i in range(count)]
        return [torch.where(holder == (i + 1) % count, sign, part) for i, part in enumerate(parts)]
    holder = draw(0, count)
    distance = draw(0, 5).to(value.dtype)
    if op == "min":
        other = value + distance
        other = torch.where(other < value, value, other)  # it wrapped
    else:
        other = value - distance
        other = torch.where(other > value, value, other)
    return [torch.where((holder == i) | draw(0, 3).eq(0), value, other) for i in range(count)]


def summands(value, op, count, draw):
    """Two ranks of each element hold 2v and -v, or v/2 both, or v and 0; of integers, and where v is 0, v - r and r; the rest
    hold 0. Of an average the two hold 2v and 0, or 4v and -2v, or v both; where v is 0, r and -r; the rest hold v."""
    if op == "avg":
        pair, offset = draw(0, 3), draw(1, 4).to(value.dtype)
        first = torch.where(pair == 0, value * 2, torch.where(pair == 1, value * 4, value))
        second = torch.where(pair == 0, torch.zeros_like(value), torch.where(pair == 1, value * -2, value))
        first, second = torch.where(value == 0, offset, first), torch.where(value == 0, -offset, second)
        rest = value
    elif value.is_floating_point() or value.is_complex():
        pair, offset = draw(0, 4), draw(1, 4).to(value.dtype)
        first = torch.where(pair == 0, value * 2, torch.where(pair == 1, value / 2, value))
        second = torch.where(pair == 0, -value, torch.where(pair == 1, value / 2, 0))
        exact = first + second == value  # half of the least numbers is not
        first, second = torch.where(exact, first, value), torch.where(exact, second, 0)
        first, second = torch.where(value == 0, offset, first), torch.where(value == 0, -offset, second)
        rest = torch.zeros_like(value)
    else:
        limits = torch.iinfo(value.dtype)
        offset = (draw(0, 4) if value.dtype == torch.uint8 else draw(-3, 4)).to(value.dtype)
        if value.dtype == torch.uint8:
            offset = torch.minimum(offset, value)
        else:
            offset = torch.where((value > limits.max - 4) | (value < limits.min + 4), 0, offset)
        first, second, rest = value - offset, offset, torch.zeros_like(value)
    holder, step = draw(0, count), draw(1, count)
    return [torch.where(holder == i, first, torch.where((holder + step) % count == i, second, rest))
            for i in range(count)]


def coordinates(mesh_shape):
    return list(itertools.product(*map(range, mesh_shape)))
