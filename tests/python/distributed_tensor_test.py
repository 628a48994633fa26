"""Meshes, placements, gradients, collectives and parallel modules of the package dtorch, against PyTorch in one process.
Argument: the folder of the programs."""
import ast
import asyncio
import contextlib
import copy
import inspect
import io
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import torch
from torch import nn

import dtorch
from daemon import LIMIT, Daemon
from dtorch import (ColwiseParallel, DeviceMesh, Partial, PrepareModuleInput, PrepareModuleOutput, Replicate,
                    RowwiseParallel, SequenceParallel, Shard, collectives, distribute_tensor, init_device_mesh,
                    parallelize_module)

BIN = pathlib.Path(sys.argv.pop(1)).resolve()


class Case(unittest.TestCase):
    workers = 2

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN, "--workers.count", str(cls.workers))
        cls.addClassCleanup(cls.daemon.stop)
        cls.session = dtorch.connect(cls.daemon.socket)
        cls.addClassCleanup(dtorch.disconnect)

    def near(self, got, want, **tolerance):
        self.assertEqual(got.shape, want.shape)
        torch.testing.assert_close(got.detach().cpu(), want.detach(), **tolerance)


class MeshTest(Case):
    workers = 4

    def test_meshes_are_as_pytorchs(self):
        mesh = init_device_mesh("dtorch", (2, 2), mesh_dim_names=("dp", "tp"))
        self.assertEqual((mesh.shape, mesh.ndim, mesh.size(), mesh.size(0)), ((2, 2), 2, 4, 2))
        self.assertEqual(mesh.mesh.tolist(), [[0, 1], [2, 3]])
        self.assertEqual(mesh, DeviceMesh("dtorch", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp")))
        self.assertNotEqual(mesh, DeviceMesh("dtorch", [[0, 1], [2, 3]], mesh_dim_names=("dp", "pp")))
        self.assertEqual(mesh["tp"].shape, (2,))
        self.assertEqual(mesh["tp", "dp"].shape, (2, 2))
        self.assertEqual([each.ranks for each in mesh.unbind("dp")], [(0, 1), (2, 3)])
        self.assertEqual([each.ranks for each in mesh.unbind(1)], [(0, 2), (1, 3)])
        self.assertEqual(mesh.get_group("dp"), mesh["dp"])
        self.assertIn("dp", repr(mesh))
        self.assertIn("<table>", mesh._repr_html_())
        for wrong in (lambda: DeviceMesh("dtorch", [0, 0]), lambda: DeviceMesh("cuda", [0]), lambda: mesh.get_group(),
                      lambda: DeviceMesh("dtorch", [0, 1], mesh_dim_names=("a", "b")),
                      lambda: distribute_tensor(torch.ones(2), mesh, [Shard(0)]),
                      lambda: distribute_tensor(torch.ones(2), mesh["tp"], [Shard(1)])):
            with self.assertRaises(ValueError):
                wrong()
        with self.assertRaises(KeyError):
            mesh["pp"]
        with self.assertRaisesRegex(dtorch.Error, "rank 7"):
            distribute_tensor(torch.ones(2), DeviceMesh("dtorch", [7]))

    def test_new_tensors_lie_on_the_default_mesh(self):
        mesh = init_device_mesh("dtorch", (2, 2), mesh_dim_names=("dp", "tp"))
        self.assertEqual(torch.ones(2, device="dtorch").device_mesh, init_device_mesh("dtorch", 4))
        with mesh:
            self.assertEqual(torch.ones(2, device="dtorch").device_mesh, mesh)
            self.assertEqual(torch.ones(2).to("dtorch").placements, [Replicate(), Replicate()])
            with mesh.unbind("dp")[1]:
                self.assertEqual(torch.ones(2, device="dtorch").device_mesh.ranks, (2, 3))
            self.assertEqual(torch.ones(2, device="dtorch").device_mesh, mesh)
        self.assertEqual(torch.ones(2, device="dtorch").device_mesh.shape, (4,))

    def test_tensors_that_are_everywhere_go_with_those_of_other_meshes(self):
        host = torch.randn(6, 4)
        mesh = init_device_mesh("dtorch", (2, 2), mesh_dim_names=("dp", "tp"))
        x = distribute_tensor(host, mesh, [Shard(0), Shard(1)])
        everywhere = torch.arange(4.0, device="dtorch")
        self.near(x + everywhere, host + torch.arange(4.0))
        self.near(torch.where(x > 0, everywhere, x), torch.where(host > 0, torch.arange(4.0), host))
        stage = distribute_tensor(host, mesh.unbind("dp")[1], [Shard(1)])
        self.near(everywhere * stage, torch.arange(4.0) * host)
        with self.assertRaisesRegex(RuntimeError, "different meshes"):
            (stage + x).cpu()
        unnamed = init_device_mesh("dtorch", (2, 2))
        self.near(x + distribute_tensor(host, unnamed, [Shard(0), Shard(1)]), host + host)
        self.assertEqual(x.redistribute(unnamed, [Shard(1), Replicate()]).placements, [Shard(1), Replicate()])
        everywhere.add_(distribute_tensor(torch.ones(4), mesh))
        self.near(everywhere, torch.arange(4.0) + 1)
        with self.assertRaisesRegex(RuntimeError, "different meshes"):
            everywhere.add_(distribute_tensor(torch.ones(4), mesh.unbind("dp")[0])).cpu()

    def test_random_numbers_are_those_of_one_process_on_any_mesh_and_strides(self):
        for seed in 3, 4:
            torch.manual_seed(seed)
            want = torch.randn(2, 3)
            for ranks in [0, 1], [3, 1, 2], [0, 1, 2, 3]:
                torch.manual_seed(seed)
                with DeviceMesh("dtorch", ranks):
                    self.assertTrue(torch.equal(torch.randn(2, 3, device="dtorch").cpu(), want))
        host = torch.randn(4, 6, 2)
        for placement in Shard(0), Shard(1), Replicate():
            x = distribute_tensor(host, placements=[placement]).transpose(0, 1)
            for draw in (lambda t: nn.functional.dropout(t, 0.5)), torch.rand_like:
                torch.manual_seed(5)
                want = draw(host.transpose(0, 1))
                torch.manual_seed(5)
                got = draw(x)
                self.assertTrue(torch.equal(got.cpu(), want))
                self.assertEqual(got.stride(), want.stride())

    def test_statistics_of_a_batch_in_uneven_parts(self):
        for rows in 4, 5, 7, 9:
            for values in torch.randn(rows, 3), torch.randn(rows, 3) * torch.tensor([0.0, 1, 1]) + 2:
                here, there = nn.BatchNorm1d(3), nn.BatchNorm1d(3).to("dtorch")
                self.near(there(distribute_tensor(values, placements=[Shard(0)])), here(values), rtol=1e-4, atol=1e-5)
                self.near(there.running_var, here.running_var)
                self.near(there.running_mean, here.running_mean)

    def test_a_part_of_a_mesh_leaves_the_rest(self):
        host = torch.randn(8, 6)
        mesh = init_device_mesh("dtorch", (2, 2), mesh_dim_names=("dp", "tp"))
        x = distribute_tensor(host, mesh["dp"], [Shard(0)])
        self.assertEqual(x.placements, [Shard(0), Replicate()])
        y = x.redistribute(mesh["tp"], [Shard(1)])
        self.assertEqual(y.placements, [Shard(0), Shard(1)])
        self.assertEqual(y.redistribute({"dp": Replicate()}).placements, [Replicate(), Shard(1)])
        self.assertEqual(y.redistribute({1: Shard(-2)}).placements, [Shard(0), Shard(0)])
        self.near(y, host)
        self.near(y.to_local(3), host[4:, 3:])
        self.assertEqual(y.full_tensor().placements, [Replicate(), Replicate()])

    def test_another_mesh_is_reached_and_differentiated(self):
        mesh = init_device_mesh("dtorch", (2, 2), mesh_dim_names=("pp", "tp"))
        first, second = mesh.unbind("pp")
        x = distribute_tensor(torch.arange(6.0).reshape(2, 3), first, [Shard(1)]).requires_grad_()
        y = (x * 2).redistribute(second, [Shard(0)])
        self.assertEqual((y.device_mesh, y.placements), (second, [Shard(0)]))
        (y * y).sum().backward()
        self.near(x.grad, 8 * torch.arange(6.0).reshape(2, 3))
        self.assertEqual((x.grad.device_mesh, x.grad.placements), (first, [Shard(1)]))


class TensorTest(Case):
    workers = 3

    def test_parts_make_a_tensor(self):
        parts = [torch.randn(rows, 4) for rows in (2, 2, 1)]
        self.near(dtorch.from_local(parts, placements=[Shard(0)]), torch.cat(parts))
        equal = [torch.randn(2, 2) for _ in range(3)]
        self.near(dtorch.from_local(equal, placements=[Partial()]), sum(equal))
        self.near(dtorch.from_local([equal[0]] * 3), equal[0])
        with self.assertRaises(ValueError):
            dtorch.from_local(parts[:2], placements=[Shard(0)])
        with self.assertRaisesRegex(RuntimeError, "torch.chunk"):
            dtorch.from_local(list(reversed(parts)), placements=[Shard(0)]).cpu()

    def test_parts_get_their_gradients(self):
        weight = torch.randn(5, 4)
        for placement, rows, scale in ((Shard(0), (2, 2, 1), 1), (Partial(), (5, 5, 5), 1), (Partial("avg"), (5, 5, 5), 1 / 3),
                                       (Replicate(), (5, 5, 5), 1)):
            with self.subTest(placement):
                parts = [torch.ones(extent, 4, requires_grad=True) for extent in rows]
                (dtorch.from_local(parts, placements=[placement]) * weight.to("dtorch")).sum().backward()
                wanted = weight.split(rows) if placement == Shard(0) else [scale * weight] * 3
                for part, gradient in zip(parts, wanted, strict=True):
                    torch.testing.assert_close(part.grad, gradient)
        parts = [torch.ones(2, requires_grad=True) for _ in range(3)]
        with self.assertRaisesRegex(NotImplementedError, "max"):
            dtorch.from_local(parts, placements=[Partial("max")]).sum().backward()

    def test_tensors_show_their_values_and_where_they_lie(self):
        x = distribute_tensor(torch.arange(6.0).reshape(3, 2), placements=[Shard(0)])
        self.assertEqual(repr(x), "tensor([[0., 1.],\n        [2., 3.],\n        [4., 5.]], device='dtorch:0', "
                                  "placements=[S(0)])")
        self.assertIn("requires_grad=True", repr(nn.Parameter(x)))
        self.assertIn("grad_fn=<MulBackward0>", repr(nn.Parameter(x) * 2))
        self.assertEqual(repr(torch.ones(2)), "tensor([1., 1.])")
        self.assertIn("S(0)", x._repr_html_())
        self.assertFalse(hasattr(torch.ones(2), "_repr_html_"))
        self.assertIn("3 workers", self.session._repr_html_())

    def test_memory_is_told(self):
        torch.dtorch.synchronize()
        before = torch.dtorch.memory_allocated()
        torch.dtorch.reset_peak_memory_stats()
        x = torch.ones(3 << 18, device="dtorch")
        self.assertEqual(torch.dtorch.memory_allocated() - before, self.workers * x.numel() * 4)
        y = x + x
        del x, y
        self.assertEqual(torch.dtorch.memory_allocated(), before)
        self.assertGreaterEqual(torch.dtorch.max_memory_allocated() - before, self.workers * (6 << 20))
        self.assertEqual(len(torch.dtorch.memory_stats()), self.workers)
        torch.dtorch.empty_cache()

    def test_attributes_are_of_this_device_alone(self):
        x = torch.ones(3)
        for name in "redistribute", "full_tensor", "to_local", "placements", "device_mesh", "get_async":
            self.assertFalse(hasattr(x, name))
            self.assertTrue(hasattr(x.to("dtorch"), name))
        with self.assertRaises(TypeError):
            x.to("dtorch").redistribute(["R"])

    def test_values_arrive_while_the_program_goes_on(self):
        async def program():
            x = torch.randn(200, 200, device="dtorch")
            futures = [(x * factor).sum().get_async() for factor in range(20)]
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            values = await asyncio.gather(*futures)
            self.assertEqual([each.item() for each in await asyncio.gather(futures[1], futures[1])], [values[1].item()] * 2)
            ticking.cancel()
            with self.assertRaises(dtorch.Error):
                await torch.ones(3, device="dtorch").index_select(0, torch.tensor([7], device="dtorch")).get_async()
            return x.cpu(), values, ticks

        host, values, ticks = asyncio.run(program())
        self.near(torch.stack(values), torch.stack([(host * factor).sum() for factor in range(20)]), rtol=1e-4, atol=1e-2)
        self.assertGreater(ticks, 0)
        future = torch.ones(2, dtype=torch.bool, device="dtorch").get_async()
        self.assertEqual(future.wait(LIMIT).tolist(), [True, True])
        self.assertTrue(future.done())
        worker = self.daemon.status()["workers"][1]["pid"]
        os.kill(worker, signal.SIGSTOP)
        try:
            future = dtorch.from_local([torch.ones(1)] * 3, placements=[Partial()]).get_async()
            with self.assertRaises(TimeoutError):
                future.wait(0.2)
            self.assertFalse(future.done())
        finally:
            os.kill(worker, signal.SIGCONT)
        self.assertEqual(future.get(LIMIT).item(), 3)

    def test_implicit_redistribution_can_be_switched_off_and_is_explained(self):
        a, b = torch.randn(6, 5), torch.randn(5, 4)
        x, y = (distribute_tensor(each, placements=[Shard(0)]) for each in (a, b))
        with dtorch.communications() as log:
            product = x @ y
        self.near(product, a @ b)
        self.assertEqual([(moved.operator, moved.count) for moved in log], [("aten::mm", 1)])
        self.assertEqual(log.collectives, {"all_gather": 1})
        self.assertIn("distributed_tensor_test.py", log[0].site)
        with dtorch.explicit_redistribution():
            with self.assertRaisesRegex(RuntimeError, "S\\(0\\)"):
                (x @ y).cpu()
            with dtorch.communications() as log:
                product = x @ y.redistribute([Replicate()])
            self.near(product, a @ b)
            self.assertEqual([moved.operator for moved in log], ["redistribute"])
        explanation = dtorch.explain(torch.ops.aten.mm.default, x, y)
        self.assertIsNone(explanation.choice)
        self.assertEqual(explanation.candidates[0].redistributions[0].collectives, ["all_gather"])

    def test_a_gradient_comes_to_its_leaf_once_before_its_hooks(self):
        for placement, kind in (Replicate(), "all_reduce"), (Shard(0), "reduce_scatter"):
            host = torch.randn(6, 3, dtype=torch.float64)
            data = torch.randn(9, 6, dtype=torch.float64)
            leaf = distribute_tensor(host, placements=[placement]).requires_grad_()
            seen = []
            leaf.register_hook(lambda gradient: seen.append(gradient.placements))
            x = distribute_tensor(data, placements=[Shard(0)])
            w = leaf.redistribute([Replicate()])
            loss = (x @ w).square().sum() + (x @ w).sum()  # two uses, summed before they are reduced
            with dtorch.communications() as log:
                loss.backward()
            want = host.clone().requires_grad_()
            ((data @ want).square().sum() + (data @ want).sum()).backward()
            self.near(leaf.grad, want.grad)
            self.assertEqual(leaf.grad.placements, [placement])
            self.assertEqual(seen, [[placement]])
            self.assertEqual(log.collectives, {kind: 1})

    def test_leaves_do_not_share_their_gradients(self):
        host = torch.arange(1.0, 5.0)
        a, b = (host.to("dtorch").requires_grad_() for _ in range(2))
        for _ in range(2):
            ((a + b) ** 2).sum().backward()
        self.near(a.grad, 8 * host)
        a.grad.mul_(0)
        self.near(b.grad, 8 * host)

    def test_a_hook_that_comes_late_sees_the_gradient_in_its_place(self):
        data = distribute_tensor(torch.ones(6, 3), placements=[Shard(0)])
        leaf = torch.ones(3, 2, device="dtorch").requires_grad_()
        loss = (data @ leaf).sum()
        seen = []
        leaf.register_hook(lambda gradient: seen.append(gradient.placements))
        loss.backward()
        self.assertEqual((seen, leaf.grad.placements), ([[Replicate()]], [Replicate()]))

    def test_a_default_mesh_that_cannot_be_is_none(self):
        with self.assertRaises(dtorch.Error), DeviceMesh("dtorch", [7]):
            pass
        self.assertEqual(dtorch.default_mesh().ranks, (0, 1, 2))
        self.assertEqual(torch.ones(2, device="dtorch").device_mesh.ranks, (0, 1, 2))

    def test_calls_have_a_time_limit(self):
        x = torch.ones(4, device="dtorch")
        worker = self.daemon.status()["workers"][0]["pid"]
        os.kill(worker, signal.SIGSTOP)
        try:
            with self.session.limited(0.1):
                late = x + 1
            with self.assertRaisesRegex(RuntimeError, "time limit"):
                late.cpu()
            with self.session.limited(0.1):
                with self.assertRaises(KeyError), self.session.limited(30):
                    raise KeyError
                late = x + 1
            with self.assertRaisesRegex(RuntimeError, "time limit"):
                late.cpu()
        finally:
            os.kill(worker, signal.SIGCONT)
        self.near(x + 1, torch.full((4,), 2.0))

    def test_redistribution_is_differentiable(self):
        data = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        for source in Replicate(), Shard(0), Shard(1):
            for target in Replicate(), Shard(0), Shard(1), Partial():
                def program(host):
                    x = host.to("dtorch").redistribute([source])
                    return (x * x).redistribute([target]).sin().cpu()

                torch.autograd.gradcheck(program, data)
        x = torch.ones(4, device="dtorch")
        w = torch.ones(4, device="dtorch").requires_grad_()
        y = w * 2
        z = y.redistribute([Shard(0)])
        with torch.no_grad():
            y.add_(1)  # what was redistributed is not needed any more
        (z * x).sum().backward()
        self.near(w.grad, torch.full((4,), 2.0))
        torch.autograd.gradgradcheck(lambda host: (host.to("dtorch").redistribute([Shard(0)]) ** 3).full_tensor().cpu(), data)


class CollectiveTest(Case):
    """The pairs of collectives, forward and backward."""

    def pairs(self, group):
        sharded = [Shard(0)]

        def partial(x):
            """Summands: each worker has some rows, the others' are zeros."""
            weights = distribute_tensor(torch.eye(5, dtype=torch.float64), placements=sharded)
            return torch.mm(weights.t(), x.redistribute(sharded))

        return {
            "all_reduce": (lambda x: collectives.all_reduce(partial(x), group), Replicate()),
            "identity": (lambda x: collectives.identity(x, group), Replicate()),
            "all_gather": (lambda x: collectives.all_gather(x.redistribute(sharded), group), Replicate()),
            "reduce_scatter": (lambda x: collectives.reduce_scatter(partial(x), 1, group), Shard(1)),
            "all_to_all": (lambda x: collectives.all_to_all(x.redistribute(sharded), 1, group), Shard(1)),
            "broadcast": (lambda x: collectives.broadcast(collectives.reduce(x, 1), group), Replicate()),
            "reduce": (lambda x: collectives.reduce(partial(x), 0), Replicate()),
        }

    def test_pairs_pass_gradcheck_on_uneven_parts(self):
        group = init_device_mesh("dtorch", self.workers)
        host = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        for name, (function, placement) in self.pairs(group).items():
            with self.subTest(name):
                self.near(function(host.detach().to("dtorch")), host)
                self.assertEqual(function(host.detach().to("dtorch")).placements, [placement])
                torch.autograd.gradcheck(lambda x: function(x.to("dtorch")).sin().cpu(), host)

    def test_the_way_back_is_the_other_collective(self):
        group = init_device_mesh("dtorch", self.workers)
        data = distribute_tensor(torch.randn(6, 4), placements=[Shard(0)])
        sharded = torch.randn(4, 6).to("dtorch").redistribute([Shard(0)]).requires_grad_()
        whole = torch.randn(4, 6, device="dtorch").requires_grad_()
        for leaf, function, kind in ((sharded, collectives.all_gather, "reduce_scatter"),
                                     (whole, collectives.identity, "all_reduce")):
            loss = (data @ function(leaf, group)).sum()
            with dtorch.communications() as log:
                loss.backward()
            self.assertEqual(log.collectives, {kind: 1})


class CollectiveTestOf3(CollectiveTest):
    workers = 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 8)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens):
        x = self.embed(tokens)
        return x + self.down(torch.relu(self.up(self.norm(x)))) * self.scale


