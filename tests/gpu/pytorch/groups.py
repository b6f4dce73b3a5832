"""Groups of some of the ranks, split groups, groups with options."""
import torch
import torch.distributed as dist
from harness import Skip, Wrong, case
from results import compare


def check_sum(world, group, ranks, what, count=1000):
    """An all_reduce among `ranks`; this rank is one of them."""
    buffer = torch.full((count,), world.rank + 1.0, device=world.device)
    dist.all_reduce(buffer, group=group)
    compare(buffer, torch.full((count,), sum(r + 1 for r in ranks)), what)


@case("new_group")
def new_group(world):
    every = list(range(world.size))
    sets = [every, every[::-1], every[:1], every[-1:], every[::2]]
    for ranks in sets:
        group = dist.new_group(ranks)
        if world.rank in ranks:
            check_sum(world, group, ranks, f"ranks {ranks}")
        dist.barrier()
    check_sum(world, None, every, "all, after them")


@case("group ranks", ranks=2)
def group_ranks(world):
    ranks = [world.size - 1, 0]
    group = dist.new_group(ranks)
    if world.rank not in ranks:
        return
    for root in ranks:
        buffer = torch.full((100,), float(world.rank), device=world.device)
        dist.broadcast(buffer, root, group=group)
        compare(buffer, torch.full((100,), root), f"broadcast from {root}")
    size = dist.get_world_size(group)
    output = torch.empty(size, device=world.device)
    dist.all_gather_into_tensor(output, torch.full((1,), float(world.rank), device=world.device), group=group)
    compare(output, torch.tensor([dist.get_global_rank(group, r) for r in range(size)]), "all_gather_into_tensor")


@case("two groups at the same time")
def two_groups(world):
    every = list(range(world.size))
    first, second = dist.new_group(every), dist.new_group(every)
    for number in range(20):
        a = torch.full((100000,), world.rank + 1.0, device=world.device)
        b = torch.full((100000,), world.rank + 2.0, device=world.device)
        works = [dist.all_reduce(a, group=first, async_op=True), dist.all_reduce(b, group=second, async_op=True)]
        for work in works:
            work.wait()
        total = world.size * (world.size + 1) // 2
        compare(a, torch.full((100000,), total), f"first, {number}")
        compare(b, torch.full((100000,), total + world.size), f"second, {number}")


@case("split_group", cuda=True)
def split_group(world):
    if world.options.init != "eager":
        raise Skip("needs a group that is bound to a device")
    every = list(range(world.size))
    half = max(1, world.size // 2)
    before = world.backend().comm_split_count()
    parts = [part for part in (every[:half], every[half:]) if part]
    group = dist.split_group(split_ranks=parts)
    mine = next(part for part in parts if world.rank in part)
    check_sum(world, group, mine, f"ranks {mine}")
    whole = dist.split_group(split_ranks=[every])
    check_sum(world, whole, every, "all")
    if world.backend().comm_split_count() <= before:
        raise Wrong("the communicator was not split")
    check_sum(world, None, every, "the parent, after it")


@case("groups with options", cuda=True)
def with_options(world):
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas, options.config.max_ctas, options.config.cga_cluster_size = 1, 4, 2
    options.config.split_share = 1
    group = dist.new_group(list(range(world.size)), pg_options=options)
    check_sum(world, group, range(world.size), "4 CTAs", 2**20)


@case("device mesh")
def mesh(world):
    from torch.distributed.device_mesh import init_device_mesh
    shape = (2, world.size // 2) if world.size % 2 == 0 else (1, world.size)
    grid = init_device_mesh(world.device.type, shape, mesh_dim_names=("outer", "inner"))
    rows = torch.arange(world.size).reshape(shape)
    row, column = [int(i[0]) for i in (rows == world.rank).nonzero(as_tuple=True)]
    check_sum(world, grid.get_group("inner"), rows[row].tolist(), "a row")
    check_sum(world, grid.get_group("outer"), rows[:, column].tolist(), "a column")


@case("functional collectives")
def functional(world):
    import torch.distributed._functional_collectives as calls
    group = dist.group.WORLD
    own = torch.full((world.size * 4,), world.rank + 1.0, device=world.device)
    total = world.size * (world.size + 1) // 2
    compare(calls.all_reduce(own, "sum", group) + 0, torch.full((world.size * 4,), total), "all_reduce")
    gathered = calls.all_gather_tensor(own[:4], 0, group) + 0
    compare(gathered, torch.arange(1, world.size + 1).repeat_interleave(4), "all_gather_tensor")
    compare(calls.reduce_scatter_tensor(own, "sum", 0, group) + 0, torch.full((4,), total), "reduce_scatter_tensor")
    swapped = calls.all_to_all_single(own, None, None, group) + 0
    compare(swapped, torch.arange(1, world.size + 1).repeat_interleave(4), "all_to_all_single")
