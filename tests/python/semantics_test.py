"""What operators mean, against PyTorch in this process: values that decide shapes, memory that tensors share, errors,
random numbers. Arguments: the folder of the programs; --programs N: how many random programs of views and in-place
operators (default 150); --seed S."""
import argparse
import pathlib
import random
import re
import sys
import threading
import unittest

import numpy as np
import torch

import dtorch
from daemon import Daemon
from dtorch import Partial, Replicate, Shard

parser = argparse.ArgumentParser()
parser.add_argument("bin", type=pathlib.Path)
parser.add_argument("--programs", type=int, default=150)
parser.add_argument("--seed", type=int, default=20)
OPTIONS = parser.parse_args()


def value(tensor):
    return torch.from_dlpack(tensor.get().wait(60))


class WithDaemon(unittest.TestCase):
    workers, flags = 2, ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(OPTIONS.bin.resolve(), "--workers.count", str(cls.workers), *cls.flags)
        cls.addClassCleanup(cls.daemon.stop)

    def setUp(self):
        self.session = self.connect()

    def connect(self, **options):
        session = dtorch.client.connect(self.daemon.socket, **options)
        self.addCleanup(session.close)
        return session

    def same(self, tensor, want):
        got = value(tensor)
        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
        self.assertTrue(torch.equal(got, want) or torch.allclose(got, want, equal_nan=True), f"{got}\n{want}")


