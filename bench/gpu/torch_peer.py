#!/usr/bin/env python3
"""Times NCCL's collectives as PyTorch calls them, a process a GPU, eagerly or by replaying a graph, and checks the
results. Writes JSON of the same shape as tutti-perf's. Eager figures hold what PyTorch does for each call on the host.
The time of a size is the mean over ranks, as nccl-tests gives it."""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Operation:
    """One collective on buffers of one size in bytes, that of the larger buffer."""

    def __init__(self, collective, size, rank, ranks):
        self.collective, self.rank, self.ranks = collective, rank, ranks
        count = size // 4
        piece = count // ranks
        gathers, scatters = collective == "all_gather", collective == "reduce_scatter"
        whole = piece * ranks if gathers or scatters or collective == "alltoall" else count
        self.input = torch.zeros(piece if gathers else whole, device="cuda")
        self.output = torch.zeros(piece if scatters else whole, device="cuda")

    def call(self):
        if self.collective == "all_gather":
            dist.all_gather_into_tensor(self.output, self.input)
        elif self.collective == "reduce_scatter":
            dist.reduce_scatter_tensor(self.output, self.input)
        elif self.collective == "alltoall":
            dist.all_to_all_single(self.output, self.input)
        elif self.collective == "all_reduce":
            dist.all_reduce(self.output)
        elif self.collective == "broadcast":
            dist.broadcast(self.output, 0)
        else:
            dist.reduce(self.output, 0)

    def fill(self, salt):
        """Element i of rank r is (i + 3 r + salt) mod 251: sums over ranks are exact."""
        for tensor in (self.input, self.output):
            index = torch.arange(tensor.numel(), device="cuda")
            tensor.copy_((index + 3 * self.rank + salt) % 251)

    def expected(self, salt):
        n = self.output.numel()
        index = torch.arange(n, device="cuda")
        value = lambda i, r: ((i + 3 * r + salt) % 251).float()
        if self.collective in ("all_reduce", "reduce", "reduce_scatter"):
            at = index + (self.rank * n if self.collective == "reduce_scatter" else 0)
            total = torch.zeros(n, device="cuda")
            for r in range(self.ranks):
                total += value(at, r)
            return total if self.collective != "reduce" or self.rank == 0 else None
        if self.collective == "broadcast":
            return value(index, 0)
        piece = n // self.ranks
        parts = []
        for r in range(self.ranks):
            at = torch.arange(piece, device="cuda")
            parts.append(value(at + (self.rank * piece if self.collective == "alltoall" else 0), r))
        return torch.cat(parts) if parts else self.output

    def wrong(self, run, salt):
        self.fill(salt)
        torch.cuda.synchronize()
        dist.barrier()
        run()
        torch.cuda.synchronize()
        expected = self.expected(salt)
        return 0 if expected is None else int((self.output != expected).sum().item())


def capture(operation, times):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            operation.call()
    return graph


def measure(operation, options):
    for _ in range(options.warmup + 1):
        operation.call()
    torch.cuda.synchronize()
    graph = capture(operation, options.iterations) if options.mode == "graph" else None
    operation.output.zero_()
    dist.barrier()
    torch.cuda.synchronize()
    operation.call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    if graph:
        for _ in range(options.launches):
            graph.replay()
    else:
        for _ in range(options.iterations):
            operation.call()
    torch.cuda.synchronize()
    took = (time.perf_counter() - start) / options.iterations / (options.launches if graph else 1)
    if not options.check:
        return took * 1e6, 0
    once = capture(operation, 1).replay if graph else operation.call
    return took * 1e6, operation.wrong(once, 1) + operation.wrong(once, 7)


def rank_main(rank, options, port):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.gpus,
                            device_id=torch.device("cuda", rank))
    results = []
    for size in options.sizes:
        operation = Operation(options.collective, size, rank, options.gpus)
        usec, wrong = measure(operation, options)
        sums = torch.tensor([usec, float(wrong)], dtype=torch.float64, device="cuda")
        dist.all_reduce(sums)
        usec, wrong = sums[0].item() / options.gpus, int(sums[1].item())
        results.append({"size": size, "out_of_place": {"time": usec, "nwrong": wrong}})
        del operation
    torch.cuda.synchronize()
    if rank == 0:
        version = ".".join(str(part) for part in torch.cuda.nccl.version())
        with open(options.json, "w") as f:
            json.dump({"status": "ok", "torch": f"{torch.__version__}, NCCL {version}", "results": results}, f)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--collective", required=True,
                        choices=["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall"])
    parser.add_argument("--mode", choices=["eager", "graph"], required=True)
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], required=True)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--check", type=int, default=1)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    mp.spawn(rank_main, args=(options, free_port()), nprocs=options.gpus)


if __name__ == "__main__":
    main()
