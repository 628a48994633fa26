"""The tools of docs/numerics.md on a real daemon: memory statistics, ranges, validation, the tensor checker; against NumPy
and PyTorch in this process. Argument: the folder of the programs."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import torch

import dtorch
from daemon import LIMIT, Daemon
from dtorch import Partial, Replicate, Shard

BIN = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).parents[2]
MIB = 1 << 20


class WithDaemon(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN, *cls.flags)
        cls.addClassCleanup(cls.daemon.stop)

    def connect(self, **options):
        session = dtorch.client.connect(self.daemon.socket, name="numerics_test", **options)
        self.addCleanup(session.close)
        return session

    def log(self):
        return pathlib.Path(self.daemon.log.name).read_text()


class Memory(WithDaemon):
    flags = ("--workers.count", "3")

    def test_each_rank_tells_of_its_own(self):
        session = self.connect()
        before = session.memory_stats(timeout=LIMIT)
        self.assertEqual(len(before), 3)
        x = session.put(np.zeros(12 * MIB, np.uint8), [Shard(0)])
        pair = session.mesh([2, 0])
        y = session.put(np.zeros(6 * MIB, np.uint8), mesh=pair)
        after = session.memory_stats(timeout=LIMIT)
        grown = [b["allocated_bytes"] - a["allocated_bytes"] for a, b in zip(before, after)]
        for rank, expected in enumerate([10 * MIB, 4 * MIB, 10 * MIB]):
            self.assertTrue(expected <= grown[rank] < expected + MIB, grown)
            self.assertGreaterEqual(after[rank]["reserved_bytes"], after[rank]["allocated_bytes"])
            self.assertGreater(after[rank]["blocks_made"], after[rank]["blocks"])
        # A mesh's rows are in its order, in one dimension or more.
        by_mesh = session.memory_stats(session.mesh([2, 0], (2, 1)), LIMIT)
        self.assertEqual([row["allocated_bytes"] // MIB for row in by_mesh],
                         [after[rank]["allocated_bytes"] // MIB for rank in (2, 0)])
        del x, y
        freed = session.memory_stats(timeout=LIMIT)
        for rank in range(3):
            self.assertLess(freed[rank]["allocated_bytes"], before[rank]["allocated_bytes"] + MIB)

    def test_the_peak_holds_temporaries_until_it_is_reset(self):
        session = self.connect()
        session.reset_peak_memory()
        start = session.memory_stats(timeout=LIMIT)[0]
        self.assertLess(start["peak_allocated_bytes"] - start["allocated_bytes"], MIB)
        x = session.put(np.ones(4 * MIB, np.float32))  # 16 MiB
        session.call("aten::exp", session.call("aten::exp", x)).describe().wait(LIMIT)
        peak = session.memory_stats(timeout=LIMIT)[0]
        self.assertGreaterEqual(peak["peak_allocated_bytes"], start["allocated_bytes"] + 32 * MIB)
        self.assertLess(peak["allocated_bytes"], start["allocated_bytes"] + 17 * MIB)
        session.reset_peak_memory()
        reset = session.memory_stats(timeout=LIMIT)[0]
        self.assertLess(reset["peak_allocated_bytes"], start["allocated_bytes"] + 17 * MIB)

    def test_kept_memory_goes_back(self):
        session = self.connect()
        session.put(np.ones(64 * MIB, np.uint8)).get_local(0).wait(LIMIT)
        idle = lambda stats: stats["reserved_bytes"] - stats["allocated_bytes"]
        self.assertGreaterEqual(idle(session.memory_stats(timeout=LIMIT)[0]), 32 * MIB)
        session.empty_cache()
        self.assertLess(idle(session.memory_stats(timeout=LIMIT)[0]), 4 * MIB)

    def test_status_shows_now_and_peak(self):
        session = self.connect()
        x = session.put(np.ones(20 * MIB, np.uint8))
        x.describe().wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        while True:  # with the next heartbeat
            printed = subprocess.run([BIN / "dtorchctl", "--socket", self.daemon.socket, "--json", "workers"], check=True,
                                     capture_output=True, text=True).stdout
            worker = json.loads(printed)[1]
            if worker["allocated_bytes"] >= 20 * MIB or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.assertGreaterEqual(worker["allocated_bytes"], 20 * MIB)
        self.assertGreaterEqual(worker["peak_allocated_bytes"], worker["allocated_bytes"])

    def test_placements_make_no_sense(self):
        with self.assertRaisesRegex(dtorch.Error, "give no placements"):
            self.connect().call("dtorch::memory_stats", placements=[Replicate()]).get().wait(LIMIT)


class InThreads(WithDaemon):
    flags = ("--workers.mode", "thread")

    def test_memory_that_is_not_counted_is_not_told(self):
        session = self.connect()
        with self.assertRaisesRegex(dtorch.Error, "set workers.mode to process"):
            session.memory_stats(timeout=LIMIT)
        with session.range("step"):
            session.call("aten::ones", [4])
        session.synchronize().wait(LIMIT)


class Ranges(WithDaemon):
    flags = ("--log.level", "debug")

    def test_ranges_are_in_the_log_of_each_worker_with_their_time(self):
        session = self.connect()
        with session.range("step 1"):
            with session.range("forward"):
                x = session.call("aten::ones", [1000, 1000])
                session.call("aten::mm", x, x)
            session.mark("loss")
        session.range_push("only on 1", session.mesh([1]))
        session.range_pop(session.mesh([1]))
        session.synchronize().wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        # Each worker's lines come through a pipe of its own.
        while ((self.log().count("only on 1 took"), self.log().count("range step 1 took")) != (1, 2)
               and time.monotonic() < deadline):
            time.sleep(0.05)
        log = self.log()
        for rank in 0, 1:
            of = rf"worker {rank}: debug worker {rank}: session {session.id}: "
            lines = re.findall(of + "(.*)", log)
            shown = [re.sub(r"[0-9.]+ ms", "# ms", line) for line in lines][:5]
            self.assertEqual(shown, ["range step 1 begins", "range step 1/forward begins",
                                     "range step 1/forward took # ms", "mark loss", "range step 1 took # ms"])
            times = {name: float(ms) for name, ms in re.findall(of + r"range (.*) took ([0-9.]+) ms", log)}
            self.assertGreater(times["step 1/forward"], 0.1)  # two billion floating-point operations
            self.assertGreaterEqual(times["step 1"], times["step 1/forward"])
        self.assertEqual(log.count("only on 1 begins"), 1)

    def test_an_end_without_a_beginning_is_an_error(self):
        session = self.connect()
        session.range_pop()
        with self.assertRaisesRegex(dtorch.Error, "no range is open in this session"):
            session.synchronize().wait(LIMIT)


class Validation(WithDaemon):
    def test_a_session_that_asks_for_it_hears_where_a_value_began(self):
        plain, checked = self.connect(), self.connect(validate=True)
        array = np.array([[1.0, 4.0], [0.0, 2.0], [3.0, 5.0]], np.float32)
        for session in plain, checked:
            x = session.put(array, [Shard(0)])
            y = session.call("aten::mul.Scalar", session.call("aten::log", x), 2.0)
            if session is plain:
                np.testing.assert_array_equal(y.numpy(LIMIT), np.log(array, where=array > 0, out=np.full_like(array, -np.inf)) * 2)
                continue
            with self.assertRaises(dtorch.Error) as caught:
                y.get().wait(LIMIT)
            error = caught.exception
            self.assertEqual((error.code, error.operator, error.rank), ("OUT_OF_RANGE", "aten::log", 0))
            self.assertRegex(error.site, r"numerics_test.py:\d+")
            self.assertIn("output 0, float32[2, 2] here, has -inf at [1, 0]", str(error))
        np.testing.assert_array_equal(checked.call("aten::exp", checked.put(array)).numpy(LIMIT),
                                      torch.from_numpy(array).exp().numpy())

    def test_programs_without_a_fault_run_as_before(self):
        session = self.connect(validate=True, sync=True)
        torch.manual_seed(3)
        x, w = torch.randn(8, 6), torch.randn(6, 5)
        a, b = session.put(x, [Shard(0)]), session.put(w)
        h = session.call("aten::mm", a, b)
        view = session.call("aten::slice.Tensor", h, 1, 1, 4)
        session.call("aten::mul_.Tensor", view, view)
        loss = session.call("aten::sum", session.call("aten::relu", h))
        want = x @ w
        want[:, 1:4].mul_(want[:, 1:4].clone())
        np.testing.assert_allclose(loss.numpy(LIMIT), want.relu().sum().numpy(), rtol=1e-5)
        mask = session.call("aten::full", [4, 4], float("-inf"))
        np.testing.assert_array_equal(session.call("aten::softmax.int", session.call("aten::triu", mask, 1), 1).numpy(LIMIT)[0],
                                      [1, 0, 0, 0])


class ValidationForAll(WithDaemon):
    flags = ("--session.validate",)

    def test_the_configuration_can_ask_for_all_sessions(self):
        session = self.connect()
        zero = session.put(np.zeros(3))
        with self.assertRaisesRegex(dtorch.Error, "validation: output 0, float64.3. here, has NaN at .0."):
            session.call("aten::div.Tensor", zero, zero).get().wait(LIMIT)


class Checker(WithDaemon):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtorch-test-checker-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_the_example_of_the_document(self):
        page = (ROOT / "docs/numerics.md").read_text()
        example, printed = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "text"))
        environment = os.environ | {"DTORCH_SOCKET": self.daemon.socket}
        for run in "record", "compare":
            result = subprocess.run([sys.executable, "-c", example, run], env=environment, capture_output=True, text=True,
                                    cwd=self.folder)
            self.assertEqual(result.stderr, "")
        self.assertEqual(result.stdout, printed)

    def test_dtorch_tensors_are_compared_on_any_placement(self):
        session = self.connect()
        array = np.arange(12.0).reshape(3, 4)
        checker = dtorch.TensorChecker()
        checker.record("x", session.put(array, [Shard(0)]))
        for placement in Replicate(), Shard(1), Partial():
            self.assertTrue(checker.check("x", session.put(array, [placement])))
        changed = array.copy()
        changed[1, 2] += 0.25
        result = checker.check("x", session.put(changed, [Shard(1)]))
        self.assertFalse(result)
        self.assertEqual((result.mismatches, result.first_mismatch, result.actual, result.expected,
                          result.greatest_difference, result.greatest_at), (1, (1, 2), 6.25, 6, 0.25, (1, 2)))
        self.assertTrue(checker.check("x", session.put(changed), atol=0.25))
        with self.assertRaisesRegex(dtorch.Error, "aten::log"):
            checker.check("x", session.call("aten::log", session.put([1]), 3))

    def test_closeness_is_numpys(self):
        random = np.random.default_rng(11)
        checker = dtorch.TensorChecker()
        special = np.array([0, np.nan, np.inf, -np.inf, 1, 1e-9])
        for case in range(60):
            expected = np.concatenate([random.standard_normal(50), random.choice(special, 20)])
            actual = np.where(random.random(70) < 0.3, expected, expected * (1 + random.standard_normal(70) * 1e-3))
            rtol, atol = random.choice([0, 1e-3, 1e-2]), random.choice([0, 1e-8, 1e-3])
            equal_nan = bool(random.integers(2))
            with np.errstate(invalid="ignore"):
                close = np.isclose(actual, expected, rtol, atol, equal_nan)
                difference = np.abs(actual - expected)
            checker.record(str(case), expected)
            result = checker.check(str(case), actual, rtol, atol, equal_nan)
            self.assertEqual(result.mismatches, int((~close).sum()))
            self.assertEqual(bool(result), bool(close.all()))
            if not result:
                self.assertEqual(result.first_mismatch, (int(np.argmin(close)),))
            one_nan = np.isnan(actual) != np.isnan(expected)
            unlike = (np.isinf(actual) | np.isinf(expected)) & (actual != expected)
            greatest = np.inf if (one_nan | unlike).any() else np.nanmax(difference)
            self.assertAlmostEqual(result.greatest_difference, greatest)

    def test_files_are_numpys(self):
        for dtype in ("bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"):
            for shape in (), (1,), (0, 2), (2, 3), (2, 1, 4):
                array = (np.random.default_rng(5).standard_normal(shape) * 50).astype(dtype)
                tag = f"{dtype}-{len(shape)}"
                dtorch.TensorChecker(self.folder).record(tag, array)
                loaded = np.load(self.folder / f"{tag}.npy")
                np.testing.assert_array_equal(loaded, array)
                self.assertEqual(loaded.dtype, array.dtype)
                np.save(self.folder / f"{tag}.npy", np.asfortranarray(array).reshape(shape, order="F"))
                self.assertTrue(dtorch.TensorChecker(self.folder).check(tag, array))

    def test_numbers_that_numpy_has_not(self):
        session = self.connect()
        for dtype in (torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
            bits = torch.arange(256, dtype=torch.uint8)
            tensor = (torch.arange(65536, dtype=torch.int32).to(torch.uint16) if dtype == torch.bfloat16 else bits).view(dtype)
            tag = str(dtype)
            if dtype == torch.bfloat16:
                checker = dtorch.TensorChecker(self.folder)
                checker.record(tag, session.put(tensor))
                same = dtorch.TensorChecker(self.folder).check(tag, session.put(tensor), equal_nan=True)
                self.assertTrue(same, same)
            else:
                value = session.call("aten::view.dtype", session.put(bits), dtype)
                dtorch.TensorChecker(self.folder).record(tag, value)
                self.assertTrue(dtorch.TensorChecker(self.folder).check(tag, value, equal_nan=True))
            np.testing.assert_array_equal(np.load(self.folder / f"{tag}.npy"), tensor.float().numpy())

    def test_files_of_pytorch_are_references(self):
        torch.manual_seed(0)
        x, w = torch.randn(6, 4), torch.randn(4, 3)
        np.save(self.folder / "product.npy", (x @ w).numpy())
        session = self.connect()
        product = session.call("aten::mm", session.put(x, [Shard(1)]), session.put(w, [Shard(0)]))  # Partial
        checker = dtorch.TensorChecker(self.folder, dumps=self.folder / "dumps")
        result = checker.check("product", product, rtol=1e-5, atol=1e-6)
        self.assertTrue(result, result)
        self.assertFalse(checker.check("product", session.call("aten::add.Scalar", product.redistribute([Replicate()]), 1)))
        np.testing.assert_allclose(np.load(self.folder / "dumps/product.npy"), (x @ w + 1).numpy(), rtol=1e-5)
        np.testing.assert_array_equal(np.load(self.folder / "dumps/product.expected.npy"), (x @ w).numpy())

    def test_what_is_wrong_is_told(self):
        checker = dtorch.TensorChecker(self.folder)
        with self.assertRaisesRegex(dtorch.Error, "NOT_FOUND"):
            checker.check("nothing", [1.0])
        with self.assertRaisesRegex(dtorch.Error, "makes no file name"):
            checker.record("../up", [1.0])
        checker.record("x", [1.0, 2.0])
        with self.assertRaisesRegex(dtorch.Error, "ALREADY_EXISTS"):
            checker.record("x", [1.0, 2.0])
        self.assertEqual(checker.check("x", [1.0]).problem, "it is float64[1], expected float64[2]")
        self.assertEqual(repr(checker.check("x", [1.0, 2.0])), "Comparison(0 of 2 elements differ)")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