class Values(WithDaemon):
    def test_results_whose_shape_depends_on_values(self):
        x = torch.tensor([[1.0, 0, 3], [0, 5, 0]])
        remote = self.session.put(x)
        rows = self.session.call("aten::nonzero", remote)
        self.same(rows, x.nonzero())
        picked = self.session.call("aten::masked_select", remote, self.session.call("aten::gt.Scalar", remote, 2))
        self.same(self.session.call("aten::mul.Scalar", picked, 2), x[x > 2] * 2)  # goes on with it, without a wait
        for got, want in zip(self.session.call("aten::_unique2", remote, True, True, True, outputs=3),
                             torch._unique2(x, True, True, True)):
            self.same(got, want)
        self.same(self.session.call("aten::bincount", self.session.put(torch.tensor([1, 1, 4]))),
                  torch.bincount(torch.tensor([1, 1, 4])))
        # Never remembered: other values of the same shape.
        again = self.session.put(torch.ones(2, 3))
        self.same(self.session.call("aten::nonzero", again), torch.ones(2, 3).nonzero())

    def test_sharded_inputs_of_such_operators_are_refused_with_what_to_do(self):
        rows = self.session.put(torch.ones(4, 2), [Shard(0)])
        with self.assertRaisesRegex(dtorch.Error, "redistribute them to Replicate"):
            self.session.call("aten::nonzero", rows).get().wait(20)
        self.same(self.session.call("aten::nonzero", rows.redistribute([Replicate()])), torch.ones(4, 2).nonzero())

    def test_an_error_in_one_reaches_what_was_called_after_it(self):
        negative = self.session.put(torch.tensor([-1, 2]))
        counted = self.session.call("aten::bincount", negative)
        later = self.session.call("aten::add.Tensor", counted, 1)
        for tensor in counted, later:
            with self.assertRaisesRegex(dtorch.Error, "aten::bincount"):
                tensor.get().wait(20)
        self.same(self.session.put(torch.ones(2)), torch.ones(2))

    def test_numbers_as_results(self):
        x = torch.tensor([[1.5, 2], [3, 4]], dtype=torch.float64)
        remote = self.session.put(x)
        self.assertEqual(value(self.session.call("aten::item", self.session.call("aten::sum", remote))).item(), 10.5)
        self.assertEqual(value(self.session.call("aten::size.int", remote, 1)).item(), 2)
        self.assertTrue(value(self.session.call("aten::equal", remote, remote)).item())

    def test_operators_without_a_meta_kernel(self):
        x = torch.randn(5, 4)
        remote = self.session.put(x)
        for name, arguments in [("aten::var", ()), ("aten::flip", ([0],)), ("aten::std.dim", ([1],)),
                                ("aten::median.dim", (1,)), ("aten::kthvalue", (2,)), ("aten::index_select", None)]:
            if arguments is None:
                got = self.session.call(name, remote, 0, self.session.put(torch.tensor([3, 1])))
                self.same(got, x.index_select(0, torch.tensor([3, 1])))
                continue
            want = getattr(getattr(torch.ops.aten, name[6:].split(".")[0]),
                           name.split(".")[1] if "." in name else "default")(x, *arguments)
            want = want if isinstance(want, tuple) else (want,)
            got = self.session.call(name, remote, *arguments, outputs=len(want))
            for one, other in zip(got if len(want) > 1 else [got], want):
                self.same(one, other)

    def test_promotion_is_pytorchs(self):
        # Without complex32, which PyTorch itself hardly knows.
        kinds = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                 torch.float64, torch.complex64]
        for a in kinds:
            for b in kinds:
                for left, right in [(torch.tensor([3]).to(a), torch.tensor([2]).to(b)),
                                    (torch.tensor(257).to(a), torch.tensor([0, 1]).to(b))]:
                    for name in "add.Tensor", "div.Tensor", "eq.Tensor":
                        try:
                            operator = getattr(getattr(torch.ops.aten, name.split(".")[0]), "Tensor")
                            want = operator(left, right)
                        except RuntimeError:
                            continue
                        if want.dtype == torch.complex32:
                            continue
                        got = self.session.call(f"aten::{name}", self.session.put(left), self.session.put(right))
                        self.same(got, want)

    def test_promotion_case_by_case(self):  # pytorch#179845
        call = lambda name, left, right: value(self.session.call(name, self.session.put(left), self.session.put(right)))
        int32 = lambda *values: torch.tensor(values, dtype=torch.int32)
        half, bfloat = torch.tensor([1.0]).half(), torch.tensor([0.0]).bfloat16()
        for got, want in [
                # 257 is no bfloat16.
                (call("aten::add.Tensor", int32(257), bfloat), torch.tensor([256.0], dtype=torch.bfloat16)),
                (call("aten::div.Tensor", int32(7), int32(2)), torch.tensor([3.5])),
                (call("aten::add.Tensor", half, bfloat), torch.tensor([1.0])),
                # A tensor of no dimensions is of a lower rank than one of some.
                (call("aten::add.Tensor", torch.tensor(1.5, dtype=torch.float64), half), torch.tensor([2.5]).half()),
                (call("aten::add.Tensor", torch.tensor([1.5], dtype=torch.float64), half),
                 torch.tensor([2.5], dtype=torch.float64)),
                (call("aten::add.Tensor", torch.tensor(300), torch.tensor([1], dtype=torch.uint8)),
                 torch.tensor([45], dtype=torch.uint8)),
                (call("aten::mul.Tensor", torch.tensor(0.5), int32(3)), torch.tensor([1.5]))]:
            self.assertEqual((got.dtype, got.tolist()), (want.dtype, want.tolist()))

    def test_scalars_cross_exactly(self):  # apache/tvm#6272, pytorch#18913
        big = 2 ** 53 + 1
        add = lambda tensor, number: self.session.call("aten::add.Scalar", self.session.put(tensor), number)
        self.assertEqual(value(add(torch.zeros(2, dtype=torch.int64), big)).tolist(), [big, big])
        self.assertEqual(value(add(torch.zeros(1, dtype=torch.int64), -2 ** 63)).tolist(), [-2 ** 63])
        self.assertEqual(value(add(torch.zeros(1, dtype=torch.float64), 0.1)).item(), 0.1)
        negative = self.session.call("aten::mul.Scalar", self.session.put(torch.zeros(1)), -1.0)
        self.assertEqual(np.signbit(value(negative).numpy()).tolist(), [True])
        scaled = value(self.session.call("aten::mul.Scalar", self.session.put(torch.tensor([77])), 0.1))
        self.assertEqual((scaled.dtype, scaled.tolist()), (torch.float32, (torch.tensor([77]) * 0.1).tolist()))
        filled = self.session.call("aten::fill_.Scalar", self.session.put(torch.zeros(2, dtype=torch.int32)), 2 ** 24 + 1)
        self.assertEqual(value(filled).tolist(), [2 ** 24 + 1] * 2)
        for number in float("inf"), -float("inf"), float("nan"):
            for dtype in torch.float32, torch.float64:
                got = value(add(torch.zeros(1, dtype=dtype), number)).item()
                self.assertEqual(np.float64(got).tobytes(), np.float64(number).tobytes())
        for number, dtype in (True, torch.bool), (1, torch.int64), (1.0, torch.float32):
            self.same(add(torch.zeros(2, dtype=torch.bool), number), torch.ones(2, dtype=dtype))

    def test_strides_and_offsets_of_what_is_put(self):  # pytorch#20421, tenstorrent/tt-mlir#8622
        x = torch.arange(2048.0).view(64, 32)
        turned = self.session.put(x.t())
        self.assertEqual(value(turned)[:, 0].tolist(), list(range(32)))
        self.assertEqual(value(turned)[0].tolist(), list(range(0, 2048, 32)))
        self.same(turned, x.t().contiguous())
        evens = self.session.put(torch.arange(64)[::2])
        self.assertEqual(value(evens).tolist(), list(range(0, 64, 2)))
        self.same(self.session.put(x[3:, ::2], [Shard(0)]), x[3:, ::2].contiguous())
        self.same(self.session.put(x.view(-1)[7:]), x.view(-1)[7:].clone())
        # From NumPy, and of a size that does not travel in a message.
        large = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)
        for array in x.numpy().T, x.numpy()[::2, 1::3], x.numpy()[::-1], large.T, large[5:, ::2], large[:, ::-1]:
            for placements in [Replicate()], [Shard(1)]:
                self.same(self.session.put(array, placements), torch.from_numpy(array.copy()))
        shared = self.session.put(torch.ones(1).expand(4, 3))
        self.same(shared, torch.ones(4, 3))
        self.same(self.session.put(torch.view_as_complex(torch.randn(4, 2)).conj()).__class__ and
                  self.session.put(torch.tensor([1 + 2j]).conj().imag), torch.tensor([-2.0]))


