"""Each call of a process group, with its results checked against what the CPU computes."""
import torch
import torch.distributed as dist
from harness import Wrong, case
from results import (FLOATS, INTEGERS, SIZES, Guarded, all_inputs, compare, contribution, name_of, reduced)

OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
AVERAGE = 2e-2  # of a type with 8 bits of precision


def tolerance_of(op, dtype):
    if op != "AVG" or not dtype.is_floating_point:
        return 0
    return AVERAGE if dtype.itemsize < 4 else 1e-6


def types_of(world, op):
    types = FLOATS + INTEGERS + ((torch.bool,) if op not in ("AVG",) else ())
    return [t for t in types if world.cuda or t != torch.bool]


def of_op(op):
    def run(world):
        for dtype in types_of(world, op):
            for count in SIZES:
                for offset in (0, 1):
                    inputs = all_inputs(world, dtype, count, op)
                    buffer = Guarded(world, count, dtype, offset, inputs[world.rank])
                    dist.all_reduce(buffer.tensor, getattr(dist.ReduceOp, op))
                    buffer.check(reduced(inputs, op, dtype), f"{name_of(dtype)} x {count} at {offset}",
                                 tolerance_of(op, dtype))
    return run


for name in OPS:
    case(f"all_reduce {name}", cuda=name == "AVG")(of_op(name))


@case("all_reduce of 64 MiB", seconds=60)
def large(world):
    for dtype in (torch.float32, torch.bfloat16):
        count = 64 * 2**20 // dtype.itemsize if world.cuda else 2**16
        buffer = torch.full((count,), world.rank + 1, dtype=dtype, device=world.device)
        buffer[world.rank] = 5
        dist.all_reduce(buffer)
        total = world.size * (world.size + 1) // 2
        if not bool((buffer[world.size:] == total).all()):
            raise Wrong(f"{name_of(dtype)}: not all elements are {total}")
        expected = torch.tensor([total - (r + 1) + 5 for r in range(world.size)])
        compare(buffer[:world.size], expected, f"{name_of(dtype)}, the first elements")


@case("all_reduce, fp8 and complex", cuda=True)
def rare_types(world):
    for dtype in (torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2):
        inputs = all_inputs(world, dtype, 1000)
        buffer = inputs[world.rank].to(torch.float32).to(dtype).to(world.device)
        try:
            dist.all_reduce(buffer)
        except (RuntimeError, TypeError, ValueError) as error:  # torch refuses fp8 below some capability
            if dtype.itemsize == 1 and "loat8" in str(error):
                continue
            raise
        expected = reduced(inputs, "SUM", dtype)
        if dtype.is_complex:
            compare(buffer, expected, name_of(dtype))
        else:
            compare(buffer.to(torch.float32), expected, name_of(dtype))


@case("all_reduce PREMUL_SUM", cuda=True)
def premul_sum(world):
    # Not of bfloat16, whose factors PyTorch 2.11 hands over as something else: they come out wrong with NCCL too.
    for dtype in (torch.float32, torch.float16, torch.float64):
        for scalar in (0.5, 2.0, torch.tensor([4.0], dtype=dtype, device=world.device)):
            inputs = all_inputs(world, dtype, 1000)
            buffer = Guarded(world, 1000, dtype, 1, inputs[world.rank])
            dist.all_reduce(buffer.tensor, dist._make_nccl_premul_sum(scalar))
            factor = float(scalar) if not torch.is_tensor(scalar) else 4.0
            buffer.check(reduced(inputs, "SUM", dtype).to(torch.float64) * factor, f"{name_of(dtype)} times {factor}")


@case("all_reduce, coalesced")
def coalesced_all_reduce(world):
    inputs = {count: all_inputs(world, torch.float32, count) for count in (3, 1000, 5003)}
    buffers = {count: Guarded(world, count, torch.float32, 1, i[world.rank]) for count, i in inputs.items()}
    with dist._coalescing_manager(device=world.device if world.cuda else None):
        for buffer in buffers.values():
            dist.all_reduce(buffer.tensor)
    for count, buffer in buffers.items():
        buffer.check(reduced(inputs[count], "SUM", torch.float32), f"of {count}")


