"""placing.py itself: parts reduce to the value they were made of, and show an operator that is not linear."""
import itertools
import unittest

import torch

import placing
from dtorch import Partial, Replicate, Shard
from samples import DTYPES

SEED = 6
SHAPES = [(5, 4), (0, 3), (), (7,), (2, 3, 1)]
MESHES = [(1,), (2,), (3,), (4,), (2, 2), (2, 3)]
OPS = ["sum", "avg", "product", "min", "max"]


def values(generator):
    for dtype, shape in itertools.product(sorted(DTYPES, key=str), SHAPES):
        if dtype.is_floating_point or dtype.is_complex:
            value = torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
            value = value * (torch.rand(shape, generator=generator) > 0.2)  # some zeros
        else:
            value = torch.randint(-9, 9, shape, generator=generator)
        yield value.to(dtype)


class Parts(unittest.TestCase):
    def setUp(self):
        self.generator = torch.Generator().manual_seed(SEED)

    def test_what_is_distributed_joins_to_the_same_value(self):
        for value, mesh in itertools.product(values(self.generator), MESHES):
            choices = [Replicate(), *map(Partial, OPS), *map(Shard, range(value.dim()))]
            for placements in itertools.product(choices, repeat=len(mesh)):
                ops = {placement.reduce_op for placement in placements if placing.is_partial(placement)}
                if len(ops) > 1 or not all(placing.has_parts(value, op) for op in ops):
                    continue
                locals = placing.distribute(value, mesh, placements, self.generator)
                whole, _ = placing.join(locals, mesh, placements)
                self.assertEqual({c: local.shape for c, local in locals.items()},
                                 placing.local_shapes(value.shape, mesh, placements))
                # Three times a number, and a third of that, are rounded; all else is exact.
                tolerance = {"rtol": None, "atol": None} if "avg" in ops else {"rtol": 0, "atol": 0}
                torch.testing.assert_close(whole, value, **tolerance)

    def test_shards_are_torch_chunks(self):
        for extent, count in itertools.product(range(9), range(1, 5)):
            chunks = list(torch.arange(extent).chunk(count)) if extent else []
            lengths = [len(chunk) for chunk in chunks] + [0] * (count - len(chunks))
            self.assertEqual([length for _, length in placing.chunks(extent, count)], lengths)

    def test_partial_parts_show_what_is_not_linear(self):
        value = torch.randn(40, generator=self.generator, dtype=torch.float64)
        functions = [torch.relu, torch.abs, torch.exp, torch.sign, torch.square]
        cases = [*itertools.product(functions, ("sum", "avg")), (lambda x: x + 1, "sum"), (lambda x: x + 1, "product"),
                 (torch.neg, "max"), (torch.neg, "min"), (torch.abs, "max"), (torch.abs, "min")]
        for (function, op), count in itertools.product(cases, (2, 3)):
            parts = placing.parts_of(value, op, count, self.generator)
            self.assertFalse(torch.allclose(placing.reduced(list(map(function, parts)), op), function(value)))

    def test_replicas_that_differ_in_a_bit_are_found(self):
        one = torch.zeros(3)
        with self.assertRaisesRegex(AssertionError, "replicas differ"):
            placing.join({(0,): one, (1,): -one}, (2,), [Replicate()])


if __name__ == "__main__":
    unittest.main()
