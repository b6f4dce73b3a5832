"""Small trainings. Their losses are returned: the launch compares them with those of PyTorch's own NCCL."""
import torch
import torch.distributed as dist
from harness import Skip, Wrong, case

STEPS = 20


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def new_model(world, dtype=torch.float32):
    torch.manual_seed(7)
    return Model().to(world.device, dtype)


def batch(world, step, rank=None, width=64):
    generator = torch.Generator().manual_seed(1000 * step + (world.rank if rank is None else rank))
    x = torch.randn(32, width, generator=generator)
    return x.to(world.device), x[:, :10].argmax(1).to(world.device)


def train(world, model, dtype=torch.float32, parameters=None, rank=None):
    optimizer = torch.optim.AdamW(parameters or model.parameters(), lr=3e-3, foreach=False)
    losses = []
    for step in range(STEPS):
        x, target = batch(world, step, rank)
        loss = torch.nn.functional.cross_entropy(model(x.to(dtype)).float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    if not losses[-1] < losses[0]:
        raise Wrong(f"the loss did not become less: {losses[0]} to {losses[-1]}")
    return losses


def wrapped(world, **options):
    ids = [world.rank] if world.cuda else None
    return torch.nn.parallel.DistributedDataParallel(new_model(world), device_ids=ids, **options)


@case("DDP")
def ddp(world):
    return train(world, wrapped(world))


@case("DDP, views of buckets, small buckets, static graph")
def ddp_buckets(world):
    return train(world, wrapped(world, gradient_as_bucket_view=True, bucket_cap_mb=0.05, static_graph=True))


@case("DDP, gradients as bfloat16")
def ddp_hook(world):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = wrapped(world)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(world, model)


@case("DDP, gradients accumulated (no_sync) and a join of uneven inputs")
def ddp_accumulated(world):
    model = wrapped(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    with model.join():
        for step in range(6 + world.rank):
            x, target = batch(world, step)
            with model.no_sync():
                torch.nn.functional.cross_entropy(model(x), target).backward()
            loss = torch.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    return losses


@case("sync batch norm", cuda=True)
def batch_norm(world):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(world.device)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[world.rank])
    return train(world, model)


def old_fsdp(world, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = new_model(world)
    model.blocks = torch.nn.ModuleList([FullyShardedDataParallel(b, device_id=world.device, **options)
                                        for b in model.blocks])
    return FullyShardedDataParallel(model, device_id=world.device, **options)


@case("FSDP, the older", cuda=True)
def fsdp(world):
    return train(world, old_fsdp(world, use_orig_params=True))


@case("FSDP, the older, hybrid and gradients sharded only", cuda=True)
def fsdp_strategies(world):
    from torch.distributed.fsdp import ShardingStrategy
    losses = train(world, old_fsdp(world, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP))
    if world.size % 2 == 0:
        mesh = dist.init_device_mesh("cuda", (world.size // 2, 2))
        losses += train(world, old_fsdp(world, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh))
    return losses


def sharded(world, mesh=None, **options):
    from torch.distributed.fsdp import fully_shard
    model = new_model(world)
    mesh = mesh or dist.init_device_mesh(world.device.type, (world.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@case("fully_shard")
def fsdp2(world):
    return train(world, sharded(world))


@case("fully_shard, bfloat16, prefetch, no reshard after forward")
def fsdp2_mixed(world):
    from torch.distributed.fsdp import MixedPrecisionPolicy
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(world, mp_policy=policy, reshard_after_forward=False)
    for first, second in zip(model.blocks, list(model.blocks)[1:]):
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
    return train(world, model)


@case("fully_shard, factor of gradients")
def fsdp2_factor(world):
    model = sharded(world)
    for module in [model, *model.blocks]:
        module.set_gradient_divide_factor(2.0 * world.size)  # by PreMulSum
    return train(world, model)


@case("fully_shard, memory of the process group", cuda=True)
def fsdp2_memory(world):
    model = sharded(world)
    if not hasattr(model, "set_allocate_memory_from_process_group_for_comm"):
        raise Skip("this PyTorch has no such call")
    for module in [model, *model.blocks]:
        module.set_allocate_memory_from_process_group_for_comm(True)
    return train(world, model)


@case("fully_shard in two dimensions", ranks=2)
def hybrid(world):
    if world.size % 2:
        raise Skip("needs an even number of ranks")
    mesh = dist.init_device_mesh(world.device.type, (world.size // 2, 2), mesh_dim_names=("copies", "shards"))
    return train(world, sharded(world, mesh))


def parts_of_columns(world):
    if 64 % world.size:
        raise Skip(f"64 columns cannot be shared among {world.size} ranks")
    return dist.init_device_mesh(world.device.type, (world.size,))


@case("tensor parallel: ColwiseParallel and RowwiseParallel")
def tensor_parallel(world):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = parts_of_columns(world)
    model = new_model(world)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return train(world, model, rank=0)


@case("sequence parallel")
def sequence_parallel(world):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, PrepareModuleOutput,
                                                   RowwiseParallel, SequenceParallel, parallelize_module)
    mesh = parts_of_columns(world)
    model = new_model(world)
    plan = {"norm": SequenceParallel(sequence_dim=0), "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False)}
    for block in model.blocks:
        parallelize_module(block, mesh, dict(plan, **{"": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False)}))
        parallelize_module(block, mesh, {"": PrepareModuleOutput(
            output_layouts=Shard(0), desired_output_layouts=Replicate(), use_local_output=True)})
    return train(world, model, rank=0)


@case("pipeline of two stages", ranks=2)
def pipeline(world):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    group = dist.new_group([0, 1])
    if world.rank > 1:
        return None
    torch.manual_seed(7)
    whole = Model().to(world.device)
    part = torch.nn.Sequential(whole.blocks[0], whole.blocks[1]) if world.rank == 0 else torch.nn.Sequential(
        whole.blocks[2], whole.head)
    stage = PipelineStage(part, world.rank, 2, world.device, group=group)
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        x, target = batch(world, step, rank=0)
        if world.rank == 0:
            schedule.step(x)
        else:
            parts = []
            schedule.step(target=target, losses=parts)
            losses.append(float(sum(parts)))
        optimizer.step()
        optimizer.zero_grad()
    return losses
