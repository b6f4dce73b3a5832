"""Collectives in CUDA graphs."""
import torch
import torch.distributed as dist
from harness import case
from results import compare

REPLAYS = 100


def capture(work):
    """A graph of `work`, which has run once before: connections are made outside of graphs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


@case("graph of all_reduce, replayed", cuda=True)
def all_reduce(world):
    for count in (4, 5000, 2**20):
        source = torch.zeros(count, device=world.device)
        result = torch.zeros(count, device=world.device)

        def work():
            result.copy_(source)
            result.add_(1)
            dist.all_reduce(result)
            result.mul_(2)
        graph = capture(work)
        ranks = world.size * (world.size - 1) // 2
        for number in range(REPLAYS):
            source.fill_(world.rank + number)
            graph.replay()
            if number % 10 == 9:
                compare(result, torch.full((count,), 2 * (ranks + world.size * (number + 1))), f"{count}, replay {number}")


@case("graph of several collectives, replayed", cuda=True, seconds=60)
def several(world):
    size, count = world.size, 1000
    source = torch.zeros(size * count, device=world.device)
    gathered = torch.zeros(size * size * count, device=world.device)
    scattered = torch.zeros(count, device=world.device)
    swapped = torch.zeros(size * count, device=world.device)
    cast = torch.zeros(size * count, device=world.device)
    received = torch.zeros(count, device=world.device)

    def work():
        dist.all_gather_into_tensor(gathered, source)
        dist.reduce_scatter_tensor(scattered, source)
        dist.all_to_all_single(swapped, source)
        cast.copy_(source)
        dist.broadcast(cast, 0)
        if size > 1:
            following, preceding = (world.rank + 1) % size, (world.rank - 1) % size
            for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, source[:count], following),
                                                   dist.P2POp(dist.irecv, received, preceding)]):
                request.wait()
    graph = capture(work)

    def input_of(rank, number):
        return torch.arange(size * count) % 100 + 10 * rank + number
    for number in range(REPLAYS):
        source.copy_(input_of(world.rank, number))
        graph.replay()
        if number % 25 != 24:
            continue
        inputs = [input_of(rank, number) for rank in range(size)]
        mine = slice(world.rank * count, (world.rank + 1) * count)
        compare(gathered, torch.cat(inputs), f"all_gather, replay {number}")
        compare(scattered, torch.stack(inputs).sum(0)[mine], f"reduce_scatter, replay {number}")
        compare(swapped, torch.cat([i[mine] for i in inputs]), f"all_to_all, replay {number}")
        compare(cast, inputs[0], f"broadcast, replay {number}")
        if size > 1:
            compare(received, inputs[(world.rank - 1) % size][:count], f"recv, replay {number}")


@case("graphs between eager calls", cuda=True)
def mixed(world):
    value = torch.ones(3000, device=world.device)
    graphs = [capture(lambda: dist.all_reduce(value, dist.ReduceOp.MAX)) for _ in range(2)]
    for number in range(20):
        value.fill_(world.rank + number)
        graphs[number % 2].replay()
        compare(value, torch.full((3000,), world.size - 1 + number), f"replay {number}")
        eager = torch.full((3000,), float(number), device=world.device)
        dist.all_reduce(eager)
        compare(eager, torch.full((3000,), world.size * number), f"eager {number}")


@case("group that is destroyed after its graph", cuda=True)
def destroyed(world):
    group = dist.new_group(list(range(world.size)))
    value = torch.ones(100, device=world.device)
    graph = capture(lambda: dist.all_reduce(value, group=group))
    value.fill_(1)
    graph.replay()
    compare(value, torch.full((100,), world.size), "replay")
    del graph
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    check = torch.ones(5, device=world.device)
    dist.all_reduce(check)
    compare(check, torch.full((5,), world.size), "the default group, after it")
