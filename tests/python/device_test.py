"""PyTorch programs on the device `dtorch`, against the same on the CPU. Argument: the folder of the programs."""
import copy
import gc
import io
import os
import pathlib
import sys
import unittest

import torch
from torch import nn

import dtorch.device
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
        assert dtorch.device.connect(cls.daemon.socket) == 2
        cls.addClassCleanup(dtorch.device.disconnect)

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
        x = dtorch.device.distribute(host, [Shard(0)])
        y = torch.relu(x * 2 - 5)
        self.assertEqual(dtorch.device.placements(y), "[S(0)]")
        self.assertTrue(torch.equal(dtorch.device.local_part(y, 1), torch.relu(host * 2 - 5)[2:]))
        self.equal(y, torch.relu(host * 2 - 5))
        self.assertEqual(dtorch.device.placements(dtorch.device.redistribute(y, [Replicate()])), "[R]")

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
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                x + 1
                text = "no error"
            except RuntimeError as error:
                text = str(error)
            del x
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        text = os.read(reader, 10_000).decode()
        os.close(reader)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("forked", text)
        self.equal(x + 1, torch.full((2,), 2.0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