@case("coalesced all_gather_into_tensor and reduce_scatter_tensor, async", cuda=True)
def coalesced_others(world):
    counts = (5, 1024)
    pieces = {count: all_inputs(world, torch.float32, count) for count in counts}
    gathered = {count: Guarded(world, count * world.size, torch.float32) for count in counts}
    with dist._coalescing_manager(device=world.device, async_ops=True) as manager:
        for count in counts:
            dist.all_gather_into_tensor(gathered[count].tensor,
                                        pieces[count][world.rank].to(torch.float32).to(world.device))
    manager.wait()
    for count in counts:
        gathered[count].check(torch.cat(pieces[count]), f"all_gather of {count}")
    wholes = {count: all_inputs(world, torch.float32, count * world.size) for count in counts}
    parts = {count: Guarded(world, count, torch.float32) for count in counts}
    with dist._coalescing_manager(device=world.device, async_ops=True) as manager:
        for count in counts:
            dist.reduce_scatter_tensor(parts[count].tensor,
                                       wholes[count][world.rank].to(torch.float32).to(world.device))
    manager.wait()
    for count in counts:
        parts[count].check(reduced(wholes[count], "SUM", torch.float32)[world.rank * count:][:count],
                           f"reduce_scatter of {count}")


@case("all_gather")
def all_gather(world):
    for dtype in FLOATS + INTEGERS:
        for count in SIZES:
            inputs = all_inputs(world, dtype, count)
            outputs = [Guarded(world, count, dtype, 1) for _ in range(world.size)]
            dist.all_gather([o.tensor for o in outputs], inputs[world.rank].to(dtype).to(world.device))
            for rank, output in enumerate(outputs):
                output.check(inputs[rank], f"{name_of(dtype)} x {count} of rank {rank}")


@case("all_gather of uneven sizes", cuda=True)
def uneven_all_gather(world):
    inputs = [contribution(torch.float32, 100 + 57 * rank, rank, world.size) for rank in range(world.size)]
    outputs = [Guarded(world, len(i), torch.float32) for i in inputs]
    dist.all_gather([o.tensor for o in outputs], inputs[world.rank].to(torch.float32).to(world.device))
    for rank, output in enumerate(outputs):
        output.check(inputs[rank], f"of rank {rank}")


@case("all_gather_into_tensor")
def all_gather_into_tensor(world):
    for dtype in FLOATS + INTEGERS + (torch.bool, torch.float8_e4m3fn):
        if not world.cuda and dtype in (torch.bool, torch.float8_e4m3fn):
            continue
        for count in SIZES:
            inputs = all_inputs(world, dtype, count)
            own = inputs[world.rank].to(torch.float32).to(dtype).to(world.device)
            output = Guarded(world, count * world.size, dtype, 1)
            dist.all_gather_into_tensor(output.tensor, own)
            wide = torch.float32 if dtype == torch.float8_e4m3fn else dtype
            compare(output.tensor.to(wide), torch.cat(inputs), f"{name_of(dtype)} x {count}")
            in_place = torch.zeros(count * world.size, dtype=torch.float32, device=world.device).to(dtype)
            in_place[world.rank * count:][:count].copy_(own)
            dist.all_gather_into_tensor(in_place, in_place[world.rank * count:][:count])
            compare(in_place.to(wide), torch.cat(inputs), f"{name_of(dtype)} x {count} in place")


@case("reduce_scatter")
def reduce_scatter(world):
    for dtype in FLOATS + INTEGERS:
        for count in SIZES:
            inputs = all_inputs(world, dtype, count * world.size)
            output = Guarded(world, count, dtype, 1)
            dist.reduce_scatter(output.tensor,
                                list(inputs[world.rank].to(dtype).to(world.device).clone().chunk(world.size)))
            output.check(reduced(inputs, "SUM", dtype)[world.rank * count:][:count], f"{name_of(dtype)} x {count}")


@case("reduce_scatter of uneven sizes", cuda=True)
def uneven_reduce_scatter(world):
    counts = [64 + 31 * rank for rank in range(world.size)]
    inputs = all_inputs(world, torch.float32, sum(counts))
    output = Guarded(world, counts[world.rank], torch.float32)
    pieces = inputs[world.rank].to(torch.float32).to(world.device).split(counts)
    dist.reduce_scatter(output.tensor, [p.clone() for p in pieces])
    output.check(reduced(inputs, "SUM", torch.float32).split(counts)[world.rank], "uneven")


@case("reduce_scatter_tensor")
def reduce_scatter_tensor(world):
    for op in ("SUM", "MAX") + (("AVG",) if world.cuda else ()):
        for dtype in FLOATS + (torch.int32, torch.int64):
            for count in SIZES:
                inputs = all_inputs(world, dtype, count * world.size, op)
                expected = reduced(inputs, op, dtype)[world.rank * count:][:count]
                own = inputs[world.rank].to(dtype).to(world.device)
                output = Guarded(world, count, dtype, 1)
                dist.reduce_scatter_tensor(output.tensor, own, getattr(dist.ReduceOp, op))
                output.check(expected, f"{op} {name_of(dtype)} x {count}", tolerance_of(op, dtype))
                piece = own[world.rank * count:][:count]
                dist.reduce_scatter_tensor(piece, own, getattr(dist.ReduceOp, op))
                compare(piece, expected, f"{op} {name_of(dtype)} x {count} in place", tolerance_of(op, dtype))


