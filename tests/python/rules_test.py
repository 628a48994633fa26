"""Placement rules as a client meets them: operator libraries, declared rules, implicit redistribution, explain(), lists of
tensors. Arguments: the folder of the programs, an operator library (examples/operator_library)."""
import pathlib
import sys
import unittest

import numpy as np
import torch

import dtorch
from daemon import LIMIT, Daemon
from dtorch import Partial, Replicate, Shard

BIN = pathlib.Path(sys.argv[1]).resolve()
LIBRARY = pathlib.Path(sys.argv[2]).resolve()
WORKERS = 3


class RulesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN, "--workers.count", str(WORKERS), "--operators.libraries", str(LIBRARY),
                            "--operators.deny", "aten::cosh,aten::_foreach_tan*")
        cls.addClassCleanup(cls.daemon.stop)

    def setUp(self):
        self.session = dtorch.client.connect(self.daemon.socket, name="rules_test")
        self.addCleanup(self.session.close)
        torch.manual_seed(20)

    def same(self, tensor, want, tolerance=1e-6):
        torch.testing.assert_close(torch.from_dlpack(tensor.get().wait(LIMIT)), want, rtol=tolerance, atol=tolerance)

    def test_operators_of_a_library_run_on_any_placement_that_their_rules_take(self):
        x, factors = torch.randn(7, 5), torch.randn(7)
        for placement in Replicate(), Shard(0):
            out = self.session.call("example::scale_rows", self.session.put(x, [placement]),
                                    self.session.put(factors, [placement]))
            self.same(out, x * factors[:, None])
            self.assertEqual(out.describe().wait(LIMIT).placements, [placement])
        out = self.session.call("example::scale_rows", self.session.put(x, [Shard(1)]), self.session.put(factors))
        self.same(out, x * factors[:, None])
        b = torch.randn(7, 4)
        out = self.session.call("example::row_products", self.session.put(x, [Shard(0)]),
                                self.session.put(b, [Shard(0)]))
        self.assertEqual(out.describe().wait(LIMIT).placements, [Partial()])
        self.same(out, x.T @ b, 1e-5)

    def test_a_rule_is_declared_over_the_api(self):
        x, b = self.session.put(torch.ones(6, 2), [Shard(0)]), self.session.put(torch.ones(6, 3), [Replicate()])
        with self.assertRaisesRegex(dtorch.Error, "no rule accepts"):
            self.session.call("example::row_products", x, b).get().wait(LIMIT)
        with self.assertRaisesRegex(dtorch.Error, "not a placement rule"):
            self.session.declare_rule("example::row_products", "m k")
        with self.assertRaisesRegex(dtorch.Error, "operator libraries only"):
            self.session.declare_rule("aten::mm", "m k, k n -> m n")
        with self.assertRaisesRegex(dtorch.Error, "one line"):
            self.session.declare_rule("example::row_products", "m k, m n -> k n\naten::histc: ... -> ...")
        with self.assertRaisesRegex(dtorch.Error, "no operator"):
            self.session.declare_rule("example::row_products.no_such", "m k, m n -> k n")
        with self.assertRaisesRegex(dtorch.Error, "3 terms for tensor arguments, example::row_products has 2"):
            self.session.declare_rule("example::row_products", "m k, m n, m -> k n")
        # One that names a result that there is not.
        self.session.declare_rule("example::row_products", "m k, m n -> k n; m:sum; sizes a=9")
        with self.assertRaisesRegex(dtorch.Error, "no result 9"):
            self.session.call("example::row_products", x, x).get().wait(LIMIT)
        # One that does not split m.
        self.session.declare_rule("example::row_products", "[m] k, [m] n -> k n; linear 0|1")
        b = self.session.put(torch.ones(6, 3), [Shard(0)])
        with self.assertRaisesRegex(dtorch.Error, "no rule accepts"):
            self.session.call("example::row_products", x, b).get().wait(LIMIT)
        self.session.declare_rule("example::row_products", "m k, m n -> k n; m:sum; linear 0|1")
        self.same(self.session.call("example::row_products", x, b), torch.full((2, 3), 6.0))

    def test_a_declared_rule_is_its_session_s_alone(self):
        x = torch.arange(12.0).view(6, 2)
        products = lambda session: session.call("example::row_products", *[session.put(x, [Shard(0)])] * 2)
        other = dtorch.client.connect(self.daemon.socket, name="other")
        self.addCleanup(other.close)
        self.same(products(self.session), x.T @ x)
        self.session.declare_rule("example::row_products", "[m] k, [m] n -> k n")
        for _ in range(2):  # what is planned for the one is not taken for the other
            with self.assertRaisesRegex(dtorch.Error, "no rule accepts"):
                products(self.session).get().wait(LIMIT)
            self.same(products(other), x.T @ x)
        self.assertNotIn(([Shard(0), Shard(0)], [Partial()]), self.explained(self.session, x).rows)
        self.assertIn(([Shard(0), Shard(0)], [Partial()]), self.explained(other, x).rows)
        # It ends with its session: whoever comes later, and gets the same memory, has the library's.
        self.session.close()
        for _ in range(5):
            later = dtorch.client.connect(self.daemon.socket, name="later")
            self.same(products(later), x.T @ x)
            later.declare_rule("example::row_products", "[m] k, [m] n -> k n")
            with self.assertRaisesRegex(dtorch.Error, "no rule accepts"):
                products(later).get().wait(LIMIT)
            later.close()

    def explained(self, session, x):
        return session.explain("example::row_products", *[session.put(x, [Shard(0)])] * 2, timeout=LIMIT)

    def test_a_session_declares_a_bounded_number_of_rules(self):
        daemon = Daemon(BIN, "--workers.count", "1", "--operators.libraries", str(LIBRARY), "--session.max_rules", "1")
        self.addCleanup(daemon.stop)
        with dtorch.client.connect(daemon.socket, name="bounded") as session:
            session.declare_rule("example::row_products", "m k, m n -> k n; m:sum")
            session.declare_rule("example::row_products", "m k, m n -> k n")  # in its place
            with self.assertRaisesRegex(dtorch.Error, "RESOURCE_EXHAUSTED.*session.max_rules"):
                session.declare_rule("example::scale_rows", "m ..., m -> m ...")

    def test_a_rule_is_verified_row_by_row(self):
        rng = np.random.default_rng(20)
        a, b = rng.normal(size=(7, 5)), rng.normal(size=(7, 4))
        rows = self.session.verify_rule("example::row_products", a, b, timeout=LIMIT)
        self.assertEqual([row.fault for row in rows], [None] * len(rows))
        self.assertIn(([Shard(0), Shard(0)], [Partial()]), [(row.inputs, row.outputs) for row in rows])
        # A wrong one: the greatest of the parts' sums is not their sum.
        self.session.declare_rule("example::row_products", "m k, m n -> k n; m:max")
        wrong = [row for row in self.session.verify_rule("example::row_products", a, b, timeout=LIMIT) if row.fault]
        self.assertEqual([row.outputs for row in wrong], [[Partial("max")]])
        # What cannot go wrong is no proof: a rule without rows, sizes that leave a rank without a part.
        for rule, rows in ("*, * -> *", 7), ("m k, m n -> k n; m:sum; full m k n", 1):
            self.session.declare_rule("example::row_products", rule)
            with self.assertRaisesRegex(ValueError, "nothing was verified"):
                self.session.verify_rule("example::row_products", a[:rows, :1], b[:rows, :1], timeout=LIMIT)
        # A rule that makes the operator, or the reading of its result, fail is wrong.
        for rule in "m k, [m] n -> k n; m:sum", "m k, m n -> k n; m:avg":
            self.session.declare_rule("example::row_products", rule)
            rows = self.session.verify_rule("example::row_products", a, b, timeout=LIMIT)
            self.assertTrue(any(row.fault for row in rows), rule)
        self.session.declare_rule("example::row_products", "m k, m n -> k n; m:sum; linear 0|1")

    def test_verification_takes_all_dtypes_lists_and_writes(self):
        a = np.random.default_rng(20).normal(size=(7, 5)) * 10
        for values in a > 0, abs(a).astype(np.uint8), a.astype(np.int64), a.astype(np.float32):
            rows = self.session.verify_rule("aten::clone", values, timeout=LIMIT)
            self.assertGreater(len(rows), 2)
            self.assertEqual([row.fault for row in rows], [None] * len(rows))
        rows = self.session.verify_rule("aten::_foreach_add_.Scalar", [a, a], 1, outputs=0, timeout=LIMIT)
        self.assertGreater(len(rows), 1)
        self.assertEqual([row.fault for row in rows], [None] * len(rows))

    def test_the_configuration_denies_operators(self):
        x = self.session.put(torch.ones(2))
        with self.assertRaisesRegex(dtorch.Error, "operators.deny"):
            self.session.call("aten::cosh", x).get().wait(LIMIT)
        with self.assertRaisesRegex(dtorch.Error, "operators.deny"):
            self.session.call("aten::_foreach_tanh", [x]).get().wait(LIMIT)
        self.same(self.session.call("aten::sinh", x), torch.ones(2).sinh())

    def test_implicit_redistribution_is_counted_and_can_be_listed(self):
        a, b = torch.randn(9, 6), torch.randn(6, 4)
        x, y = self.session.put(a, [Shard(0)]), self.session.put(b, [Shard(0)])
        with self.assertRaises(dtorch.Error):
            self.session.call("aten::mm", x, y).get().wait(LIMIT)
        with self.session.implicit_redistribution():
            for _ in range(3):
                out = self.session.call("aten::mm", x, y)
        self.same(out, a @ b, 1e-5)
        moved = self.session.redistributions(LIMIT)
        moved = [each for each in moved if each.operator != "get"]  # of the value that is a sum
        self.assertEqual([(each.operator, each.count) for each in moved], [("aten::mm", 3)])
        self.assertIn("rules_test.py:", moved[0].site)
        self.assertGreater(moved[0].bytes, 0)
        # An operator without a rule, and one whose results only a run tells.
        with self.session.implicit_redistribution():
            self.same(self.session.call("aten::nonzero", self.session.put(torch.eye(4), [Shard(0)])),
                      torch.eye(4).nonzero())
            self.same(self.session.call("aten::histc", self.session.put(a, [Shard(1)])), a.histc())
            # What is written to stays where it is: the other is moved, or the call is refused.
            z = self.session.put(a, [Shard(0)])
            self.session.call("aten::add_.Tensor", z, self.session.put(a, [Shard(1)]))
            self.same(z, a + a)
            self.assertEqual(z.describe().wait(LIMIT).placements, [Shard(0)])

    def test_a_view_that_would_have_to_move_its_tensor_is_a_copy_that_nobody_can_take_for_a_view(self):
        a = torch.randn(5, 4)
        with self.session.implicit_redistribution():
            for name, arguments, placement, want in (
                    ("aten::diagonal", (), Shard(0), a.diagonal()), ("aten::view", ([-1],), Shard(1), a.view(-1)),
                    ("aten::slice.Tensor", (0, 1, 3), Shard(0), a[1:3]), ("aten::select.int", (1, 2), Shard(1), a[:, 2])):
                x = self.session.put(a, [placement])
                view = self.session.call(name, x, *arguments)
                again = self.session.call("aten::alias", view)
                self.same(view, want)
                self.same(again, want)
                further = self.session.call("aten::flip", again, [0])
                self.session.call("aten::zero_", again)
                for lost in x, view, again:  # as after any write that was refused
                    with self.assertRaisesRegex(dtorch.Error, "write to the tensor itself"):
                        lost.get().wait(LIMIT)
                self.same(further, want.flip(0))
                x = self.session.put(a, [placement])
                view, unread = (self.session.call(name, x, *arguments) for _ in range(2))
                before = view.get()
                kept = self.session.call("aten::clone", view)
                self.session.call("aten::zero_", x)
                with self.assertRaisesRegex(dtorch.Error, "of which this was a view"):
                    view.get().wait(LIMIT)
                self.assertTrue(torch.equal(torch.from_dlpack(before.wait(LIMIT)), want))
                self.same(kept, want)
                self.same(x, a * 0)
                self.session.synchronize().wait(LIMIT)  # nobody is told of what nobody reads
                del unread
            # A view of a copied view is one of the tensor, too, also when that is gone.
            x = self.session.put(torch.arange(24.0).view(4, 6), [Shard(1)])
            view = self.session.call("aten::view", self.session.call("aten::view", x, [24]), [3, 8])
            self.same(view, torch.arange(24.0).view(3, 8))
            self.session.call("aten::zero_", x)
            with self.assertRaisesRegex(dtorch.Error, "of which this was a view"):
                view.get().wait(LIMIT)
            x = self.session.put(a, [Shard(0)])
            self.session.call("aten::zero_", self.session.call("aten::select.int", x, 1, 2))
            self.same(x, torch.cat([a[:, :2], torch.zeros(5, 1), a[:, 3:]], 1))

    def test_statistics_are_updated_or_the_call_is_refused(self):
        x = torch.randn(6, 6, 3)
        ones, zeros = torch.ones(6), torch.zeros(6)
        mean, var = zeros.clone(), ones.clone()
        want = torch.native_batch_norm(x, ones, zeros, mean, var, True, 0.1, 1e-5)[0]
        with self.session.implicit_redistribution():
            for placement in Shard(0), Shard(1):
                given = [self.session.put(each) for each in (ones, zeros, zeros, ones)]
                out = self.session.call("aten::native_batch_norm", self.session.put(x, [placement]), *given, True, 0.1,
                                        1e-5, outputs=3)[0]
                self.same(out, want, 1e-5)
                self.same(given[2], mean, 1e-5)
                self.same(given[3], var, 1e-5)

    def test_a_rank_without_channels_breaks_no_worker(self):
        with self.session.implicit_redistribution():
            x, c = torch.randn(6, 4, 3), torch.rand(4) + 1
            grad = torch.randn(6, 4, 3)
            want = torch.ops.aten.native_batch_norm_backward(grad, x, c, c, c, c, c, True, 1e-5, [True] * 3)
            put = lambda value, dim: self.session.put(value, [Shard(dim)])
            out = self.session.call("aten::native_batch_norm_backward", put(grad, 1), put(x, 1),
                                    *[put(c, 0) for _ in range(5)], True, 1e-5, [True] * 3, outputs=3)
            for tensor, expected in zip(out, want):
                self.same(tensor, expected, 1e-4)

    def test_explain_tells_rows_candidates_and_choice(self):
        x, y = self.session.put(torch.ones(8, 8), [Shard(0)]), self.session.put(torch.ones(8, 8), [Shard(0)])
        told = self.session.explain("aten::mm", x, y, timeout=LIMIT)
        self.assertIn(([Shard(1), Shard(0)], [Partial()]), told.rows)
        self.assertIsNone(told.choice)
        self.assertIn("no rule accepts", told.refusal)
        self.assertEqual(told.candidates, sorted(told.candidates, key=lambda each: each.seconds))
        told = self.session.explain("aten::mm", x, self.session.put(torch.ones(8, 8)), timeout=LIMIT)
        self.assertEqual(told.choice.outputs, [[Shard(0)]])
        self.assertEqual(told.choice.redistributions, [])
        with self.assertRaisesRegex(dtorch.Error, "no operator"):
            self.session.explain("aten::no_such", x, timeout=LIMIT)

    def test_the_list_of_ruled_operators(self):
        operators = dict(self.session.operators(LIMIT))
        self.assertTrue(operators["aten::add.Tensor"])
        self.assertFalse(operators["aten::mm"])
        self.assertIn("example::scale_rows", operators)
        self.assertNotIn("aten::cosh", operators)

    def test_every_operator_with_a_rule_is_proven(self):
        docs = pathlib.Path(__file__).parents[2] / "docs" / "operators.md"  # the proof's
        proven = {line.split("`")[1] for line in docs.read_text().splitlines() if line.startswith("| `")}
        ruled = {name for name, _ in self.session.operators() if name.startswith(("aten::", "dtorch::"))}
        self.assertGreater(len(ruled), 1300)
        self.assertEqual(ruled - proven, set())

    def test_what_models_train_with_has_rules(self):
        lines = (pathlib.Path(__file__).parent / "model_operators.txt").read_text().splitlines()
        wanted = {line for line in lines if not line.startswith("#")}
        self.assertGreater(len(wanted), 80)
        self.assertEqual(wanted - {name for name, _ in self.session.operators()}, set())

    def test_lists_of_tensors_are_written_in_place(self):
        a = [torch.randn(5, 2), torch.randn(3)]
        b = [torch.randn(5, 2), torch.randn(3)]
        x = [self.session.put(a[0], [Shard(0)]), self.session.put(a[1])]
        y = [self.session.put(b[0], [Shard(0)]), self.session.put(b[1])]
        self.session.call("aten::_foreach_add_.List", x, y, outputs=0)
        for tensor, want in zip(x, torch._foreach_add(a, b)):
            self.same(tensor, want)
        out = self.session.call("aten::_foreach_mul.Scalar", x, 3.0, outputs=2)
        self.assertEqual(out[0].describe().wait(LIMIT).placements, [Shard(0)])
        for tensor, want in zip(out, torch._foreach_mul(torch._foreach_add(a, b), 3.0)):
            self.same(tensor, want)
        # One that is refused has lost what it was to write to.
        self.session.call("aten::_foreach_add_.List", x, [y[1], y[0]], outputs=0)
        with self.assertRaises(dtorch.Error):
            x[0].get().wait(LIMIT)

    def test_forms_in_place_follow_the_functional_one(self):
        x, mask = torch.randn(7, 4), torch.rand(7, 4) > 0.5
        for implicit in False, True:
            self.session.implicit = implicit
            filled = self.session.put(x, [Shard(0)])
            self.session.call("aten::masked_fill_.Scalar", filled, self.session.put(mask, [Shard(0)]), 2.0)
            self.same(filled, x.masked_fill(mask, 2.0))
        self.session.implicit = False
        compared = self.session.put(x, [Shard(1)])
        self.same(self.session.call("aten::ge_.Scalar", compared, 0.0), (x >= 0).float())

    def test_norms_of_a_list_are_those_of_whole_tensors(self):
        tensors = [torch.randn(7, 4), torch.randn(5), torch.randn(2, 3)]
        remote = [self.session.put(tensor, [placement])
                  for tensor, placement in zip(tensors, (Shard(0), Shard(0), Replicate()))]
        for order in 2, 1, float("inf"):
            for norm, want in zip(self.session.call("aten::_foreach_norm.Scalar", remote, order, outputs=3),
                                  torch._foreach_norm(tensors, order)):
                self.same(norm, want, 1e-5)

    def test_a_fused_optimizer_steps_lists_of_shards(self):
        params = [torch.randn(6, 4), torch.randn(4)]
        grads = [torch.randn(6, 4), torch.randn(4)]
        zeros = [torch.zeros(6, 4), torch.zeros(4)]
        steps = [torch.tensor(1.0), torch.tensor(1.0)]
        place = lambda tensors: [self.session.put(tensors[0], [Shard(0)]), self.session.put(tensors[1])]
        options = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
        remote = place(params), place(grads), place(zeros), place(zeros)
        self.session.call("aten::_fused_adam_", *remote, [], [self.session.put(step) for step in steps], outputs=0,
                          **options)
        exp_avgs, squares = [z.clone() for z in zeros], [z.clone() for z in zeros]
        torch._fused_adam_(params, grads, exp_avgs, squares, [], steps, **options)
        for tensor, want in zip(remote[0] + remote[2], params + exp_avgs):
            self.same(tensor, want)

    def test_the_tables_of_an_embedding_are_split(self):
        table, indices = torch.randn(10, 3), torch.tensor([[0, 9], [4, 4], [7, 2]])
        for placement in Shard(0), Shard(1), Replicate():
            out = self.session.call("aten::embedding", self.session.put(table, [placement]), self.session.put(indices))
            self.same(out, table[indices])
        with self.assertRaisesRegex(dtorch.Error, "out of range"):
            self.session.call("aten::embedding", self.session.put(table, [Shard(0)]),
                              self.session.put(indices + 1)).get().wait(LIMIT)

    def test_indices_are_of_the_whole(self):
        x = torch.randn(7, 5)
        x[3, 2] = x[6, 2] = 5.0
        for dim in 0, 1:
            for placement in Shard(0), Shard(1):
                value, index = self.session.call("aten::max.dim", self.session.put(x, [placement]), dim, outputs=2)
                self.same(value, x.max(dim).values)
                self.same(index, x.max(dim).indices)
        self.same(self.session.call("aten::argmin", self.session.put(x, [Shard(0)]), 0, True), x.argmin(0, True))

    def test_what_is_reduced_over_uneven_parts_is_right(self):
        x = torch.randn(7, 5)
        sharded = self.session.put(x, [Shard(0)])
        for name, want in (("aten::mean.dim", x.mean(0)), ("aten::logsumexp", x.logsumexp(0)),
                           ("aten::var.correction", x.var(0)), ("aten::std.correction", x.std(0)),
                           ("aten::linalg_vector_norm", None), ("aten::amax", x.amax(0))):
            if want is None:
                self.same(self.session.call(name, sharded, 2, [0]), torch.linalg.vector_norm(x, 2, [0]), 1e-5)
            else:
                self.same(self.session.call(name, sharded, [0]), want, 1e-5)
        for name, want in ("aten::_softmax", x.softmax(0)), ("aten::_log_softmax", x.log_softmax(0)):
            out = self.session.call(name, sharded, 0, False)
            self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(0)])
            self.same(out, want, 1e-5)

    def test_running_totals_over_a_split_dimension(self):
        x = torch.tensor([[2.0, -1.5], [3.0, float("inf")], [0.5, 2.0], [1.0, 0.25], [-2.0, 1.0], [4.0, 3.0], [0.1, -7.0]])
        for name, want in (("aten::cumsum", x.cumsum(0)), ("aten::cumprod", x.cumprod(0)),
                           ("aten::logcumsumexp", x.logcumsumexp(0))):
            out = self.session.call(name, self.session.put(x, [Shard(0)]), 0)
            self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(0)])
            torch.testing.assert_close(torch.from_dlpack(out.get().wait(LIMIT)), want, equal_nan=True)
        numbers = torch.tensor([100, 27, 1, 90, 60, -5, 3])
        for dtype in torch.int8, torch.int32, torch.float64:  # of 8 bits they wrap
            for name in "cumsum", "cumprod":
                out = self.session.call(f"aten::{name}", self.session.put(numbers, [Shard(0)]), 0,
                                        dtype=dtype)
                self.same(out, getattr(numbers, name)(0, dtype=dtype))
        few = torch.tensor([5, 6])  # a rank has none
        self.same(self.session.call("aten::cumsum", self.session.put(few, [Shard(0)]), 0), few.cumsum(0))

    def test_attention_over_batch_heads_and_groups_of_heads(self):
        attend = torch.nn.functional.scaled_dot_product_attention
        q, k, v = torch.randn(6, 12, 5, 8), torch.randn(6, 6, 7, 8), torch.randn(6, 6, 7, 8)
        for placement in Shard(0), Shard(1):
            out = self.session.call("aten::scaled_dot_product_attention",
                                    *(self.session.put(t, [placement]) for t in (q, k, v)), enable_gqa=True)
            self.assertEqual(out.describe().wait(LIMIT).placements, [placement])
            self.same(out, attend(q, k, v, enable_gqa=True), 1e-5)
        q, k = torch.randn(2, 14, 5, 8), torch.randn(2, 7, 5, 8)
        with self.assertRaisesRegex(dtorch.Error, "end within one"):  # 14 heads are 5, 5, 4: no multiples of 2
            self.session.call("aten::scaled_dot_product_attention", self.session.put(q, [Shard(1)]),
                              self.session.put(k, [Shard(1)]), self.session.put(k, [Shard(1)]),
                              enable_gqa=True).get().wait(LIMIT)
        with self.assertRaisesRegex(dtorch.Error, "dropout_p"):
            self.session.call("aten::scaled_dot_product_attention", *(self.session.put(v, [Shard(0)]) for _ in range(3)),
                              dropout_p=0.5).get().wait(LIMIT)

    def test_queries_are_split_where_no_position_counts(self):
        attend = torch.nn.functional.scaled_dot_product_attention
        q, k, mask = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 5, 8), torch.randn(7, 5)
        rows, whole = self.session.put(q, [Shard(2)]), self.session.put(k, [Replicate()])
        out = self.session.call("aten::scaled_dot_product_attention", rows, whole, whole,
                                self.session.put(mask, [Shard(0)]))
        self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(2)])
        self.same(out, attend(q, k, k, mask), 1e-5)
        out = self.session.call("aten::scaled_dot_product_attention", rows, whole, whole, is_causal=False)
        self.same(out, attend(q, k, k), 1e-5)
        with self.assertRaisesRegex(dtorch.Error, "as no rule accepts on mesh dimension 0"):
            self.session.call("aten::scaled_dot_product_attention", rows, whole, whole,
                              is_causal=True).get().wait(LIMIT)

    def test_what_a_refused_call_was_to_write_to_has_no_value(self):
        x = self.session.put(torch.rand(4, 2))
        values, indices = self.session.put(torch.zeros(4)), self.session.put(torch.zeros(4, dtype=torch.int64))
        self.session.call("aten::max.dim_max", x, 1, max=values, max_values=indices)
        for tensor in values, indices:
            with self.assertRaisesRegex(dtorch.Error, "returns 2 tensors, the call expects 1"):
                tensor.get().wait(LIMIT)
        self.assertEqual(x.get().wait(LIMIT).shape, (4, 2))
        with self.assertRaisesRegex(dtorch.Error, "returns 2 tensors, the call expects 1"):
            self.session.explain("aten::max.dim_max", x, 1, max=x, max_values=x, timeout=LIMIT)

    def test_what_a_call_only_reads_is_moved(self):
        """Though its schema says that it may write to it."""
        self.session.implicit = True
        x, of_channels = torch.rand(6, 4, 3), [torch.rand(4) + 0.1 for _ in range(4)]
        out = self.session.call("aten::batch_norm", self.session.put(x, [Shard(0)]),
                                *[self.session.put(value, [Shard(0)]) for value in of_channels], False, 0.1, 1e-5, False)
        weight, bias, mean, variance = of_channels
        self.same(out, torch.nn.functional.batch_norm(x, mean, variance, weight, bias), 1e-5)
        parameters, gradients = torch.rand(5, 4), torch.rand(5, 4)
        states = [torch.zeros(5, 4), torch.zeros(5, 4)]
        on = [[self.session.put(value, [Shard(0)])] for value in (parameters, *states)]
        of_rows = [self.session.put(gradients, [Shard(1)])]
        options = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.02, eps=1e-6, amsgrad=False, maximize=False)
        self.session.call("aten::_fused_adamw_", on[0], of_rows, on[1], on[2], [], [self.session.put(torch.ones(()))],
                          outputs=0, **options)
        torch.ops.aten._fused_adamw_([parameters], [gradients], [states[0]], [states[1]], [], [torch.ones(())], **options)
        self.same(on[0][0], parameters, 1e-6)
        self.same(of_rows[0], gradients)

    def test_operators_of_transformers(self):
        """Their values are proven with the other rules (more_programs.py)."""
        x, turn = torch.randn(4, 6, 8), torch.randn(6, 8)
        turned = self.session.call("dtorch::apply_rotary_emb", self.session.put(x, [Shard(1)]),
                                   *[self.session.put(turn, [Shard(0)])] * 2)
        self.assertEqual(turned.describe().wait(LIMIT).placements, [Shard(1)])
        parts = self.session.call("dtorch::silu_linear_chunk", self.session.put(x, [Shard(0)]),
                                  self.session.put(torch.randn(6, 8)), None, 3, outputs=3)
        self.assertEqual([part.describe().wait(LIMIT).shape for part in parts], [(4, 6, 2)] * 3)
        normal = self.session.call("dtorch::layer_norm_mul_add", self.session.put(x, [Shard(0)]), [8],
                                   *[self.session.put(torch.ones(8))] * 2)
        self.same(normal, torch.nn.functional.layer_norm(x, [8]) + 1, 1e-5)
        with self.assertRaisesRegex(dtorch.Error, "has no two halves"):
            odd = self.session.put(torch.randn(4, 3))
            self.session.call("dtorch::apply_rotary_emb", odd, odd, odd).get().wait(LIMIT)

    def test_classes_of_a_likelihood_are_split(self):
        likely = torch.randn(5, 10).log_softmax(1)
        target, weight = torch.tensor([3, 9, -100, 0, 4]), torch.rand(10)
        forward, backward = torch.ops.aten.nll_loss_forward, torch.ops.aten.nll_loss_backward
        for reduction in 0, 1, 2:
            for weights in None, weight:
                want, total = forward(likely, target, weights, reduction, -100)
                remote = [self.session.put(likely, [Shard(1)]), self.session.put(target)]
                remote.append(weights if weights is None else self.session.put(weights, [Shard(0)]))
                loss, all = self.session.call("aten::nll_loss_forward", *remote, reduction, -100, outputs=2)
                self.same(loss, want, 1e-5)
                self.same(all, total, 1e-5)
                grad = torch.rand_like(want)
                out = self.session.call("aten::nll_loss_backward", self.session.put(grad), *remote, reduction, -100,
                                        self.session.put(total))
                self.assertEqual(out.describe().wait(LIMIT).placements, [Shard(1)])
                self.same(out, backward(grad, likely, target, weights, reduction, -100, total), 1e-5)
        with self.assertRaisesRegex(dtorch.Error, "out of range"):
            self.session.call("aten::nll_loss_forward", self.session.put(likely, [Shard(1)]),
                              self.session.put(torch.tensor([3, 10, 0, 0, 4])), None, 1, -100,
                              outputs=2)[0].get().wait(LIMIT)

    def test_gradients_that_are_not_asked_for_are_nothing(self):
        x, grad, weight = torch.randn(6, 2, 5, 5), torch.randn(6, 4, 3, 3), torch.randn(4, 2, 3, 3)
        rest = [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        for mask in [False, False, True], [False, True, False], [True, False, False]:
            want = torch.ops.aten.convolution_backward(grad, x, weight, *rest, mask)
            placed = [self.session.put(grad, [Shard(0)]), self.session.put(x, [Shard(0)]), self.session.put(weight)]
            results = self.session.call("aten::convolution_backward", *placed, *rest, mask, outputs=3)
            for result, value in zip(results, want):
                if value is None:
                    self.assertEqual(result.describe().wait(LIMIT).placements, [Replicate()])
                else:
                    self.same(result, value, 1e-4)
        statistics = [torch.rand(2) + 0.5 for _ in range(4)]
        out = self.session.call("aten::_native_batch_norm_legit_no_training", self.session.put(x, [Shard(0)]),
                                *map(self.session.put, statistics), 0.1, 1e-5, outputs=3)[0]
        self.same(out, torch.ops.aten._native_batch_norm_legit_no_training(x, *statistics, 0.1, 1e-5)[0], 1e-5)

    def test_all_and_any_over_no_dimension(self):
        x = torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 0.0]])
        for keep in False, True:
            for name in "all", "any":
                want = getattr(torch.ops.aten, name).dims(x, [], keep)
                self.same(self.session.call(f"aten::{name}.dims", self.session.put(x, [Shard(0)]), [], keep), want)

    def test_what_cannot_be_reduced_is_never_partial(self):
        numbers = torch.ones(3, 2, dtype=torch.complex64)
        with self.assertRaisesRegex(dtorch.Error, "complex64 tensors are never P.max"):
            self.session.put_shards([numbers] * WORKERS, (3, 2), [Partial("max")]).get().wait(LIMIT)
        with self.assertRaisesRegex(dtorch.Error, "int64 tensors are never P.avg"):
            self.session.put(torch.ones(3, dtype=torch.int64)).redistribute([Partial("avg")]).get().wait(LIMIT)
        with self.assertRaisesRegex(dtorch.Error, "int64 tensors are never P.avg"):
            self.session.call("aten::ones", [3], dtype=dtorch.DType("int64"), mesh=self.session.world,
                              placements=[Partial("avg")]).get().wait(LIMIT)

    def test_explain_of_a_call_that_runs_on_whole_tensors_only(self):
        x = torch.randn(4, 4)
        explained = self.session.explain("aten::linalg_matrix_exp", self.session.put(x))
        self.assertIsNone(explained.refusal)
        self.assertEqual(explained.choice.inputs, [[Replicate()]])
        self.assertIsNotNone(self.session.explain("aten::histc", self.session.put(x, [Shard(0)])).refusal)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])
