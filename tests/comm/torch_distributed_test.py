#!/usr/bin/env python3
"""torch.distributed on the dtorch backend, in its own ways of coalescing: the block with and without a device, and batched
sends and receives. Values are compared with PyTorch's in one process."""
import glob
import os
import subprocess
import sys
import tempfile
from datetime import timedelta

RANKS = 3


def value(torch, rank, count):
    return torch.arange(count, dtype=torch.float64).remainder(7) + 10 * rank


def check(torch, what, got, wanted):
    if not torch.equal(got, wanted):
        sys.exit(f"{what}: {got.flatten()[:8]} instead of {wanted.flatten()[:8]}")


def rank_main(folder_of_module, rank, folder):
    import torch
    import torch.distributed as dist

    sys.path.insert(0, folder_of_module)
    import dtorch_c10d

    if rank % 2 == 0:
        dtorch_c10d.install_shared_allocator()
    dist.Backend.register_backend("dtorch", dtorch_c10d.create_backend, devices=["cpu"])
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    dist.init_process_group("dtorch", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    manager = dist.distributed_c10d._coalescing_manager
    cpu = torch.device("cpu")
    for count in (0, 5, 30000):
        alone = [value(torch, r, count) for r in range(RANKS)]
        sum_of_all = torch.stack(alone).sum(0)
        for device in (None, cpu):
            for asynchronous in (False, True):
                tensors = [value(torch, rank, count), value(torch, rank, count) + 1]
                with manager(device=device, async_ops=asynchronous) as block:
                    for tensor in tensors:
                        dist.all_reduce(tensor)
                if asynchronous:
                    block.wait()
                check(torch, "all_reduce", tensors[0], sum_of_all)
                check(torch, "all_reduce", tensors[1], sum_of_all + RANKS)

                outputs = [torch.zeros(RANKS * count, dtype=torch.float64) for _ in range(2)]
                with manager(device=device, async_ops=asynchronous) as block:
                    for i, output in enumerate(outputs):
                        dist.all_gather_into_tensor(output, alone[rank] + i)
                if asynchronous:
                    block.wait()
                for i, output in enumerate(outputs):
                    check(torch, "all_gather_into_tensor", output, torch.cat(alone) + i)

                inputs = [value(torch, rank, RANKS * count) + i for i in range(2)]
                parts = [torch.zeros(count, dtype=torch.float64) for _ in range(2)]
                with manager(device=device, async_ops=asynchronous) as block:
                    for part, whole in zip(parts, inputs):
                        dist.reduce_scatter_tensor(part, whole)
                if asynchronous:
                    block.wait()
                whole = torch.stack([value(torch, r, RANKS * count) for r in range(RANKS)]).sum(0)
                for i, part in enumerate(parts):
                    check(torch, "reduce_scatter_tensor", part, whole.reshape(RANKS, count)[rank] + i * RANKS)

        # Blocks of other calls, which torch.distributed hands on one by one.
        sent, largest = value(torch, rank, count), value(torch, rank, count)
        turned = torch.zeros(RANKS * count, dtype=torch.float64)
        with manager(device=cpu, async_ops=True) as block:
            dist.broadcast(sent, 1, async_op=True)
            dist.all_to_all_single(turned, value(torch, rank, RANKS * count), async_op=True)
            dist.reduce(largest, 0, op=dist.ReduceOp.MAX, async_op=True)
        block.wait()
        check(torch, "broadcast", sent, alone[1])
        pieces = [value(torch, r, RANKS * count).reshape(RANKS, count)[rank] for r in range(RANKS)]
        check(torch, "all_to_all_single", turned, torch.cat(pieces))
        check(torch, "reduce", largest, alone[-1] if rank == 0 else alone[rank])

        right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
        operations, received = [], []
        for i in range(4):
            for peer in (right, left):
                operations.append(dist.P2POp(dist.isend, value(torch, rank, count) + 100 * i, peer, tag=i // 2))
                received.append((torch.zeros(count, dtype=torch.float64), peer, i))
                operations.append(dist.P2POp(dist.irecv, received[-1][0], peer, tag=i // 2))
        works = dist.batch_isend_irecv(operations)
        if len(works) != 1:
            sys.exit(f"batch_isend_irecv made {len(works)} works, not a block")
        works[0].wait()
        for tensor, peer, i in received:
            check(torch, "batch_isend_irecv", tensor, alone[peer] + 100 * i)
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder_of_module = sys.argv[1]
    if len(sys.argv) > 2:
        return rank_main(folder_of_module, int(sys.argv[2]), sys.argv[3])
    if not glob.glob(os.path.join(folder_of_module, "dtorch_c10d*.so")):
        print(f"SKIP: no dtorch_c10d*.so in {folder_of_module}: it needs Python's headers to be built")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, folder_of_module]
        ranks = [subprocess.Popen([*command, str(rank), folder]) for rank in range(RANKS)]
        codes = [rank.wait() for rank in ranks]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
