"""Process groups that are made, used, destroyed and made again; cases make and destroy the default group themselves."""
import gc
import os
import time

import torch
import torch.distributed as dist
from harness import Wrong, case
from results import compare


def check(world, what, group=None):
    value = torch.full((5000,), world.rank + 1.0, device=world.device)
    dist.all_reduce(value, group=group)
    compare(value, torch.full((5000,), world.size * (world.size + 1) // 2), what)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@case("made and destroyed 5 times", seconds=80)
def again(world):
    counts = []
    for number in range(5):
        world.init(eager=number % 2 == 0)
        check(world, f"group {number}")
        if world.size > 1:
            dist.all_gather_into_tensor(torch.empty(world.size, device=world.device), torch.ones(1, device=world.device))
        dist.destroy_process_group()
        gc.collect()
        world.sync()
        counts.append(descriptors())
    # Stores and events of the watchdog go at their own time.
    if counts[4] > counts[1] + 8:
        raise Wrong(f"open files grow: {counts}")


@case("lazy: the first call makes the communicator")
def lazy(world):
    world.init(eager=False)
    check(world, "the first call")
    if world.size > 1:  # a communicator of two ranks, made by this call
        value = torch.full((100,), float(world.rank), device=world.device)
        if world.rank == 0:
            dist.send(value, 1)
        elif world.rank == 1:
            dist.recv(value, 0)
            compare(value, torch.zeros(100), "recv")
    check(world, "after send and recv")
    dist.destroy_process_group()


@case("sub-groups destroyed before and after others", cuda=True)
def subgroups(world):
    world.init()
    groups = [dist.new_group(list(range(world.size))) for _ in range(4)]
    for number, group in enumerate(groups):
        check(world, f"group {number}", group)
    dist.destroy_process_group(groups[1])
    dist.destroy_process_group(groups[3])
    check(world, "group 2, after others were destroyed", groups[2])
    check(world, "the default group")
    dist.destroy_process_group()


@case("destroyed with calls in flight", cuda=True)
def in_flight(world):
    world.init()
    values = [torch.full((2**22,), world.rank + 1.0, device=world.device) for _ in range(8)]
    for value in values:
        dist.all_reduce(value, async_op=True)
    dist.destroy_process_group()
    world.sync()
    for number, value in enumerate(values):
        compare(value, torch.full((2**22,), world.size * (world.size + 1) // 2), f"call {number}")


@case("ranks that come late", ranks=2)
def late(world):
    if world.rank == world.size - 1:
        time.sleep(3)
    world.init()
    check(world, "all")
    if world.rank == 0:
        time.sleep(2)
    check(world, "all, rank 0 late")
    dist.destroy_process_group()


@case("shrink_group without the last rank", ranks=2, cuda=True, seconds=60)
def shrink(world):
    world.init(eager=True)
    check(world, "all")
    last = world.size - 1
    if world.rank == last:
        # It takes no part any more; its communicator is of no use to anyone.
        dist.distributed_c10d._abort_process_group()
        return
    group = dist.shrink_group([last])
    if dist.get_world_size(group) != last:
        raise Wrong(f"{dist.get_world_size(group)} ranks instead of {last}")
    value = torch.full((1000,), world.rank + 1.0, device=world.device)
    dist.all_reduce(value)
    compare(value, torch.full((1000,), last * (last + 1) // 2), "those that are left")
    dist.destroy_process_group()