class Sizes(WithDaemon):
    workers = 4

    def resident(self):
        """Bytes of the daemon and its workers, by process."""
        pids = [self.daemon.process.pid] + [worker["pid"] for worker in self.daemon.status()["workers"]]
        status = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return {pid: 1024 * int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) for pid, text in zip(pids, status)}

    def test_sizes_that_no_memory_holds(self):  # pytorch#42582, pytorch#20056, tensorflow#111637
        one = self.session.put(torch.zeros(1))
        expanded = self.session.call("aten::expand", one, [2 ** 36])
        # Anything once: what kernels and Meta kernels load is not what is looked for.
        self.same(self.session.call("aten::clone", one), torch.zeros(1))
        before = self.resident()
        calls = [("aten::zeros", ([2, 2, 1, 2 ** 61],)), ("aten::zeros", ([2] * 64,)),
                 ("aten::zeros", ([2 ** 32, 2 ** 32],)), ("aten::zeros", ([2 ** 62, 4],)), ("aten::zeros", ([-1, 3],)),
                 ("aten::zeros", ([2 ** 40],)), ("aten::zeros", ([1] * 1000,)), ("aten::zeros", ([1] * 10 ** 6,)),
                 ("aten::repeat", (one, [2 ** 40])), ("aten::repeat", (one, [2 ** 62, 4])),
                 ("aten::as_strided", (one, [2], [2 ** 40])), ("aten::as_strided", (one, [2], [1])),
                 ("aten::as_strided", (one, [1], [1], 2 ** 40)), ("aten::contiguous", (expanded,)),
                 ("aten::clone", (expanded,)), ("aten::rand", ([5 << 30],)),  # 20 GiB on each of 4 workers
                 ("aten::clone", (self.session.call("aten::expand", one, [2 ** 62]),))]
        for name, arguments in calls:
            with self.subTest(name, arguments=str(arguments)[:60]):
                with self.assertRaises(dtorch.Error) as raised:
                    self.session.call(name, *arguments).get().wait(60)
                self.assertIn(str(raised.exception).split(":")[0], ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"),
                              str(raised.exception)[:300])
        # Without memory of its own, but with a value that nobody can have.
        for size in 2 ** 36, 2 ** 62:
            with self.assertRaises(dtorch.Error) as raised:
                self.session.call("aten::expand", one, [size]).get().wait(60)
            self.assertIn(str(raised.exception).split(":")[0], ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
        for size in 2 ** 62, 2 ** 63 - 1:  # none at all is legal
            empty = self.session.call("aten::zeros", [0, size])
            self.assertEqual(empty.describe().wait(20).shape, (0, size))
        self.same(one, torch.zeros(1))
        after = self.resident()
        self.assertEqual(before.keys(), after.keys())  # the same processes
        for pid in before:
            self.assertLess(after[pid] - before[pid], 50 << 20)


class Shards(WithDaemon):
    workers = 4

    def test_parts_of_unequal_size(self):  # pytorch#110762
        whole = torch.arange(20.0).view(10, 2)
        tensor = self.session.put_shards(list(whole.split(3)), [10, 2], [Shard(0)])
        self.assertEqual(tensor.describe().wait(20).shape, (10, 2))
        self.same(tensor, whole)
        self.same(self.session.call("aten::sum.dim_IntList", tensor, [0]), whole.sum(0))
        for rank, part in enumerate(whole.split(3)):
            self.assertTrue(torch.equal(torch.from_dlpack(tensor.get_local(rank).wait(20)), part))
        shifted = self.session.put_shards(list(torch.zeros(14, 2).split([2, 3, 4, 5])), [14, 2], [Shard(0)])
        with self.assertRaisesRegex(dtorch.Error, "torch.chunk"):
            shifted.get().wait(20)

    def test_tensors_without_elements(self):  # pytorch#85234, pytorch#117728
        bias, rows, columns = torch.arange(4.0), torch.zeros(12, 0), torch.zeros(0, 4)
        got = self.session.call("aten::addmm", self.session.put(bias), self.session.put(rows, [Shard(0)]),
                                self.session.put(columns))
        self.same(got, torch.addmm(bias, rows, columns))
        for placement in Replicate(), Shard(0), Shard(2), Partial("sum"):
            empty = self.session.put(torch.zeros(1, 0, 2), [Replicate()]).redistribute([placement])
            self.same(empty.redistribute([Replicate()]), torch.zeros(1, 0, 2))
        one = self.session.put(torch.tensor([5.0]), [Shard(0)])
        self.same(one.redistribute([Replicate()]), torch.tensor([5.0]))
        self.same(self.session.call("aten::sum", one), torch.tensor(5.0))


class Memory(WithDaemon):
    def test_out_is_written_and_returned(self):
        x, out = torch.randn(3, 4), torch.zeros(3, 4)
        for placements in [Replicate()], [Shard(0)]:
            remote, target = self.session.put(x, placements), self.session.put(out, placements)
            result = self.session.call("aten::add.out", remote, remote, out=target)
            self.same(target, x + x)
            self.session.call("aten::mul_.Scalar", result, 2)  # the same memory
            self.same(target, (x + x) * 2)

    def test_an_out_of_another_shape_is_refused(self):
        target = self.session.put(torch.zeros(2))
        with self.assertRaisesRegex(dtorch.Error, "in place"):
            self.session.call("aten::add.out", self.session.put(torch.ones(3)), 1, out=target).get().wait(20)

    def test_a_value_asked_for_before_a_change_is_the_old_one(self):
        x = self.session.put(torch.zeros(1000), [Shard(0)])
        futures = []
        for step in range(20):
            futures.append(x.get())
            self.session.call("aten::add_.Scalar", x, 1)
        for step, future in enumerate(futures):
            self.assertEqual(torch.from_dlpack(future.wait(20)).unique().tolist(), [step])

    def test_a_value_asked_for_before_a_change_that_fails_is_the_old_one(self):
        for shape in ((6, 4), (1,), (300, 200)):
            for _ in range(15):
                x = self.session.put(torch.ones(shape))
                before = x.get()
                index = self.session.put(torch.tensor([999]))
                self.session.call("aten::index_fill_.int_Scalar", x, 0, index, 2)
                self.assertTrue(torch.equal(torch.from_dlpack(before.wait(60)), torch.ones(shape)))
                with self.assertRaises(dtorch.OperatorFailed):
                    x.get().wait(60)

    def test_a_write_through_a_view_that_was_refused_is_not_lost(self):
        x = self.session.put(torch.ones(8), [Shard(0)])
        other = self.session.put(torch.ones(8), [Shard(0)])
        view = self.session.call("aten::slice.Tensor", x, 0, 1, 4)  # of the sharded dimension
        again = self.session.call("aten::unsqueeze", view, 0)
        self.same(x, torch.ones(8))
        self.session.call("aten::zero_", again)
        with self.assertRaises(dtorch.OperatorFailed):
            x.get().wait(60)
        self.same(other, torch.ones(8))

    def test_handles_may_go_while_operators_read_them(self):
        for _ in range(50):
            x = self.session.put(torch.ones(100, 100), [Shard(0)])
            y = self.session.call("aten::add.Tensor", x, x)
            view = self.session.call("aten::t", x)
            del x
            self.session.call("aten::mul_.Scalar", view, 3)
            self.same(y, torch.full((100, 100), 2.0))

    def test_random_programs_of_views_and_in_place_operators(self):
        refused = compared = 0
        session = self.connect(sync=True)
        for number in range(OPTIONS.programs):
            program = Program(session, random.Random(OPTIONS.seed * 100_003 + number))
            program.run()
            refused, compared = refused + program.refused, compared + program.compared
        print(f"{OPTIONS.programs} programs: {compared} tensors compared, {refused} calls refused")
        self.assertGreater(compared, 20 * OPTIONS.programs)
        self.assertGreater(compared, refused)


class Program:
    """Views of one base tensor, here and on the workers; every operator on both sides, then all tensors compared. A call
    that is refused there is not made here, and must have changed nothing."""

    def __init__(self, session, rng):
        self.session, self.rng = session, rng
        shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3))]
        base = torch.arange(1.0, 1 + np.prod(shape)).view(shape)
        placement = rng.choice([Replicate(), Shard(rng.randrange(len(shape)))])
        self.pairs = [(base, session.put(base, [placement]))]
        self.steps = [f"put {shape} {placement}"]
        self.refused = self.compared = 0

    def run(self):
        for _ in range(12):
            self.step()
            for local, remote in self.pairs:
                got = value(remote)
                assert got.shape == local.shape and torch.equal(got, local), \
                    "\n".join(self.steps) + f"\ngot {got}\nwanted {local}"
                self.compared += 1

    def step(self):
        rng = self.rng
        local, remote = rng.choice(self.pairs)
        name, arguments = rng.choice([self.view, self.view, self.change, self.arithmetic])(local)
        operator = getattr(torch.ops.aten, name.split(".")[0])
        operator = getattr(operator, name.split(".")[1] if "." in name else "default")
        self.steps.append(f"aten::{name} of {list(local.shape)} {[a for a in arguments if not isinstance(a, tuple)]}")
        before = [(each.untyped_storage(), each.untyped_storage().clone()) for each, _ in self.pairs]
        try:
            here = operator(local, *(a[0] if isinstance(a, tuple) else a for a in arguments))
        except RuntimeError:
            return  # not a call that PyTorch takes
        try:
            result = self.session.call(f"aten::{name}", remote,
                                       *(a[1] if isinstance(a, tuple) else a for a in arguments))
        except dtorch.Error as error:
            self.refused += 1
            self.steps.append(f"  refused: {error}")
            for storage, bytes in before:
                storage.copy_(bytes)
            return
        self.pairs.append((here, result))
        self.pairs = self.pairs[-8:]

    def view(self, local):
        rng, dims = self.rng, local.dim()
        choices = [("unsqueeze", (rng.randint(0, dims),)), ("alias", ())]
        if dims and local.numel():
            dim = rng.randrange(dims)
            extent = local.shape[dim]
            start = rng.randrange(extent)
            choices += [("select.int", (dim, rng.randrange(extent))), ("squeeze.dim", (dim,)),
                        ("slice.Tensor", (dim, start, rng.randint(start, extent), rng.choice([1, 2]))),
                        ("transpose.int", (dim, rng.randrange(dims))), ("permute", (rng.sample(range(dims), dims),)),
                        ("view", ([local.numel()],)), ("unfold", (dim, 1, 1))]
        if dims == 2:
            choices.append(("t", ()))
        return rng.choice(choices)

    def change(self, local):
        rng = self.rng
        same = [pair for pair in self.pairs if pair[0].shape == local.shape]
        other = rng.choice(same)
        return rng.choice([("add_.Scalar", (1,)), ("mul_.Scalar", (2,)), ("zero_", ()), ("fill_.Scalar", (7,)),
                           ("neg_", ()), ("copy_", (other,)), ("add_.Tensor", (other,)), ("clamp_min_", (3,))])

    def arithmetic(self, local):
        other = self.rng.choice([pair for pair in self.pairs if pair[0].shape == local.shape])
        return self.rng.choice([("add.Tensor", (other,)), ("mul.Scalar", (3,)), ("clone", ()), ("neg", ()),
                                ("sub.Tensor", (other,))])


