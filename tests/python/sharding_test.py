"""Public reports of wrong values on sharded tensors, as cases with right answers. Argument: the folder of the programs.

Each call is made on shards, in explicit mode, where the right value or a refusal is accepted (`right` accepts no refusal),
and in implicit mode, where only the right value is.
"""
import pathlib
import sys
import threading
import unittest

import torch

import dtorch
from daemon import LIMIT, REFUSALS, Daemon
from dtorch import Partial, Replicate, Shard

BIN = pathlib.Path(sys.argv[1]).resolve()
WORKERS = 4


class ShardingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN, "--workers.count", str(WORKERS))
        cls.addClassCleanup(cls.daemon.stop)

    def setUp(self):
        self.connect()

    def connect(self, **options):
        self.session = dtorch.client.connect(self.daemon.socket, name="sharding_test", **options)
        self.addCleanup(self.session.close)
        self.meshes = {2: self.session.mesh([0, 1]), 4: self.session.world}

    def put(self, ranks, value, placement):
        return self.session.put(torch.as_tensor(value), [placement], self.meshes[ranks])

    def partial(self, ranks, values, op="sum"):
        """One local value a rank."""
        parts = [torch.as_tensor(value) for value in values]
        return self.session.put_shards(parts, parts[0].shape, [Partial(op)], self.meshes[ranks])

    def value(self, tensor):
        return torch.from_dlpack(tensor.get().wait(LIMIT))

    def check(self, want, name, *args, refusable=False, **kwargs):
        """The call gives `want` (a tensor, or a tuple of them), on shards as they lie and in implicit mode."""
        wanted = want if isinstance(want, tuple) else (want,)
        outputs = {"outputs": len(wanted)} if len(wanted) > 1 else {}
        for implicit in False, True:
            self.session.implicit = implicit
            results = self.session.call(name, *args, **kwargs, **outputs)
            for result, value in zip(results if outputs else (results,), wanted):
                try:
                    got = self.value(result)
                except dtorch.Error as error:
                    if implicit or not refusable or error.code not in REFUSALS:
                        raise
                    continue
                torch.testing.assert_close(got, torch.as_tensor(value), msg=lambda text: f"{name}{args}: {text}")
        self.session.implicit = False

    def refused(self, name, *args, **kwargs):
        with self.assertRaises(dtorch.Error) as caught:
            self.value(self.session.call(name, *args, **kwargs))
        self.assertIn(caught.exception.code, REFUSALS)

    def test_the_mean_of_uneven_parts_is_no_mean_of_means(self):  # pytorch#162692
        x = self.put(2, torch.arange(12.0).view(3, 4), Shard(0))
        self.check(torch.tensor(5.5), "aten::mean", x)
        self.check(torch.tensor([4.0, 5, 6, 7]), "aten::mean.dim", x, [0])
        one = self.put(2, torch.arange(4.0).view(1, 4), Shard(0))  # a rank has nothing
        self.check(torch.tensor(1.5), "aten::mean", one)
        self.check(torch.arange(4.0), "aten::mean.dim", one, [0])

    def test_a_number_is_added_once_to_a_sum_over_ranks(self):  # pytorch#163193, pytorch#149768
        total = self.session.call("aten::sum", self.put(2, torch.arange(10.0).view(10, 1), Shard(0)))
        self.assertEqual(total.describe().wait(LIMIT).placements, [Partial()])
        self.check(torch.tensor(55.0), "aten::add.Scalar", total, 10, refusable=True)
        self.check(torch.tensor(35.0), "aten::sub.Scalar", total, 10, refusable=True)
        self.check(torch.tensor(-35.0), "aten::rsub.Scalar", total, 10, refusable=True)
        self.check(torch.tensor(55.0), "aten::add.Tensor", total, self.put(2, torch.tensor(10.0), Replicate()), refusable=True)
        self.check(torch.tensor(90.0), "aten::mul.Scalar", total, 2)
        self.check(torch.tensor(22.5), "aten::div.Scalar", total, 2)

    def test_what_is_read_of_a_partial_is_its_value(self):  # pytorch#166638, pytorch#144054
        for ranks, op, want in (2, "sum", 3.0), (4, "sum", 6.0), (2, "max", 2.0), (4, "max", 3.0), (2, "avg", 1.5):
            start = 1.0 if ranks == 2 else 0.0
            x = self.partial(ranks, [start + rank for rank in range(ranks)], op)
            self.assertEqual(self.value(x).item(), want)

    def test_indices_are_those_of_the_whole(self):  # pytorch PR#173936, pytorch PR#175776
        for ranks in 2, 4:
            for values in ([10.0, 5, 3, 8], [3.0, 5, 10, 8]):
                whole, x = torch.tensor(values), self.put(ranks, values, Shard(0))
                self.check(whole.argmax(), "aten::argmax", x, refusable=True)
                self.check(whole.argmax(0), "aten::argmax", x, 0)
                self.check(whole.argmin(0), "aten::argmin", x, 0)
                self.check(tuple(whole.max(0)), "aten::max.dim", x, 0)
                self.check(tuple(whole.topk(2)), "aten::topk", x, 2, refusable=True)
                self.check(tuple(whole.sort()), "aten::sort", x, refusable=True)

    def test_views_of_split_dimensions_are_right_or_refused(self):  # pytorch#179502, pytorch PR#149764
        for shape, dim, ranks, view in ((12, 8), 1, 4, (16, 6)), ((2, 8, 4), 1, 2, (16, 4)), ((6, 4), 0, 4, (24,)):
            whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
            x = self.put(ranks, whole, Shard(dim))
            for name in "aten::view_copy", "aten::reshape":
                results = [self.session.call(name, x, list(view))]
                try:
                    torch.testing.assert_close(self.value(results[0]), whole.view(view))
                except dtorch.Error as error:
                    self.assertIn(error.code, REFUSALS)

    def test_scans_and_orders_along_a_split_dimension(self):  # jax#21403, tinygrad#11107, pytorch PR#151071
        for ranks in 2, 4:
            ones, x = torch.ones(8), torch.arange(1.0, 9.0)
            self.check(x, "aten::cumsum", self.put(ranks, ones, Shard(0)), 0)
            self.check(x.cumprod(0), "aten::cumprod", self.put(ranks, x, Shard(0)), 0)
            self.check(x.flip(0), "aten::flip", self.put(ranks, x, Shard(0)), [0], refusable=True)
            self.check(x.roll(1), "aten::roll", self.put(ranks, x, Shard(0)), [1], refusable=True)
            self.check(x.square().diff(), "aten::diff", self.put(ranks, x.square(), Shard(0)), refusable=True)

    def test_parts_without_elements_have_the_shape_of_their_tensor(self):  # some kernels give such parts another one
        x = torch.randn(1, 2, 6, 6)
        for ranks, validate in (2, False), (4, False), (2, True):
            self.connect(validate=validate)
            part = self.put(ranks, x, Shard(0))
            self.check(torch.pixel_unshuffle(x, 3), "aten::pixel_unshuffle", part, 3)
            out = self.put(ranks, torch.zeros(1, 18, 2, 2), Shard(0))
            self.check(torch.pixel_unshuffle(x, 3), "aten::pixel_unshuffle.out", part, 3, out=out)
            torch.testing.assert_close(self.value(out), torch.pixel_unshuffle(x, 3))
            numbers = torch.arange(4).reshape(1, 4)
            self.check(numbers.softmax(1, torch.float32), "aten::softmax.int", self.put(ranks, numbers, Shard(0)), 1,
                       torch.float32)
            self.check(x.logcumsumexp(0), "aten::logcumsumexp", part, 0)

    def test_products_that_no_rank_can_compute_alone_are_refused(self):
        a, b = torch.randn(4, 8), torch.randn(8, 6)
        rows, columns = self.put(2, a, Shard(0)), self.put(2, a, Shard(1))
        for left, right in (rows, Shard(0)), (rows, Shard(1)), (columns, Shard(1)), (columns, Replicate()):
            self.refused("aten::matmul", left, self.put(2, b, right))
        self.refused("aten::matmul", self.put(2, a, Replicate()), self.put(2, b, Shard(0)))
        self.check(a @ b, "aten::matmul", columns, self.put(2, b, Shard(0)))

    def test_dimensions_are_counted_in_the_result(self):
        x = torch.randn(2, 3, 4, 5)
        last = self.put(2, x, Shard(3))
        out = self.session.call("aten::flatten.using_ints", last, 0, 1)
        self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(2)])
        torch.testing.assert_close(self.value(out), x.flatten(0, 1))
        out = self.session.call("aten::unsqueeze", last, -1)
        self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(3)])
        torch.testing.assert_close(self.value(out), x.unsqueeze(-1))
        out = self.session.call("aten::unsqueeze", last, -2)
        self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(4)])

    def test_what_is_not_linear_takes_no_sum_over_ranks(self):
        x = self.partial(2, [torch.ones(3), torch.full((3,), 2.0)])
        for name in "exp", "square", "abs", "tanh", "reciprocal", "isnan", "round":
            self.refused(f"aten::{name}", x)
        self.refused("aten::mul.Tensor", x, x)
        self.refused("aten::add.Tensor", x, self.put(2, torch.ones(3), Replicate()))
        self.check(torch.full((3,), 6.0), "aten::add.Tensor", x, x)
        self.check(torch.full((3,), 3.0).exp(), "aten::exp", x, refusable=True)

    def test_masked_scatter_takes_its_source_in_the_order_of_the_whole(self):
        x, mask, source = torch.zeros(6), torch.tensor([1, 0, 1, 1, 0, 1]).bool(), torch.arange(6.0)
        self.check(x.masked_scatter(mask, source), "aten::masked_scatter", self.put(2, x, Shard(0)),
                   self.put(2, mask, Shard(0)), self.put(2, source, Replicate()), refusable=True)

    def test_meshes_have_any_order_of_ranks_and_named_dimensions(self):
        mesh = self.session.mesh([3, 1, 0, 2], [2, 2], ["data", "model"])
        self.assertEqual(mesh.names, ("data", "model"))
        x = torch.arange(30.0).view(6, 5)
        y = self.session.put(x, [Shard(0), Shard(1)], mesh)
        parts = {3: x[:3, :3], 1: x[:3, 3:], 0: x[3:, :3], 2: x[3:, 3:]}
        for rank, part in parts.items():
            torch.testing.assert_close(torch.from_dlpack(y.get_local(rank).wait(LIMIT)), part)
        torch.testing.assert_close(self.value(self.session.call("aten::sum.dim_IntList", y, [1])), x.sum(1))
        model = self.session.submesh(mesh, data=1)
        self.assertEqual((model.ranks, model.shape, model.names), ((0, 2), (2,), ("model",)))
        self.assertEqual(self.session.submesh(mesh, model=0).ranks, (3, 0))
        self.assertEqual(self.session.submesh(mesh, model=1, data=0).ranks, (1,))
        with self.assertRaises(KeyError):
            self.session.submesh(mesh, pipe=0)
        with self.assertRaises(IndexError):
            self.session.submesh(mesh, data=2)
        with self.assertRaisesRegex(dtorch.Error, "name"):
            self.session.mesh([0, 1, 2, 3], [2, 2], ["data", "data"])

    def test_disjoint_meshes_work_at_the_same_time(self):
        """A slow operator on one mesh does not hold up another's."""
        slow, quick = self.session.mesh([0, 1]), self.session.mesh([2, 3])
        big = self.session.put(torch.full((1200, 1200), 1e-3), mesh=slow)
        x = self.session.put(torch.ones(4), mesh=quick)
        chain = big
        for _ in range(60):
            chain = self.session.call("aten::mm", chain, big)
        order = []

        def wait(name, tensor):
            tensor.get().wait(LIMIT)
            order.append(name)

        threads = [threading.Thread(target=wait, args=("slow", self.session.call("aten::sum", chain)))]
        for _ in range(20):
            x = self.session.call("aten::add.Scalar", x, 1)
        threads.append(threading.Thread(target=wait, args=("quick", x)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(order, ["quick", "slow"])
        torch.testing.assert_close(self.value(x), torch.full((4,), 21.0))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[2:]])
