"""The examples of examples/training and examples/digits.py, and what training moves, against PyTorch in one process.
Arguments: the folder of the programs, that of the examples."""
import pathlib
import sys
import unittest

import torch
from torch import nn

import dtorch
from daemon import Daemon
from dtorch import ColwiseParallel, Replicate, RowwiseParallel, Shard, distribute_tensor, init_device_mesh

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
EXAMPLES = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "training")]

import data_parallel  # noqa: E402
import digits  # noqa: E402
import model  # noqa: E402
import sequence_parallel  # noqa: E402
import tensor_parallel  # noqa: E402
import zero1  # noqa: E402
import zero3  # noqa: E402

STEPS = 20
FLOAT = 4  # bytes


def losses_of_one_process():
    torch.manual_seed(0)
    transformer = model.Transformer()
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=3e-3)
    losses = []
    torch.manual_seed(1)
    for tokens, targets in model.batches(STEPS):
        optimizer.zero_grad()
        loss = model.loss_of(transformer, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class ExamplesTest(unittest.TestCase):
    """Losses of 20 steps, dropout among them, are those of one process."""

    def check(self, workers):
        want = torch.tensor(losses_of_one_process())
        self.assertLess(want[-1], want[0])
        daemon = Daemon(BIN, "--workers.count", str(workers))
        self.addCleanup(daemon.stop)
        dtorch.connect(daemon.socket)
        self.addCleanup(dtorch.disconnect)
        for example in data_parallel, tensor_parallel, sequence_parallel, zero1, zero3:
            with self.subTest(example.__name__):
                torch.testing.assert_close(torch.tensor(example.train(workers, STEPS)), want, rtol=1e-5, atol=1e-6)

    def test_on_2_workers(self):
        self.check(2)

    def test_on_4_workers(self):
        self.check(4)

    def test_on_3_workers_parts_are_uneven(self):
        want = torch.tensor(losses_of_one_process())
        daemon = Daemon(BIN, "--workers.count", "3")
        self.addCleanup(daemon.stop)
        dtorch.connect(daemon.socket)
        self.addCleanup(dtorch.disconnect)
        for example in data_parallel, zero1, zero3:
            with self.subTest(example.__name__):
                torch.testing.assert_close(torch.tensor(example.train(3, STEPS)), want, rtol=1e-5, atol=1e-6)

    def test_each_is_short(self):
        for path in [EXAMPLES / "digits.py", *(EXAMPLES / "training").glob("*.py")]:
            self.assertLess(len(path.read_text().splitlines()), 60, path)

    def test_digits_are_learned(self):
        self.assertGreaterEqual(digits.main(), 0.96)


class MovedTest(unittest.TestCase):
    """What a step moves, in closed form: nobody passes by gathering everything."""

    workers = 2
    batch, width, hidden = 8, 16, 32

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN, "--workers.count", str(cls.workers))
        cls.addClassCleanup(cls.daemon.stop)
        dtorch.connect(cls.daemon.socket)
        cls.addClassCleanup(dtorch.disconnect)
        cls.mesh = init_device_mesh("dtorch", (cls.workers,))

    def network(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(self.width, self.hidden), nn.GELU(), nn.Linear(self.hidden, self.width))

    def step(self, network, placements):
        """One of SGD with momentum, after one that has made its state."""
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            x = distribute_tensor(torch.randn(self.batch, self.width), self.mesh, placements)
            with dtorch.communications() as log:
                optimizer.zero_grad()
                loss = network(x).square().sum()
                loss.backward()
                optimizer.step()
        for parameter in network.parameters():
            self.assertEqual(optimizer.state[parameter]["momentum_buffer"].placements, parameter.placements)
            self.assertEqual(parameter.grad.placements, parameter.placements)
        return log

    @property
    def parameters(self):
        return self.width * self.hidden * 2 + self.width + self.hidden

    @property
    def others(self):
        return (self.workers - 1) / self.workers

    def test_data_parallel_reduces_each_gradient_once(self):
        log = self.step(dtorch.distribute_module(self.network(), self.mesh), [Shard(0)])
        self.assertEqual(log.collectives, {"all_reduce": 4})
        self.assertEqual(log.bytes, 2 * self.others * self.parameters * FLOAT)

    def test_tensor_parallel_reduces_each_pairs_output_once(self):
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        log = self.step(dtorch.parallelize_module(self.network(), self.mesh, plan), [Replicate()])
        self.assertEqual(log.collectives, {"all_reduce": 1})
        self.assertEqual(log.bytes, 2 * self.others * self.batch * self.width * FLOAT)

    def test_zero_gathers_each_parameter_and_scatters_its_gradient(self):
        log = self.step(dtorch.fully_shard(self.network(), self.mesh), [Shard(0)])
        self.assertEqual(log.collectives, {"all_gather": 4, "reduce_scatter": 4})
        self.assertEqual(log.bytes, 2 * self.others * self.parameters * FLOAT)

    def test_zero_by_layers_and_as_a_whole_is_the_same(self):
        network = self.network()
        dtorch.fully_shard(network[0], self.mesh)
        log = self.step(dtorch.fully_shard(network, self.mesh), [Shard(0)])
        self.assertEqual(log.collectives, {"all_gather": 4, "reduce_scatter": 4})
        self.assertEqual(len(list(network.parameters())), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