class Errors(WithDaemon):
    def test_sync_raises_at_the_call_and_a_refused_one_has_changed_nothing(self):
        session = self.connect(sync=True)
        x = session.put(torch.ones(4, 2), [Shard(0)])
        with self.assertRaisesRegex(dtorch.Error, "semantics_test.py") as raised:
            session.call("aten::mm", x, x)
        self.assertEqual(raised.exception.operator, "aten::mm")
        with self.assertRaises(dtorch.Error):
            session.call("aten::add_.Tensor", x, session.put(torch.ones(3)))
        self.same(x, torch.ones(4, 2))
        session.call("aten::add_.Scalar", x, 1)
        self.same(x, torch.full((4, 2), 2.0))

    def test_an_error_that_nobody_waits_for_is_told(self):  # ray#47140, ray#28296
        before = self.daemon.status()["unobserved_errors"]
        x = self.session.put(torch.ones(2, 3, dtype=torch.int64))
        bad = self.session.call("aten::_softmax", x, 1, False)
        self.same(self.session.put(torch.ones(2)), torch.ones(2))
        self.assertEqual(self.daemon.status()["unobserved_errors"], before + 1)
        logged = [line for line in pathlib.Path(self.daemon.log.name).read_text().splitlines() if "_softmax" in line]
        self.assertIn("aten::_softmax", logged[-1])
        with self.assertRaisesRegex(dtorch.Error, "aten::_softmax"):
            self.session.synchronize().wait(20)
        with self.assertRaisesRegex(dtorch.Error, "aten::_softmax"):
            self.session.call("aten::add.Tensor", bad, 1).get().wait(20)
        self.assertEqual(self.daemon.status()["unobserved_errors"], before)

    def test_hostile_values_of_indices_are_refused_before_a_kernel_sees_them(self):
        pids = [worker["pid"] for worker in self.daemon.status()["workers"]]
        put = self.session.put
        far = 1 << 40
        long = lambda *values: put(torch.tensor(values))
        pivots = lambda value: put(torch.full((3,), value, dtype=torch.int32))
        scores = put(torch.randn(2, 3).log_softmax(1))
        image, pooled = put(torch.randn(1, 1, 4, 4)), put(torch.ones(1, 1, 2, 2))
        calls = []
        for value in 0, 4, -4, 1 << 30, -(1 << 30):
            square, right = put(torch.eye(3)), put(torch.ones(3, 2))
            calls += [("lu_solve", (right, square, pivots(value))), ("linalg_lu_solve", (square, pivots(value), right)),
                      ("lu_unpack", (square, pivots(value)), 3), ("linalg_ldl_solve", (square, pivots(value), right))]
        for value in far, -far, 3:
            calls += [("nll_loss_backward", (put(torch.ones(2)), scores, long(value, 1), None, 0, -100,
                                             put(torch.tensor(2.0)))),
                      ("segment_reduce", (put(torch.ones(2)), "sum"), 1, {"offsets": long(0, value, 2)})]
        for value in far, -far, 16:
            calls += [("max_pool2d_with_indices_backward", (pooled, image, [2, 2], [2, 2], [0, 0], [1, 1], False,
                                                            put(torch.full((1, 1, 2, 2), value)))),
                      ("_embedding_bag", (put(torch.ones(5, 3)), long(0, 1, 2), long(0, value, 2)), 4)]
        for name, arguments, outputs, named in ((*call, *(1, {})[len(call) - 2:]) for call in calls):
            with self.subTest(name), self.assertRaisesRegex(dtorch.Error, "INVALID_ARGUMENT") as raised:
                out = self.session.call(f"aten::{name}", *arguments, outputs=outputs, **named)
                (out if outputs == 1 else out[0]).get().wait(20)
            self.assertEqual(raised.exception.operator, f"aten::{name}")
        self.same(self.session.call("aten::mm", put(torch.eye(3)), put(torch.ones(3, 2), [Replicate()])), torch.ones(3, 2))
        status = self.daemon.status()
        self.assertEqual([worker["pid"] for worker in status["workers"]], pids)
        self.assertEqual(status["health"], "healthy")


