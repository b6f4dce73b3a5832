"""Inputs whose results are known without a library, and the comparison. Values are small whole numbers, so that sums and
products are exact in every type and in any order."""
import torch
from harness import Wrong

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
GUARD = 16  # elements behind a result that must stay as they were
SIZES = (1, 7, 1000, 65536 + 3)


def name_of(dtype):
    return str(dtype).replace("torch.", "")


def contribution(dtype, count, rank, size, op="SUM"):
    """What `rank` puts in, on the CPU and in a type that holds it exactly."""
    index = torch.arange(count, dtype=torch.int64)
    pattern = (index * 7 + rank * 5 + index // 3) % 11
    if dtype == torch.bool:
        return pattern % 3 == 0
    if op == "PRODUCT":
        return pattern % 2 + 1
    if op == "AVG":
        return (pattern % 2) * size
    if dtype == torch.uint8:
        return pattern % 4
    return pattern % 5 - 2


def reduced(inputs, op, dtype):
    stack = torch.stack(inputs)
    if dtype == torch.bool:
        return stack.all(0) if op in ("MIN", "PRODUCT") else stack.any(0)
    if op == "SUM":
        return stack.sum(0)
    if op == "PRODUCT":
        return stack.prod(0)
    if op == "AVG":
        return stack.sum(0) // len(inputs)
    return stack.amin(0) if op == "MIN" else stack.amax(0)


def all_inputs(world, dtype, count, op="SUM"):
    return [contribution(dtype, count, rank, world.size, op) for rank in range(world.size)]


class Guarded:
    """A tensor on the world's device with guards before and behind it."""

    def __init__(self, world, count, dtype, offset=0, fill=None):
        self.base = torch.full((offset + count + GUARD,), 77, dtype=torch.float32).to(dtype).to(world.device)
        self.tensor = self.base[offset:offset + count]
        self.offset, self.count = offset, count
        if fill is not None:
            self.tensor.copy_(fill.to(dtype))
        self.before = self.base[:offset].cpu().clone()
        self.behind = self.base[offset + count:].cpu().clone()

    def check(self, expected, what, tolerance=0):
        compare(self.tensor, expected, what, tolerance)
        compare(self.base[:self.offset], self.before, f"{what}, what lies before the result")
        compare(self.base[self.offset + self.count:], self.behind, f"{what}, what lies behind the result")


def compare(got, expected, what, tolerance=0):
    got = got.detach().cpu()
    expected = expected.to(got.dtype)
    if got.shape != expected.shape:
        raise Wrong(f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    wide = torch.complex128 if got.is_complex() else torch.float64 if got.is_floating_point() else torch.int64
    a, b = got.to(wide).flatten(), expected.to(wide).flatten()
    bad = ~((a - b).abs() <= tolerance * b.abs().clamp(min=1))
    if bad.any():
        at = int(bad.nonzero()[0])
        raise Wrong(f"{what}: {int(bad.sum())} of {a.numel()} wrong; element {at} is {a[at].item()} instead of {b[at].item()}")