@case("all_to_all")
def all_to_all(world):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        # Rank r sends 1 + r + 2 s elements to rank s.
        def piece(source, target):
            return contribution(dtype, 1 + source + 2 * target, source * 31 + target, world.size).to(dtype)
        outputs = [Guarded(world, 1 + rank + 2 * world.rank, dtype, 1) for rank in range(world.size)]
        dist.all_to_all([o.tensor for o in outputs],
                        [piece(world.rank, rank).to(world.device) for rank in range(world.size)])
        for rank, output in enumerate(outputs):
            output.check(piece(rank, world.rank), f"{name_of(dtype)} of rank {rank}")


@case("all_to_all_single, even and uneven")
def all_to_all_single(world):
    for dtype in (torch.float32, torch.float16, torch.int32, torch.uint8):
        for count in SIZES:
            inputs = all_inputs(world, dtype, count * world.size)
            output = Guarded(world, count * world.size, dtype, 1)
            dist.all_to_all_single(output.tensor, inputs[world.rank].to(dtype).to(world.device))
            output.check(torch.cat([i[world.rank * count:][:count] for i in inputs]), f"{name_of(dtype)} x {count}")
        splits = [[(s * 13 + t * 7) % 5 * 9 for t in range(world.size)] for s in range(world.size)]  # some are 0
        sent = [contribution(dtype, sum(splits[r]), r, world.size) for r in range(world.size)]
        incoming = [splits[r][world.rank] for r in range(world.size)]
        output = Guarded(world, sum(incoming), dtype)
        dist.all_to_all_single(output.tensor, sent[world.rank].to(dtype).to(world.device), incoming, splits[world.rank])
        output.check(torch.cat([sent[r].split(splits[r])[world.rank] for r in range(world.size)]),
                     f"{name_of(dtype)}, splits {splits}")


@case("broadcast")
def broadcast(world):
    for dtype in FLOATS + INTEGERS + (torch.bool, torch.float8_e5m2):
        if not world.cuda and dtype in (torch.bool, torch.float8_e5m2):
            continue
        for root in range(world.size):
            for count in SIZES:
                whole = contribution(dtype, count, root, world.size)
                mine = whole.to(torch.float32) if world.rank == root else torch.zeros(count)
                buffer = mine.to(dtype).to(world.device)
                dist.broadcast(buffer, root)
                wide = torch.float32 if dtype == torch.float8_e5m2 else dtype
                compare(buffer.to(wide), whole, f"{name_of(dtype)} x {count} from {root}")


@case("reduce")
def reduce(world):
    for op in ("SUM", "MAX") + (("AVG",) if world.cuda else ()):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for root in range(world.size):
                inputs = all_inputs(world, dtype, 1003, op)
                buffer = Guarded(world, 1003, dtype, 1, inputs[world.rank])
                dist.reduce(buffer.tensor, root, getattr(dist.ReduceOp, op))
                if world.rank == root:
                    buffer.check(reduced(inputs, op, dtype), f"{op} {name_of(dtype)} to {root}", tolerance_of(op, dtype))


@case("gather and scatter")
def gather_scatter(world):
    for root in range(world.size):
        inputs = all_inputs(world, torch.float32, 1003)
        outputs = [Guarded(world, 1003, torch.float32, 1) for _ in range(world.size)] if world.rank == root else None
        dist.gather(inputs[world.rank].to(torch.float32).to(world.device),
                    [o.tensor for o in outputs] if outputs else None, dst=root)
        for rank, output in enumerate(outputs or []):
            output.check(inputs[rank], f"gather to {root}, of rank {rank}")
        mine = Guarded(world, 1003, torch.float32, 1)
        dist.scatter(mine.tensor, [i.to(torch.float32).to(world.device) for i in inputs] if world.rank == root else None,
                     src=root)
        mine.check(inputs[world.rank], f"scatter from {root}")


@case("barrier")
def barrier(world):
    for _ in range(5):
        dist.barrier()
    dist.barrier(async_op=True).wait()


@case("send and recv", ranks=2)
def send_recv(world):
    for dtype in FLOATS + INTEGERS:
        for count in SIZES:
            for source in range(world.size):
                target = (source + 1) % world.size
                whole = contribution(dtype, count, source, world.size)
                if world.rank == source:
                    dist.send(whole.to(dtype).to(world.device), target)
                elif world.rank == target:
                    buffer = Guarded(world, count, dtype, 1)
                    dist.recv(buffer.tensor, source)
                    buffer.check(whole, f"{name_of(dtype)} x {count} from {source}")


