"""Ranks that are missing or die. The default group is of this case alone; what must not happen is a hang."""
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from harness import Wrong, case
from results import compare

BOUND = 60  # seconds, for what must end by itself


def check(world, what):
    value = torch.full((5000,), world.rank + 1.0, device=world.device)
    dist.all_reduce(value)
    compare(value, torch.full((5000,), world.size * (world.size + 1) // 2), what)


def in_time(begun, limit, what):
    took = time.monotonic() - begun
    if took > limit:
        raise Wrong(f"{what} took {took:.0f} s")
    return took


@case("timeout: an error in wait (TORCH_NCCL_BLOCKING_WAIT)", cuda=True, ranks=2, seconds=80)
def blocking_wait(world):
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    world.init(seconds=8)
    os.environ.pop("TORCH_NCCL_BLOCKING_WAIT")
    check(world, "before")
    if world.rank == 0:
        begun = time.monotonic()
        try:  # a call that is not asynchronous does not wait here, either
            dist.all_reduce(torch.ones(2**20, device=world.device), async_op=True).wait()
            raise Wrong("a collective without all ranks came to an end")
        except RuntimeError as error:
            said = str(error)
        in_time(begun, BOUND, "the error")
        if "imeout" not in said and "timed out" not in said:
            raise Wrong(f"the error does not tell of a timeout: {said[:200]}")
    else:
        time.sleep(12)
    dist.distributed_c10d._abort_process_group()


@case("abort of a collective that hangs, and a new group", cuda=True, ranks=2, seconds=100)
def abort(world):
    world.init(seconds=100)
    check(world, "before")
    if world.rank == 0:
        dist.all_reduce(torch.ones(2**20, device=world.device), async_op=True)
        if world.size > 2:
            dist.all_reduce(torch.ones(2**10, device=world.device), async_op=True)
    # The others later: told that a rank has left, PyTorch takes a minute to write down what it knows before it aborts.
    time.sleep(1 if world.rank == 0 else 6)
    begun = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    world.sync()
    in_time(begun, BOUND, "the abort")
    world.init()
    check(world, "the new group")
    dist.destroy_process_group()


@case("a rank is killed: an error in wait", cuda=True, ranks=2, seconds=100)
def killed(world):
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    world.init(seconds=BOUND)
    check(world, "before")
    last = world.size - 1
    if world.rank == last:
        world.report.say(end="a rank is killed: an error in wait", ok=True)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        dist.all_reduce(torch.ones(2**20, device=world.device), async_op=True).wait()
        raise Wrong("a collective without all ranks came to an end")
    except RuntimeError as error:
        said = " ".join(str(error).split())
    took = in_time(begun, BOUND - 15, f"the error ({said[:100]})")
    world.report.say(note=f"after {took:.1f} s: {said[:300]}")
    begun = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    in_time(begun, BOUND, "the abort")


@case("the watchdog ends a rank whose peers do not come", cuda=True, ranks=2, seconds=100)
def watchdog(world):
    world.init(seconds=8)
    check(world, "before")
    marker = os.path.join(world.options.folder, "waiting")
    if world.rank == 0:
        with open(marker + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(marker + ".new", marker)
        dist.all_reduce(torch.ones(2**20, device=world.device))
        # The process is to be ended while it waits; else it is a failure of the launch.
        threading.Event().wait(BOUND)
        return
    while not os.path.exists(marker):
        time.sleep(0.1)
    with open(marker) as file:
        waiting = file.read()
    begun = time.monotonic()
    while os.path.exists(f"/proc/{waiting}") and time.monotonic() - begun < BOUND:
        time.sleep(0.1)
    dist.distributed_c10d._abort_process_group()


@case("the watchdog ends a rank whose peer was killed", cuda=True, ranks=2, seconds=100)
def watchdog_killed(world):
    world.init(seconds=BOUND + 30)
    check(world, "before")
    if world.rank == world.size - 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(2**20, device=world.device))
    threading.Event().wait(BOUND)
