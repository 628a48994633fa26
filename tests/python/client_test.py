"""The Python package on a real daemon, against NumPy and PyTorch in this process. Argument: the folder of the programs."""
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy as np
import torch

import dtorch
from daemon import LIMIT, Daemon
from dtorch import Partial, Replicate, Shard

BIN = pathlib.Path(sys.argv[1]).resolve()


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN)
        cls.addClassCleanup(cls.daemon.stop)

    def setUp(self):
        self.session = dtorch.client.connect(self.daemon.socket, name="client_test")
        self.addCleanup(self.session.close)

    def test_the_example_of_the_readme(self):
        readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
        example, = [block.split("```")[0] for block in readme.split("```python\n")[1:] if "dtorch.client.connect" in block]
        environment = os.environ | {"DTORCH_SOCKET": self.daemon.socket}
        result = subprocess.run([sys.executable, "-c", example], env=environment, capture_output=True, text=True)
        self.assertEqual((result.stdout, result.stderr), ("[[ 7. 10.]\n [15. 22.]]\n", ""))

    def test_a_value_comes_back_on_any_placement(self):
        array = np.arange(35, dtype=np.float32).reshape(5, 7)
        for placement in Replicate(), Shard(0), Shard(1), Shard(-1), Partial():
            x = self.session.put(array, [placement])
            np.testing.assert_array_equal(x.numpy(LIMIT), array)
        info = x.describe().wait(LIMIT)
        self.assertEqual((info.shape, info.dtype, info.placements), ((5, 7), "float32", [Partial()]))
        self.assertEqual(self.session.put(array, [Shard(0)]).get_local(0).wait(LIMIT).shape, (3, 7))

    def test_numbers_of_a_list_keep_their_types(self):
        big = 2 ** 53 + 1
        x, y = self.session.put(np.array([1])), self.session.put(np.array([1.0]))
        made = self.session.call("aten::_foreach_mul.ScalarList", [x, y], [big, 0.5], outputs=2)
        self.assertEqual([each.numpy(LIMIT).tolist() for each in made], [[big], [0.5]])
        self.session.call("aten::_foreach_add_.ScalarList", [x, y], [big, 0.5], outputs=0)
        self.assertEqual((x.numpy(LIMIT).tolist(), y.numpy(LIMIT).tolist()), ([big + 1], [1.5]))
        for numbers in [2, 3], [0.5, 2.0], [2, 0.5]:
            parts = [self.session.put(np.arange(6.0), [placement]) for placement in (Shard(0), Replicate())]
            made = self.session.call("aten::_foreach_mul.ScalarList", parts, numbers, outputs=2)
            for part, number in zip(made, numbers):
                np.testing.assert_array_equal(part.numpy(LIMIT), np.arange(6.0) * number)
        image = torch.arange(12.0).reshape(1, 1, 3, 4)
        grown = self.session.call("aten::upsample_nearest2d.vec", self.session.put(image), None, [2, 1.5])
        self.assertTrue(torch.equal(grown.get().wait(LIMIT).torch(), torch.ops.aten.upsample_nearest2d.vec(image, None, [2, 1.5])))

    def test_what_gives_its_input_back_shares_memory_on_any_placement(self):
        for placement in Replicate(), Shard(0), Shard(1):
            for name, *arguments in (("aten::dropout", 0.5, False), ("aten::dropout", 0.0, True), ("aten::dropout", 0, True),
                                     ("aten::feature_dropout", 0.5, False)):
                with self.subTest((placement, name, arguments)):
                    x = self.session.put(np.ones((4, 3), np.float32), [placement])
                    self.session.call("aten::mul_.Scalar", self.session.call(name, x, *arguments), -3.0)
                    np.testing.assert_array_equal(x.numpy(LIMIT), np.full((4, 3), -3.0))

    def test_a_write_to_a_refused_view_is_missed_by_nobody(self):
        for name, *arguments in (("aten::sum_to_size", [4]), ("aten::slice.Tensor", 0, 1, 3), ("aten::atleast_1d",)):
            with self.subTest(name):
                x = self.session.put(np.ones(4, np.float32), [Shard(0)])
                view = self.session.call(name, x, *arguments)
                self.session.call("aten::mul_.Scalar", view, -3.0)
                try:
                    want = torch.ones(4)
                    getattr(torch.ops.aten, name[6:].split(".")[0])(want, *arguments).mul_(-3)
                    np.testing.assert_array_equal(x.numpy(LIMIT), want)
                except dtorch.client.Error as error:
                    self.assertIn("rule", str(error))
        # Of what is computed anew, an input is not lost, though the schema has it that it may be shared.
        for name, *arguments in (("aten::flip", [1]), ("aten::reshape", [12])):
            with self.subTest(name):
                x = self.session.call("aten::t", self.session.put(np.ones((3, 4), np.float32), [Shard(0)]))
                made = self.session.call(name, x, *arguments)
                self.session.call("aten::mul_.Scalar", made, -3.0)
                with self.assertRaisesRegex(dtorch.Error, name):
                    made.numpy(LIMIT)
                np.testing.assert_array_equal(x.numpy(LIMIT), np.ones((4, 3)))

    def test_each_call_of_a_synchronous_session_raises_its_own_error(self):
        with dtorch.client.connect(self.daemon.socket, sync=True) as session:
            x = session.put(np.zeros(3), [Shard(0)])
            with self.assertRaisesRegex(dtorch.Error, "out of range"):
                session.put(np.ones(3), [Shard(5)])
            with self.assertRaisesRegex(dtorch.Error, "out of range"):
                x.redistribute([Shard(5)])
            with self.assertRaisesRegex(dtorch.Error, "torch.chunk"):
                session.put_shards([np.ones(1), np.ones(2)], [3], [Shard(0)])
            session.call("aten::add_.Scalar", x, 1.0)
            np.testing.assert_array_equal(x.numpy(LIMIT), np.ones(3))

    def test_texts_with_a_nul_and_large_seeds(self):
        x = self.session.put(np.ones(3))
        with self.assertRaisesRegex(ValueError, "NUL"):
            self.session.call("aten::neg\0.junk", x)
        with self.assertRaisesRegex(ValueError, "NUL"):
            x.redistribute([Partial("sum)\0x")])
        for seed in 2 ** 63, 2 ** 64 - 1, -1:
            self.session.manual_seed(seed)
            torch.manual_seed(seed)
            drawn = self.session.call("aten::rand", [4]).get().wait(LIMIT).torch()
            self.assertTrue(torch.equal(drawn, torch.rand(4)))

    def test_every_dtype_crosses_both_ways(self):
        for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                      torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
            value = (torch.arange(6).reshape(2, 3) % 2 == 0) if dtype is torch.bool else torch.arange(6).reshape(2, 3).to(dtype)
            x = self.session.put(value, [Shard(1)])
            back = x.get().wait(LIMIT)
            self.assertEqual("torch." + back.dtype, str(dtype))
            self.assertTrue(torch.equal(back.torch(), value), dtype)
            self.assertTrue(torch.equal(torch.from_dlpack(back), value), dtype)
        for dtype in torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz:
            value = torch.randn(2, 3).to(dtype)
            back = self.session.put(value, [Shard(1)]).get().wait(LIMIT)
            self.assertEqual("torch." + back.dtype, str(dtype))
            again = self.session.put(back).get().wait(LIMIT)
            for same in back.torch(), torch.from_dlpack(back), again.torch():
                self.assertEqual(same.dtype, dtype)
                self.assertTrue(torch.equal(same.view(torch.uint8), value.view(torch.uint8)), dtype)

    def test_memory_of_every_form(self):
        base = np.arange(24, dtype=np.int64).reshape(4, 6)
        for array in (base.T, base[::2, 1::2], base[::-1], base[:0], np.int64(7), base[1:2, 0], np.broadcast_to(base, (3, 4, 6)),
                      base.astype(">i8")):
            np.testing.assert_array_equal(self.session.put(array).numpy(LIMIT), array)
        for tensor in (torch.tensor(3.5), torch.arange(24.0).reshape(4, 6).t(), torch.empty(0, 3),
                       torch.ones(2, requires_grad=True)):
            np.testing.assert_array_equal(self.session.put(tensor).numpy(LIMIT), tensor.detach().numpy())
        np.testing.assert_array_equal(self.session.put([[1, 2], [3, 4]]).numpy(LIMIT), [[1, 2], [3, 4]])

    def test_values_outlive_what_made_them(self):
        value = self.session.put(np.arange(1000.0)).get().wait(LIMIT)
        array, tensor = value.numpy(), torch.from_dlpack(value)
        self.assertFalse(array.flags.writeable)
        unused = value.__dlpack__()
        del value, unused
        gc.collect()
        np.testing.assert_array_equal(array, np.arange(1000.0))
        self.assertTrue(torch.equal(tensor, torch.arange(1000.0, dtype=torch.float64)))

    def test_shards_are_summands_of_a_partial(self):
        parts = [np.ones((2, 2)), 2 * np.ones((2, 2))]
        x = self.session.put_shards(parts, (2, 2), [Partial()])
        np.testing.assert_array_equal(x.numpy(LIMIT), 3 * np.ones((2, 2)))
        np.testing.assert_array_equal(x.redistribute([Shard(0)]).get_local(1).wait(LIMIT).numpy(), [[3, 3]])

    def test_arguments_of_every_kind(self):
        call = self.session.call
        x = self.session.put(np.arange(1, 13, dtype=np.float64).reshape(3, 4))
        local = torch.arange(1, 13, dtype=torch.float64).reshape(3, 4)
        same = lambda result, expected: self.assertTrue(torch.equal(result.get().wait(LIMIT).torch(), expected))
        same(call("aten::add.Tensor", x, x, alpha=2), torch.add(local, local, alpha=2))
        same(call("aten::mul.Scalar", x, 1.5), local * 1.5)
        same(call("aten::mul.Scalar", x, np.float32(1.5)), local * 1.5)
        same(call("aten::sum.dim_IntList", x, [0, -1], keepdim=True, dtype=torch.float32),
             local.sum([0, -1], keepdim=True, dtype=torch.float32))
        same(call("aten::sum", x, dtype=np.float32), local.sum(dtype=torch.float32))
        same(call("aten::cat", [x, x], 1), torch.cat([local, local], 1))
        same(call("aten::div.Tensor_mode", x, x, rounding_mode="floor"), torch.div(local, local, rounding_mode="floor"))
        same(call("aten::clamp", x, None, 5), torch.clamp(local, None, 5))
        same(call("aten::index.Tensor", x, [None, self.session.put(np.array([3, 0]))]), local[:, [3, 0]])
        same(call("aten::full", (2, 2), 2 ** 53 + 1, dtype=torch.int64), torch.full((2, 2), 2 ** 53 + 1))
        same(call("aten::ones", torch.Size([2]), device=torch.device("cpu"), layout=torch.strided), torch.ones(2))
        same(call("aten::clone", x, memory_format=torch.contiguous_format), local)
        same(call("aten::mul.Scalar", x, 1 + 2j), local * (1 + 2j))
        values, indices = call("aten::max.dim", x, 0, outputs=2)
        same(values, local.max(0).values)
        same(indices, local.max(0).indices)
        sharded = call("aten::zeros", (5, 2), placements=[Shard(0)], mesh=self.session.mesh([1, 0]))
        self.assertEqual(sharded.get_local(0).wait(LIMIT).shape, (2, 2))

    def test_errors_tell_operator_and_line(self):
        x = self.session.put(np.ones((2, 3)))
        bad = self.session.call("aten::mm", x, x)
        with self.assertRaises(dtorch.Error) as raised:
            self.session.call("aten::add.Tensor", bad, bad).numpy(LIMIT)
        self.assertEqual(raised.exception.operator, "aten::mm")
        self.assertEqual(raised.exception.code, "INVALID_ARGUMENT")
        self.assertIn("client_test.py:", raised.exception.site)
        with self.assertRaises(dtorch.Error):
            self.session.synchronize().wait(LIMIT) or self.session.call("aten::no", x).numpy(LIMIT)
        for argument in object(), 1 << 63, {1: 2}:
            with self.assertRaises((TypeError, OverflowError)):
                self.session.call("aten::add.Scalar", x, argument)
        with self.assertRaises(TypeError):
            self.session.put(np.array(["text"]))
        with self.assertRaisesRegex(dtorch.Error, "S\\(x\\)|placement"):
            self.session.call("aten::ones", (2,), placements=["S(x)"])
        with self.assertRaises(dtorch.Error):
            dtorch.client.connect("/nowhere/dtorchd.sock", timeout=1)

    def test_a_closed_session_says_so(self):
        session = dtorch.client.connect(self.daemon.socket)
        x = session.put(1.0)
        other = self.session.put(2.0)
        session.close()
        with self.assertRaisesRegex(dtorch.Error, "closed"):
            session.put(1.0)
        with self.assertRaises(dtorch.Error):
            x.numpy(LIMIT)
        with self.assertRaises(ValueError):
            self.session.put(1.0, mesh=session.world)
        self.assertEqual(other.get().wait(LIMIT).item(), 2.0)

    def test_none_is_no_tensor_of_a_list_of_tensors(self):
        x = self.session.put(torch.ones(2, 2))
        for name in "aten::cat", "aten::stack", "aten::_foreach_neg":
            with self.assertRaises(dtorch.OperatorFailed) as caught:
                outputs = 2 if "foreach" in name else 1
                made = self.session.call(name, [x, None], outputs=outputs)
                (made if outputs == 1 else made[0]).get().wait(20)
            self.assertEqual(caught.exception.code, "INVALID_ARGUMENT")
            self.assertIn("holds None", str(caught.exception))
        indexed = self.session.call("aten::index.Tensor", x, [None, self.session.put(torch.tensor([1]))])
        self.assertEqual(tuple(indexed.get().wait(20).shape), (2, 1))

    def test_time_limits_of_every_form(self):
        x = self.session.put(torch.ones(2))
        for unlimited in None, 0, float("inf"), 1e9, 30:
            with self.session.limited(unlimited):
                self.assertEqual(self.session.call("aten::sum", x).get().wait(20).item(), 2)
        self.assertEqual(self.session.time_limit, 0)
        with self.assertRaises(ValueError), self.session.limited(float("nan")):
            pass
        big = self.session.put(torch.ones(800, 800))
        for over in -0.5, 1e-9:
            busy = self.session.call("aten::mm", big, self.session.call("aten::mm", big, big))
            with self.session.limited(over):
                late = [self.session.call("aten::mm", busy, busy), busy.redistribute([dtorch.Shard(0)])]
            for tensor in late:
                with self.assertRaises(dtorch.DeadlineExceeded):
                    tensor.get().wait(20)
            busy.get().wait(20)

    def test_cancel_ends_what_was_called(self):
        big = self.session.put(torch.ones(800, 800))
        end = big
        for _ in range(100):
            end = self.session.call("aten::mm", end, big)
        value = end.get()
        self.session.cancel()
        with self.assertRaises(dtorch.Cancelled):
            value.wait(20)
        self.assertEqual(self.session.call("aten::sum", self.session.put(torch.ones(3))).get().wait(20).item(), 3)
        self.session.await_workers().wait(20)

    def test_a_wait_ends_in_time_and_by_a_signal(self):
        y = x = self.session.call("aten::ones", (700, 700))
        for _ in range(200):
            y = self.session.call("aten::mm", y, x)
        future = y.get()
        for timeout in 0.05, 0, -5:
            with self.assertRaises(TimeoutError):
                future.wait(timeout)
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            future.wait(60)
        self.assertLess(time.monotonic() - start, 5)

    def test_many_threads_share_a_session(self):
        results = [None] * 4

        def work(index):
            x = self.session.put(np.full((3, 3), float(index)), [Shard(0)])
            for _ in range(200):
                x = self.session.call("aten::add.Scalar", x, 1)
            results[index] = x.numpy(LIMIT)[0, 0]

        threads = [threading.Thread(target=work, args=[index]) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [200.0, 201.0, 202.0, 203.0])

    def test_calls_are_fast_enough_for_sweeps(self):
        x = self.session.put(np.ones((8, 8)))
        for _ in range(200):
            self.session.call("aten::add.Tensor", x, x)
        start = time.perf_counter()
        for _ in range(5000):
            y = self.session.call("aten::add.Tensor", x, x)
        y.numpy(LIMIT)
        micros = (time.perf_counter() - start) / 5000 * 1e6
        print(f"{micros:.1f} us a call")
        self.assertLess(micros, 500)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