@case("isend and irecv, many", ranks=2)
def isend_irecv(world):
    following, preceding = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    works, buffers = [], []
    for number in range(20):
        outgoing = contribution(torch.float32, 100 + number, world.rank + number, world.size)
        buffers.append(Guarded(world, 100 + number, torch.float32))
        send = lambda: works.append(dist.isend(outgoing.to(torch.float32).to(world.device), following))
        receive = lambda: works.append(dist.irecv(buffers[-1].tensor, preceding))
        # The first rank sends first: a ring of which all ranks send first could wait for itself.
        for step in (send, receive) if world.rank == 0 else (receive, send):
            step()
    for work in works:
        work.wait()
    for number, buffer in enumerate(buffers):
        buffer.check(contribution(torch.float32, 100 + number, preceding + number, world.size), f"message {number}")


@case("batch_isend_irecv", ranks=2)
def batch(world):
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        operations, buffers = [], []
        for distance in range(1, world.size):
            to, source = (world.rank + distance) % world.size, (world.rank - distance) % world.size
            outgoing = contribution(dtype, 999 + distance, world.rank, world.size).to(dtype).to(world.device)
            buffers.append((source, Guarded(world, 999 + distance, dtype, 1)))
            operations.append(dist.P2POp(dist.isend, outgoing, to))
            operations.append(dist.P2POp(dist.irecv, buffers[-1][1].tensor, source))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for source, buffer in buffers:
            buffer.check(contribution(dtype, buffer.count, source, world.size), f"{name_of(dtype)} from {source}")


@case("nothing to move")
def nothing(world):
    for dtype in (torch.float32, torch.uint8):
        empty = torch.empty(0, dtype=dtype, device=world.device)
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        if world.cuda:
            dist.all_gather_into_tensor(empty.clone(), empty)
            dist.reduce_scatter_tensor(empty.clone(), empty)
            dist.all_to_all_single(empty.clone(), empty)
    check = torch.ones(3, device=world.device)
    dist.all_reduce(check)
    compare(check, torch.full((3,), world.size), "the all_reduce after them")


@case("objects: all_gather_object, broadcast_object_list, gather_object, scatter_object_list")
def objects(world):
    mine = {"rank": world.rank, "text": "x" * (10 + 1000 * world.rank)}
    wanted = [{"rank": r, "text": "x" * (10 + 1000 * r)} for r in range(world.size)]
    got = [None] * world.size
    dist.all_gather_object(got, mine)
    told = [wanted, 7] if world.rank == 0 else [None, None]
    dist.broadcast_object_list(told, 0, device=world.device)
    gathered = [None] * world.size if world.rank == 0 else None
    dist.gather_object(mine, gathered, 0)
    part = [None]
    dist.scatter_object_list(part, wanted if world.rank == 0 else None, 0)
    for what, value, good in (("all_gather_object", got, wanted), ("broadcast_object_list", told, [wanted, 7]),
                              ("gather_object", gathered, wanted if world.rank == 0 else None),
                              ("scatter_object_list", part[0], mine)):
        if value != good:
            raise Wrong(f"{what}: {str(value)[:80]}")


@case("async_op, wait and is_completed")
def asynchronous(world):
    inputs = {n: all_inputs(world, torch.float32, 1000 + n) for n in range(20)}
    buffers = [Guarded(world, 1000 + n, torch.float32, 1, inputs[n][world.rank]) for n in range(20)]
    works = [dist.all_reduce(b.tensor, async_op=True) for b in buffers]
    for work in works:
        work.wait()
    for number, buffer in enumerate(buffers):
        buffer.check(reduced(inputs[number], "SUM", torch.float32), f"number {number}")
    world.sync()
    if not all(work.is_completed() for work in works):
        raise Wrong("a work is not complete after the device was synchronised")
    future = dist.all_reduce(torch.ones(4, device=world.device), async_op=True).get_future()
    if hasattr(future, "wait"):
        compare(future.wait()[0], torch.full((4,), world.size), "of the future")


@case("side streams", cuda=True)
def side_streams(world):
    streams = [torch.cuda.Stream() for _ in range(3)]
    outputs = []
    for number in range(30):
        stream = streams[number % 3]
        with torch.cuda.stream(stream):
            buffer = torch.full((50000,), world.rank + number, dtype=torch.float32, device=world.device)
            buffer += 1
            dist.all_reduce(buffer)
            buffer *= 2
            outputs.append(buffer)
    world.sync()
    ranks = world.size * (world.size - 1) // 2
    for number, output in enumerate(outputs):
        compare(output, torch.full((50000,), 2 * (ranks + world.size * (number + 1))), f"number {number}")