class Sessions(WithDaemon):
    """Several at once on the same workers."""

    workers = 3

    def test_their_operators_are_in_one_order_and_right(self):
        # Collectives of one session among those of others: ranks that did not agree on an order would hang, or add up
        # what does not belong together.
        meshes = [[0, 1, 2], [2, 0, 1], [1, 2], [0], [2, 1]]
        failures = []

        def work(number):
            try:
                rng = random.Random(1000 * OPTIONS.seed + number)
                session = dtorch.client.connect(self.daemon.socket, name=f"session {number}")
                mesh = session.mesh(meshes[number % len(meshes)])
                local = torch.arange(24.0, dtype=torch.float64).view(6, 4) + number
                remote = session.put(local, [Shard(0)], mesh=mesh)
                for step in range(60):
                    kind = rng.randrange(4)
                    if kind == 0:  # what the next steps read changes under their eyes
                        session.call("aten::add_.Scalar", remote, step)
                        local.add_(step)
                    elif kind == 1:
                        local = (local.T @ local).T @ local.T
                        local = (local / local.abs().max()).T.contiguous()
                        square = session.call("aten::mm", session.call("aten::t", remote), remote)
                        square = square.redistribute([Replicate()])
                        product = session.call("aten::mm", remote, square).redistribute([Replicate()])
                        most = session.call("aten::max", session.call("aten::abs", product))
                        remote = session.call("aten::div.Tensor", product, most).redistribute([Shard(0)])
                    elif kind == 2:
                        remote = remote.redistribute([Shard(1)]).redistribute([Shard(0)])
                    else:
                        total = session.call("aten::sum", remote)
                        torch.testing.assert_close(value(total), local.sum())
                torch.testing.assert_close(value(remote), local)
                session.close()
            except Exception as error:
                failures.append(f"session {number}: {error!r}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])


class RandomNumbers:
    def draws(self, session):
        """What a program of random operators draws, here and there."""
        x = torch.arange(12.0).view(3, 4)
        remote = session.put(x)
        yield session.call("aten::randn", [5, 3]), torch.randn(5, 3)
        yield session.call("aten::rand", [7], placements=[Shard(0)]), torch.rand(7)
        yield session.call("aten::randint", 100, [2, 6], placements=[Shard(1)]), torch.randint(100, (2, 6))
        yield session.call("aten::randperm", 9), torch.randperm(9)
        for got, want in zip(session.call("aten::native_dropout", remote, 0.4, True, outputs=2),
                             torch.native_dropout(x, 0.4, True)):
            yield got, want
        yield session.call("aten::multinomial", remote, 5, True), torch.multinomial(x, 5, True)
        yield session.call("aten::normal_", remote, 1.0, 2.0), x.normal_(1.0, 2.0)
        yield session.call("aten::bernoulli", session.put(torch.full((4, 4), 0.3))), torch.bernoulli(
            torch.full((4, 4), 0.3))

    def test_values_are_pytorchs_whatever_the_placement(self):
        for seed in 0, 7, 2 ** 40:
            torch.manual_seed(seed)
            self.session.manual_seed(seed)
            for got, want in self.draws(self.session):
                self.assertTrue(torch.equal(value(got), want), f"{value(got)}\n{want}")
                for rank in range(self.workers):  # replicas are equal, too
                    if got.describe().wait(20).placements == [Replicate()]:
                        self.assertTrue(torch.equal(torch.from_dlpack(got.get_local(rank).wait(20)), want))

    def test_state_is_read_and_set_and_each_session_has_its_own(self):
        torch.manual_seed(3)
        self.session.manual_seed(3)
        state = self.session.get_rng_state()
        self.assertTrue(torch.equal(value(state), torch.get_rng_state()))
        first = value(self.session.call("aten::randn", [4]))
        other = self.connect()
        other.manual_seed(99)
        other.call("aten::randn", [100]).get().wait(20)
        self.session.set_rng_state(state)
        self.assertTrue(torch.equal(value(self.session.call("aten::randn", [4])), first))
        self.assertTrue(torch.equal(first, torch.randn(4)))

    def test_a_fresh_session_draws_as_a_fresh_process(self):
        generator = torch.Generator()
        generator.manual_seed(torch.Generator().initial_seed())
        self.assertTrue(torch.equal(value(self.session.call("aten::randn", [3])), torch.randn(3, generator=generator)))


class RandomOnOne(RandomNumbers, WithDaemon):
    workers = 1


class RandomOnThree(RandomNumbers, WithDaemon):
    workers = 3


class RandomInThreads(RandomNumbers, WithDaemon):
    flags = ("--workers.mode", "thread")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