class ParallelTest(Case):
    plans = {
        "tensor": {"embed": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()},
        "sequence": {"embed": RowwiseParallel(output_layouts=Shard(1)), "norm": SequenceParallel(),
                     "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))},
        "columns": {"embed": ColwiseParallel(output_layouts=Replicate()), "up": ColwiseParallel(output_layouts=Replicate()),
                    "down": ColwiseParallel(output_layouts=Replicate())},
    }

    def test_a_plan_changes_no_result(self):
        torch.manual_seed(0)
        reference = Block()
        tokens = torch.randint(0, 11, (4, 6))
        reference(tokens).square().sum().backward()
        mesh = init_device_mesh("dtorch", (self.workers,), mesh_dim_names=("tp",))
        for name, plan in self.plans.items():
            with self.subTest(name):
                block = parallelize_module(copy.deepcopy(reference), mesh["tp"], plan)
                out = block(tokens.to("dtorch"))
                self.near(out, reference(tokens), rtol=1e-5, atol=1e-5)
                out.square().sum().backward()
                for (where, got), want in zip(block.named_parameters(), reference.parameters()):
                    self.near(got.grad, want.grad, rtol=1e-4, atol=1e-5)
                    self.assertEqual(got.grad.placements, got.placements, where)
        self.assertEqual(block.up.weight.placements, [Shard(0)])
        self.assertEqual(block.scale.placements, [Replicate()])

    def test_tensor_parallel_moves_what_it_must(self):
        mesh = init_device_mesh("dtorch", (self.workers,), mesh_dim_names=("tp",))
        mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        x = torch.randn(4, 8, device="dtorch").requires_grad_()
        with dtorch.communications() as log:
            mlp(x).sum().backward()
        # One all_reduce forward of the output, one backward of the input's gradient.
        self.assertEqual(log.collectives, {"all_reduce": 2})
        each = 2 * (self.workers - 1) / self.workers * 4
        self.assertEqual(log.bytes, each * (4 * 8 + 4 * 8))

    def test_inputs_and_outputs_are_prepared(self):
        module = parallelize_module(nn.Identity(), None, PrepareModuleInput(desired_input_layouts=Shard(0)))
        self.assertEqual(module(torch.ones(4, device="dtorch")).placements, [Shard(0)])
        module = parallelize_module(nn.Identity(), None, PrepareModuleOutput(desired_output_layouts=(Shard(0),)))
        self.assertEqual(module(torch.ones(4, device="dtorch")).placements, [Shard(0)])

    def test_shared_parameters_stay_shared(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
                self.out.weight = self.embed.weight

        tied = parallelize_module(Tied(), None, {"embed": RowwiseParallel()})
        self.assertIs(tied.embed.weight, tied.out.weight)
        self.assertEqual(tied.out.weight.placements, [Shard(0)])
        with self.assertRaisesRegex(ValueError, "share"):
            parallelize_module(Tied(), None, {"embed": ColwiseParallel(), "out": ColwiseParallel()})
        with self.assertRaisesRegex(ValueError, "names no submodule"):
            parallelize_module(Tied(), None, {"nothing": RowwiseParallel()})


class TransferTest(Case):
    def test_whole_states_go_to_and_fro_with_bars(self):
        torch.manual_seed(4)
        host = Block()
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            there = parallelize_module(copy.deepcopy(host), None, ParallelTest.plans["tensor"], progress=True)
            state = dtorch.state_dict(there, progress=True)
        self.assertIn("upload: 100%", shown.getvalue())
        self.assertIn("download: 100%", shown.getvalue())
        self.assertEqual(list(state), list(host.state_dict()))
        for name, value in host.state_dict().items():
            self.assertTrue(torch.equal(state[name], value), name)
        other = Block()
        with contextlib.redirect_stderr(shown):
            self.assertEqual(dtorch.load_state_dict(there, other.state_dict(), progress=True), ([], []))
        self.assertEqual(there.up.weight.placements, [Shard(0)])
        self.near(there.up.weight, other.up.weight)
        before = dtorch.state_dict(there)
        wrong = {**other.state_dict(), "up.weight": torch.zeros(3), "more": torch.zeros(1)}
        del wrong["norm.bias"]
        for fault in "norm.bias", "more", "up.weight":
            with self.assertRaisesRegex(RuntimeError, fault):
                dtorch.load_state_dict(there, wrong)
        self.assertTrue(torch.equal(before["up.weight"], dtorch.state_dict(there)["up.weight"]))


class StubsTest(unittest.TestCase):
    def test_the_stubs_tell_what_is_there(self):
        stubs = ast.parse(pathlib.Path(dtorch.__file__).with_suffix(".pyi").read_text())
        told = {node.name: node for node in stubs.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        imported = {each.asname for node in stubs.body if isinstance(node, ast.ImportFrom) for each in node.names
                    if each.asname}
        self.assertEqual(sorted({*told, *imported}), sorted(dtorch.__all__))
        for name, node in told.items():
            there = getattr(dtorch, name)
            if isinstance(node, ast.FunctionDef):
                self.compare(node, there)
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef):
                    self.assertTrue(hasattr(there, member.name), f"{name}.{member.name}")
                    self.compare(member, getattr(there, member.name))

    def compare(self, node, function):
        """Names of parameters, as far as the function tells them."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return
        names = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        told = [each.arg for each in node.args.args + node.args.kwonlyargs]
        if told[:1] == ["self"] and names[:1] != ["self"]:
            told = told[1:]
        if not any(each.kind == each.VAR_POSITIONAL for each in parameters):
            self.assertEqual(told, names, node.name)


class StartTest(unittest.TestCase):
    def test_a_daemon_of_ones_own_ends_with_its_block(self):
        with dtorch.start(2, workers_threads=1) as session:
            self.assertEqual((torch.ones(3, device="dtorch") + 1).sum().item(), 6)
            pid = session.daemon_pid
            self.assertIn("2 workers", repr(session))
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)
        with self.assertRaisesRegex(RuntimeError, "dtorch.start"):
            torch.ones(3, device="dtorch")
        with self.assertRaisesRegex(RuntimeError, "workers.count"):
            dtorch.start(workers=0)

    def ends_well(self, program):
        """In a process of its own, since it forks."""
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=3 * LIMIT)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_a_forked_child_leaves_its_parents_daemon_alone(self):
        self.ends_well("""if True:
            import os, signal, sys, torch, dtorch
            with dtorch.start(1) as session:
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    sys.exit(0)  # leaves the block, and does what a program's end does
                assert os.waitpid(child, 0)[1] == 0
                assert (torch.ones(3, device="dtorch") + 1).sum().item() == 6
                assert dtorch.client.connect(session._daemon.address).world_size == 1
        """)

    def test_a_child_may_start_its_own_where_its_parent_has_none(self):
        self.ends_well("""if True:
            import os, signal, torch, dtorch
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                with dtorch.start(1):
                    torch.manual_seed(7)
                    there = torch.rand(3, device="dtorch").cpu()
                torch.manual_seed(7)
                assert torch.equal(there, torch.rand(3))
            else:
                assert os.waitpid(child, 0)[1] == 0
        """)

    def test_a_session_may_end_within_a_meshs_block(self):
        session = dtorch.start(2)
        with dtorch.DeviceMesh("dtorch", [1]):
            session.close()
        with dtorch.start(2):
            self.assertEqual(dtorch.default_mesh().ranks, (0, 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
