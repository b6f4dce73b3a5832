"""Which library is in use, and what PyTorch shows of it."""
import ctypes
import glob
import os

import torch
import torch.distributed as dist
from harness import Skip, Wrong, case, mapped_libraries
from results import compare

HEADER = (2, 28, 9)


def threads():
    names = []
    for path in glob.glob("/proc/self/task/*/comm"):
        with open(path) as comm:
            names.append(comm.read().strip())
    return names


@case("calls go to the drop-in")
def in_use(world):
    """PyTorch also maps its own NCCL when it is imported, by its path; what counts is where its calls are bound."""
    libraries = mapped_libraries()
    ours = world.options.library
    if not ours:
        raise Skip(f"this run is with {', '.join(libraries)}")
    if ours not in libraries:
        raise Wrong(f"{ours} is not mapped, but {libraries}")
    if not hasattr(ctypes.CDLL(None), "tuttiGetVersion"):
        raise Wrong("Tutti's symbols are not in the global scope")
    if not world.cuda:
        return
    dist.all_reduce(torch.ones(1, device=world.device))
    world.sync()
    names = threads()
    if not any(name.startswith("tutti-") for name in names) and world.size > 1:
        raise Wrong(f"Tutti has no communicator after an all_reduce: threads {sorted(set(names))}")
    if any(name.startswith("NCCL ") for name in names):
        raise Wrong(f"another NCCL has a communicator: libraries {libraries}, threads {sorted(set(names))}")


@case("torch.cuda.nccl.version")
def version(world):
    if not hasattr(torch._C, "_nccl_version"):
        raise Skip("this PyTorch has no CUDA")
    said = torch.cuda.nccl.version()
    if world.options.library and said != HEADER:
        raise Wrong(f"it is {said} instead of {HEADER}")


@case("names in the profiler", cuda=True)
def profiler(world):
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profile:
        dist.all_reduce(torch.ones(1000, device=world.device))
        dist.all_gather_into_tensor(torch.empty(1000 * world.size, device=world.device),
                                    torch.ones(1000, device=world.device))
        world.sync()
    names = {event.key for event in profile.key_averages()}
    for wanted in ("nccl:all_reduce", "c10d::allreduce_", "c10d::_allgather_base_"):
        if wanted not in names:
            raise Wrong(f"there is no {wanted} in {sorted(names)[:40]}")


@case("flight recorder", cuda=True)
def flight_recorder(world):
    import pickle
    if not os.environ.get("TORCH_FR_BUFFER_SIZE"):
        raise Skip("it is not switched on in this launch")
    dist.all_reduce(torch.ones(1234, device=world.device))
    world.sync()
    dump = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace(includeStackTraces=False))
    seen = {(entry["profiling_name"], str(entry["input_sizes"]).strip("[](),")) for entry in dump.get("entries", [])}
    if ("nccl:all_reduce", "1234") not in seen:
        raise Wrong(f"the all_reduce is not among its entries: {sorted(seen)[-5:]}")


@case("durations of works", cuda=True)
def durations(world):
    work = dist.all_reduce(torch.ones(2**20, device=world.device), async_op=True)
    work.wait()
    world.sync()
    if os.environ.get("TORCH_NCCL_ENABLE_TIMING") != "1":
        raise Skip("timing is not switched on in this launch")
    if not 0 < work._get_duration() < 20000:
        raise Wrong(f"{work._get_duration()} ms")


@case("time estimate", cuda=True, ranks=2)
def time_estimate(world):
    if not world.backend().supports_time_estimate:
        raise Skip("the backend says that it has none")
    value = torch.ones(2**20, device=world.device)
    with dist._time_estimator(device=world.device) as estimator:
        dist.all_reduce(value)
    world.sync()
    compare(value, torch.ones(2**20), "the value, which must stay as it was")
    if not 0 < estimator.estimated_time < 1e6:
        raise Wrong(f"{estimator.estimated_time} us")
