"""One process that uses all GPUs: torch.cuda.nccl, and DataParallel on top of it."""
import torch
import torch.cuda.nccl as nccl
from harness import case
from results import compare


def devices():
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def inputs(count):
    return [torch.full((count,), number + 1.0, device=device) for number, device in enumerate(devices())]


@case("torch.cuda.nccl: all_reduce, reduce, broadcast", cuda=True)
def calls(world):
    ranks = len(devices())
    total = ranks * (ranks + 1) // 2
    for count in (1, 1000, 2**20):
        values = inputs(count)
        nccl.all_reduce(values)
        for value in values:
            compare(value, torch.full((count,), total), f"all_reduce of {count}")
        values, output = inputs(count), torch.empty(count, device=devices()[0])
        nccl.reduce(values, output=output, root=0)
        compare(output, torch.full((count,), total), f"reduce of {count}")
        values = inputs(count)
        nccl.broadcast(values)  # PyTorch 2.11 takes no heed of another root
        for value in values:
            compare(value, torch.full((count,), 1), f"broadcast of {count}")


@case("torch.cuda.nccl: all_gather and reduce_scatter", cuda=True)
def more_calls(world):
    ranks = len(devices())
    for count in (1, 1000, 2**20):
        outputs = [torch.empty(count * ranks, device=device) for device in devices()]
        nccl.all_gather(inputs(count), outputs)
        for output in outputs:
            compare(output, torch.arange(1, ranks + 1).repeat_interleave(count), f"all_gather of {count}")
        results = [torch.empty(count, device=device) for device in devices()]
        nccl.reduce_scatter(outputs, results)
        for number, result in enumerate(results):
            compare(result, torch.full((count,), ranks * (number + 1)), f"reduce_scatter of {count}")


@case("DataParallel", cuda=True, seconds=60)
def data_parallel(world):
    """The gradients of the whole batch on one device are the expected ones."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)).double()
    x, target = torch.randn(64, 64).double(), torch.randint(0, 10, (64,))
    torch.nn.functional.cross_entropy(model(x), target).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model = torch.nn.DataParallel(model.to(devices()[0]), device_ids=[d.index for d in devices()])
    for _ in range(10):
        model.zero_grad()
        output = model(x.to(devices()[0]))
        torch.nn.functional.cross_entropy(output, target.to(devices()[0])).backward()
        for parameter, wanted in zip(model.parameters(), expected):
            compare(parameter.grad, wanted, "gradients", 1e-9)
