"""PyTorch programs on the device `dtorch`, against the same on the CPU. Argument: the folder of the programs."""
import copy
import gc
import io
import os
import pathlib
import signal
import sys
import threading
import unittest

import torch
import torch.utils.checkpoint
from torch import nn

import dtorch
from daemon import Daemon
from dtorch import Replicate, Shard

BIN = pathlib.Path(sys.argv.pop(1)).resolve()


def tensors_of(daemon):
    return daemon.status()["sessions"][0]["tensors"]


class DeviceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN, "--workers.count", "2")
        cls.addClassCleanup(cls.daemon.stop)  # also when what follows fails
        assert dtorch.connect(cls.daemon.socket).world_size == 2
        cls.addClassCleanup(dtorch.disconnect)

    def equal(self, got, want):
        self.assertEqual(got.device.type, "dtorch")
        self.assertEqual((got.shape, got.dtype, got.stride()), (want.shape, want.dtype, want.stride()))
        self.assertTrue(torch.equal(got.cpu(), want), f"{got.cpu()} where {want} was wanted")

    def test_values_cross_both_ways(self):
        x = torch.randn(3, 4, 5)
        for host in (x, x.t() if x.dim() == 2 else x.transpose(0, 2), x[:, ::2], x.to(torch.bfloat16), x > 0, x[0, 0, 0],
                     torch.randn(0, 3), torch.arange(5), x.to(memory_format=torch.contiguous_format).expand(2, 3, 4, 5)):
            there = host.to("dtorch")
            self.assertEqual((there.shape, there.dtype), (host.shape, host.dtype))
            self.assertTrue(torch.equal(there.cpu(), host))
        self.assertEqual(x.to("dtorch", torch.float64).dtype, torch.float64)
        back = torch.zeros(3, 4, 5)
        back.copy_(x.to("dtorch"))
        self.assertTrue(torch.equal(back, x))

    def test_factories_and_numbers(self):
        self.equal(torch.ones(2, 3, device="dtorch"), torch.ones(2, 3))
        self.equal(torch.arange(7, device="dtorch"), torch.arange(7))
        self.equal(torch.full((2,), 3.5, device="dtorch", dtype=torch.float64), torch.full((2,), 3.5, dtype=torch.float64))
        self.equal(torch.tensor([1, 2], device="dtorch"), torch.tensor([1, 2]))
        x = torch.tensor([1.5, -2.0], device="dtorch")
        self.assertEqual(x.sum().item(), -0.5)
        self.assertEqual(x.tolist(), [1.5, -2.0])
        self.assertEqual(float(x[0]), 1.5)
        self.assertTrue(bool((x > 1).any()))
        self.assertTrue(torch.equal(x.nonzero().cpu(), torch.tensor([[0], [1]])))
        self.assertTrue(torch.equal(x[x > 0].cpu(), torch.tensor([1.5])))
        self.assertIn("1.5000", repr(x))
        self.assertIn("dtorch", repr(x))

    def test_scalars_promote_as_numbers(self):
        for dtype in torch.int32, torch.float16, torch.float64, torch.bool:
            host = torch.ones(3).to(dtype)
            x = host.to("dtorch")
            for program in (lambda t: t + 1, lambda t: t * 2.5, lambda t: t + True, lambda t: 3 - t.to(torch.int32),
                            lambda t: t + torch.tensor(2.0), lambda t: torch.tensor(2) * t):
                self.equal(program(x), program(host))

    def test_views_share_memory(self):
        def program(x):
            x[1:, 0] = 7
            x.t()[2].add_(1)
            x.view(-1)[::5] *= 2
            y = x.unsqueeze(0).squeeze_(0).transpose_(0, 1)
            y.mul_(2)
            x.diagonal().zero_()
            return x, y, x.select(1, 2), x.reshape(2, 6).chunk(2, 1)[1]

        host = torch.arange(12.0).reshape(3, 4)
        for got, want in zip(program(host.to("dtorch")), program(host.clone())):
            self.equal(got, want)

    def test_out_arguments(self):
        x = torch.arange(4.0)
        out = torch.empty(4, device="dtorch")
        torch.add(x.to("dtorch"), 1, out=out)
        self.equal(out, x + 1)

    def test_training_is_that_of_one_process(self):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
        data, target = torch.randn(32, 8), torch.randint(0, 4, (32,))
        for optimizer in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01),
                          lambda p: torch.optim.Adam(p, lr=0.01, foreach=True)):
            losses = {}
            for device in "cpu", "dtorch":
                own = copy.deepcopy(model).to(device)
                steps = optimizer(own.parameters())
                losses[device] = []
                for _ in range(5):
                    steps.zero_grad()
                    loss = nn.functional.cross_entropy(own(data.to(device)), target.to(device))
                    loss.backward()
                    nn.utils.clip_grad_norm_(own.parameters(), 1.0)
                    steps.step()
                    losses[device].append(loss.item())
            torch.testing.assert_close(losses["dtorch"], losses["cpu"], rtol=1e-6, atol=1e-7)
            self.assertLess(losses["cpu"][-1], losses["cpu"][0])

    def test_random_numbers_are_those_of_one_process(self):
        def program(device):
            torch.manual_seed(11)
            return [torch.rand(5, device=device), torch.randn(3, 2, device=device),
                    nn.functional.dropout(torch.ones(20, device=device), 0.5)]

        for got, want in zip(program("dtorch"), program("cpu")):
            self.equal(got, want)

    def test_generators_draw_as_those_of_one_process(self):
        here, there = torch.Generator().manual_seed(5), torch.Generator("dtorch").manual_seed(5)
        torch.manual_seed(11)
        want = [torch.randn(3, generator=here), torch.rand(4), torch.randperm(7, generator=here)]
        torch.manual_seed(11)
        got = [torch.randn(3, generator=there, device="dtorch"), torch.rand(4, device="dtorch"),
               torch.randperm(7, generator=there, device="dtorch")]
        for each in zip(got, want):
            self.equal(*each)
        self.assertTrue(torch.equal(there.get_state(), here.get_state()))
        self.equal(torch.rand(3, generator=there.clone_state(), device="dtorch"), torch.rand(3, generator=here))
        state = torch.dtorch.get_rng_state()
        first = torch.rand(3, device="dtorch")
        torch.dtorch.set_rng_state(state.cpu())
        self.equal(torch.rand(3, device="dtorch"), first.cpu())
        with self.assertRaisesRegex(RuntimeError, "generator"):
            torch.rand(3, generator=here, device="dtorch")

    def test_autocast_and_scaler(self):
        model = nn.Linear(8, 4).to("dtorch")
        x = torch.randn(3, 8, device="dtorch")
        with torch.autocast("dtorch"):
            y = model(x)
            loss = nn.functional.cross_entropy(y, torch.zeros(3, dtype=torch.long, device="dtorch"))
        self.assertEqual((y.dtype, loss.dtype), (torch.bfloat16, torch.float32))
        host = copy.deepcopy(model).cpu()
        with torch.autocast("cpu"):
            want = host(x.cpu())
        self.equal(y, want)
        scaler = torch.amp.GradScaler("dtorch", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        gradient = model.weight.grad.cpu()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(model.weight.cpu(), before.cpu() - 0.1 * gradient)
        optimizer.zero_grad()
        scaler.scale(model(x * float("inf")).sum()).backward()
        before = model.weight.cpu()
        scaler.step(optimizer)  # skipped
        scaler.update()
        self.assertEqual(scaler.get_scale(), 512.0)
        self.assertTrue(torch.equal(model.weight.cpu(), before))

    def test_activations_are_computed_again(self):
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU()).to("dtorch")
        gradients = []
        for reentrant in None, False, True:
            x = torch.ones(4, 8, device="dtorch", requires_grad=True)
            torch.manual_seed(3)
            y = model(x) if reentrant is None else torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
            torch.rand(5, device="dtorch")
            y.sum().backward()
            gradients.append(x.grad.cpu())
        self.assertTrue(torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2]))

    def test_compiled_programs(self):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to("dtorch")
        x = torch.randn(4, 3, 8, device="dtorch")
        want = model(x)
        want.sum().backward()
        gradient = model[0].weight.grad.cpu()
        for backend in "eager", "aot_eager":
            model.zero_grad()
            got = torch.compile(model, backend=backend, fullgraph=True)(x)
            got.sum().backward()
            torch.testing.assert_close(got.cpu(), want.cpu())
            torch.testing.assert_close(model[0].weight.grad.cpu(), gradient)
        split = dtorch.distribute_tensor(torch.arange(6.0), placements=[Shard(0)])
        self.assertEqual(torch.compile(lambda t: t * 2, backend="aot_eager")(split).placements, [Shard(0)])
        with self.assertRaisesRegex(Exception, "Device dtorch not supported"):
            torch.compile(model)(x)

    def test_hooks_and_higher_derivatives(self):
        model = nn.Linear(4, 3).to("dtorch")
        seen = []
        model.register_forward_hook(lambda module, inputs, output: seen.append("forward"))
        model.register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward"))
        model.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.shape))
        model(torch.ones(2, 4, device="dtorch", requires_grad=True)).sum().backward()
        self.assertEqual(sorted(map(str, seen)), ["backward", "forward", "torch.Size([3, 4])"])

        def program(x, w):
            y = nn.functional.linear(x, w).tanh() @ w.t()
            gradient, = torch.autograd.grad(y.sum(), x, create_graph=True)
            return torch.autograd.grad(gradient.square().sum(), (x, w))

        x, w = torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
        want = program(x.requires_grad_(), w.requires_grad_())
        got = program(x.detach().to("dtorch").requires_grad_(), w.detach().to("dtorch").requires_grad_())
        for each in zip(got, want):
            torch.testing.assert_close(each[0].cpu(), each[1])
        of_function = torch.func.grad(lambda w: nn.functional.linear(x.detach().to("dtorch"), w).sin().sum())
        torch.testing.assert_close(of_function(w.detach().to("dtorch")).cpu(), torch.func.grad(
            lambda w: nn.functional.linear(x.detach(), w).sin().sum())(w.detach()))

    def test_gradients_through_views_that_are_written_to(self):
        def rows(x):
            y = x.clone()
            y[2] = 0
            y[:, 1:].mul_(2)
            v = y[1][1:]
            v.mul_(3)
            y.t()[1].mul_(5)
            y.view(-1)[3:7].mul_(2)
            return y

        def buffer(x):
            made = torch.zeros(5, 4, device=x.device)
            made[1] = x[0] * 2
            made[2:] = x[1:] * 3
            return made

        def columns(x):
            y = x.clone()
            y[:, 1:].mul_(2)
            y[:, 0] = y[:, 3] * 3
            return y

        host = torch.arange(1.0, 17).reshape(4, 4)
        weights = torch.arange(1.0, 21).reshape(5, 4)
        for program, placement in ((rows, Replicate()), (buffer, Replicate()), (columns, Replicate()), (columns, Shard(0))):
            gradients = []
            for place in (lambda t: t.clone(), lambda t: dtorch.distribute_tensor(t, placements=[placement])):
                x = place(host).requires_grad_()
                y = program(x)
                (y * place(weights[:y.shape[0]])).sum().backward()
                gradients.append((y.detach().cpu(), x.grad.cpu()))
            torch.testing.assert_close(gradients[1], gradients[0])

        def two_views(v, w):
            v.mul_(2)
            return v + w

        for program in two_views, torch.compile(two_views, backend="aot_eager"):
            for first, second in (slice(1, 2), slice(2, 3)), (slice(1, 3), slice(2, 3)):
                results = []
                for device in "cpu", "dtorch":
                    z = host.to(device).clone()
                    made = program(z[first], z[second])
                    results.append((z.cpu(), made.cpu()))
                torch.testing.assert_close(results[1], results[0])
        z = host.to("dtorch")
        self.assertEqual((z[2].storage_offset(), z[1:, 2:][1].storage_offset()), (8, 10))

    def test_complex_gradients(self):
        host = [torch.randn(2, 3, 4, dtype=torch.complex64), torch.randn(5, 4, dtype=torch.complex64),
                torch.randn(2, 4, 3, dtype=torch.complex64)]
        results = []
        for device in "cpu", "dtorch":
            x, w, y = (each.detach().to(device).requires_grad_() for each in host)
            (nn.functional.linear(x, w).abs().sum() + (x @ y).abs().sum()
             + torch.tensordot(x, y, ([1, 2], [2, 1])).abs().sum()).backward()
            results.append([each.grad.cpu() for each in (x, w, y)])
        torch.testing.assert_close(results[1], results[0])

    def test_layers_are_those_of_one_process(self):
        torch.manual_seed(2)
        images, sequence = torch.randn(4, 3, 8, 8), torch.randn(2, 5, 8)
        for module, data in ((nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2)), images),
                             (nn.GroupNorm(1, 3), images), (nn.AdaptiveAvgPool2d(2), images),
                             (nn.LSTM(8, 6, batch_first=True), sequence), (nn.GRU(8, 6, batch_first=True), sequence),
                             (nn.RMSNorm(8), sequence), (nn.MultiheadAttention(8, 2, batch_first=True), [sequence] * 3),
                             (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), sequence)):
            there = copy.deepcopy(module).to("dtorch")
            inputs = data if isinstance(data, list) else [data]
            with self.subTest(type(module).__name__):
                results = []
                for each, device in (module, "cpu"), (there, "dtorch"):
                    out = each(*(value.to(device).requires_grad_() for value in inputs))
                    out = out[0] if isinstance(out, tuple) else out
                    out.square().sum().backward()
                    results.append([out.detach().cpu(), *(p.grad.cpu() for p in each.parameters()),
                                    *(b.cpu() for b in each.buffers())])
                torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)

    def test_layers_take_inputs_split_along_any_dimension(self):
        torch.manual_seed(3)
        host = torch.randn(4, 6, 8)
        for module in (nn.MultiheadAttention(8, 2, batch_first=True), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
                       nn.LSTM(8, 6, batch_first=True)):
            arguments = 3 if isinstance(module, nn.MultiheadAttention) else 1
            there = copy.deepcopy(module).to("dtorch")
            for dim in range(3):
                with self.subTest(type(module).__name__, dim=dim):
                    results = []
                    for each, x in (module, host.clone()), (there, dtorch.distribute_tensor(host, placements=[Shard(dim)])):
                        x.requires_grad_()
                        each.zero_grad()
                        out = each(*[x] * arguments)
                        out = out[0] if isinstance(out, tuple) else out
                        out.square().sum().backward()
                        results.append([out.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in each.parameters())])
                    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)

    def test_a_data_loaders_children(self):
        numbers = torch.utils.data.TensorDataset(torch.arange(20.0).reshape(10, 2))
        loader = torch.utils.data.DataLoader(numbers, batch_size=2, num_workers=2)
        self.assertEqual(sum(batch.to("dtorch").sum().item() for batch, in loader), 190)

        class Touches(torch.utils.data.Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                return torch.ones(1, device="dtorch")

        with self.assertRaisesRegex(RuntimeError, "forked"):
            list(torch.utils.data.DataLoader(Touches(), num_workers=1))
        self.equal(torch.ones(2, device="dtorch") + 1, torch.full((2,), 2.0))

    def test_rows_of_split_tensors_are_read_and_not_written(self):
        host = torch.arange(12.0).reshape(4, 3)
        x = dtorch.distribute_tensor(host, placements=[Shard(0)])
        self.equal(x[1], host[1])
        self.equal(x[1:3, 0], host[1:3, 0])
        self.equal(x.flatten(), host.flatten())
        self.assertIn("11.", repr(x))
        x[:, 1] = 7
        host[:, 1] = 7
        self.equal(x, host)
        x[1].add_(1)
        with self.assertRaisesRegex(RuntimeError, "write to the tensor itself"):
            x.cpu()  # as after any write that was refused

    def test_copies_and_files(self):
        x = torch.arange(3.0, device="dtorch")
        twin = copy.deepcopy(x)
        twin += 1
        self.equal(x, torch.arange(3.0))
        file = io.BytesIO()
        torch.save({"x": x}, file)
        file.seek(0)
        self.equal(torch.load(file)["x"], torch.arange(3.0))
        file.seek(0)
        self.assertEqual(torch.load(file, map_location="cpu")["x"].device.type, "cpu")

    def test_a_sharded_tensor_stays_sharded(self):
        host = torch.arange(12.0).reshape(4, 3)
        x = dtorch.distribute_tensor(host, placements=[Shard(0)])
        y = torch.relu(x * 2 - 5)
        self.assertEqual(y.placements, [Shard(0)])
        self.assertTrue(torch.equal(y.to_local(1), torch.relu(host * 2 - 5)[2:]))
        self.equal(y, torch.relu(host * 2 - 5))
        self.assertEqual(y.redistribute([Replicate()]).placements, [Replicate()])

    def test_errors_name_the_line(self):
        x = torch.ones(2, 2, device="dtorch")
        with self.assertRaisesRegex(RuntimeError, "device_test.py:.*mat1 and mat2 shapes"):
            x @ torch.ones(3, 3, device="dtorch")
        with self.assertRaisesRegex(RuntimeError, "not positive-definite"):
            torch.linalg.cholesky(torch.zeros(2, 2, device="dtorch"))
        index = torch.tensor([5], device="dtorch")
        torch.gather(torch.ones(3, device="dtorch"), 0, torch.tensor([1], device="dtorch"))
        line = sys._getframe().f_lineno + 1
        late = torch.gather(torch.ones(3, device="dtorch"), 0, index)
        with self.assertRaisesRegex(RuntimeError, rf"device_test.py:{line}"):
            late.cpu()
        with self.assertRaisesRegex(RuntimeError, "is on the device cpu, others are on dtorch"):
            x + torch.ones(2, 2)

    def test_tensors_are_released(self):
        gc.collect()
        torch.dtorch.synchronize()
        before = tensors_of(self.daemon)
        x = torch.ones(10, device="dtorch", requires_grad=True)
        for _ in range(100):
            (x * 2).sum().backward()
        del x
        gc.collect()
        torch.dtorch.synchronize()
        self.assertEqual(tensors_of(self.daemon), before)

    def test_a_forked_child_has_no_device(self):
        x = torch.ones(2, device="dtorch")
        ends = threading.Event()

        def work():  # whatever this thread holds at the moment of a fork is held for ever in the child
            generator = torch.Generator("dtorch")
            while not ends.is_set():
                torch.rand(3, device="dtorch", generator=generator) + x.cpu().to("dtorch").sum()
                generator.get_state()

        busy = threading.Thread(target=work)
        busy.start()
        try:
            for _ in range(10):
                self.is_refused_in_a_child(lambda: x + 1)
                self.is_refused_in_a_child(lambda: torch.ones(3).to("dtorch"))
                self.is_refused_in_a_child(lambda: x.cpu())
                self.is_refused_in_a_child(lambda: torch.rand(3, device="dtorch"))
        finally:
            ends.set()
            busy.join()
        self.equal(x + 1, torch.full((2,), 2.0))

    def is_refused_in_a_child(self, program):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                program()
                text = "no error"
            except RuntimeError as error:
                text = str(error)
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        text = os.read(reader, 10_000).decode()
        os.close(reader)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("forked", text)

    def test_a_forked_childs_values_stay(self):
        x = torch.arange(1 << 20, device="dtorch").cpu()  # read where the worker wrote it
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os.read(reader, 1)
            os._exit(0 if torch.equal(x, torch.arange(1 << 20)) else 1)
        del x
        gc.collect()
        for _ in range(4):
            torch.zeros(1 << 20, dtype=torch.int64, device="dtorch").cpu()
        os.write(writer, b".")
        os.close(reader)
        os.close(writer)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
