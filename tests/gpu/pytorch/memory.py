"""Memory that the library allocates or registers."""
import os

import torch
import torch.distributed as dist
from harness import Skip, Wrong, case
from results import compare


def check_calls(world, make, what):
    """Collectives between buffers that `make` returns."""
    total = world.size * (world.size + 1) // 2
    for count in (1000, 2**20):
        value = make(count)
        value.fill_(world.rank + 1)
        dist.all_reduce(value)
        compare(value, torch.full((count,), total), f"{what}: all_reduce of {count}")
        whole = make(count * world.size)
        value.fill_(world.rank + 1)
        dist.all_gather_into_tensor(whole, value)
        compare(whole, torch.arange(1, world.size + 1).repeat_interleave(count), f"{what}: all_gather of {count}")
        dist.reduce_scatter_tensor(value, whole)
        compare(value, torch.full((count,), (world.rank + 1) * world.size), f"{what}: reduce_scatter of {count}")
        dist.broadcast(whole, world.size - 1)
        compare(whole, torch.arange(1, world.size + 1).repeat_interleave(count), f"{what}: broadcast of {count}")


def pool_of(world):
    backend = world.backend()
    if not hasattr(torch.cuda, "MemPool") or not hasattr(backend, "register_mem_pool"):
        raise Skip("this PyTorch has no such pools")
    dist.barrier()  # a pool is registered with communicators that exist
    return backend, torch.cuda.MemPool(backend.mem_allocator)


@case("memory pool of ncclMemAlloc", cuda=True, ranks=2)
def pool(world):
    backend, pool = pool_of(world)
    with torch.cuda.use_mem_pool(pool):
        buffers = [torch.empty(world.size * 2**20, device=world.device) for _ in range(2)]
    given = iter(buffers * 8)
    check_calls(world, lambda count: next(given)[:count], "from the pool")


def registered(world, symmetric):
    backend, pool = pool_of(world)
    with torch.cuda.use_mem_pool(pool):
        room = torch.empty((world.size + 2) * 2**21, device=world.device)
    try:
        backend.register_mem_pool(pool, **({"symm": True} if symmetric else {}))
    except TypeError as error:
        raise Skip(f"register_mem_pool has no such argument: {str(error)[:60]}")
    offset = [0]

    def make(count):
        offset[0] = (offset[0] + count + 255) // 256 * 256
        if offset[0] > room.numel():
            offset[0] = count
        return room[offset[0] - count:offset[0]]
    check_calls(world, make, "registered")
    outside = torch.full((5000,), world.rank + 1.0, device=world.device)
    dist.all_reduce(outside)
    compare(outside, torch.full((5000,), world.size * (world.size + 1) // 2), "a buffer outside of the pool")
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)
    check_calls(world, make, "after deregister_mem_pool")
    torch.cuda.synchronize()


@case("register_mem_pool", cuda=True, ranks=2)
def register(world):
    registered(world, False)


@case("register_mem_pool, symmetric windows", cuda=True, ranks=2)
def symmetric(world):
    registered(world, True)


@case("allocate_tensor of the backend", cuda=True)
def allocate(world):
    backend = world.backend()
    dist.barrier()
    if not backend.supports_tensor_alloc(world.device):
        raise Skip("the backend says that it does not allocate tensors here")
    check_calls(world, lambda count: backend.allocate_tensor(count, dtype=torch.float32, device=world.device), "allocated")


@case("memory of freed and reused segments", cuda=True)
def reused(world):
    if "expandable" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        torch.cuda.empty_cache()
    for number in range(6):
        count = 2**(18 + number)
        buffer = torch.full((count,), world.rank + number, dtype=torch.float32, device=world.device)
        dist.all_reduce(buffer)
        expected = world.size * (world.size - 1) // 2 + world.size * number
        if not bool((buffer == expected).all()):
            raise Wrong(f"{count} elements: not all are {expected}")
        del buffer
        torch.cuda.empty_cache()
