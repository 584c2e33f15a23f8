"""What each rank of tests/integration/test_collectives.py runs: ``python tests/support/ranks.py PART BACKEND OUT`` in a rank's environment.

``collectives``: every collective of torch.distributed on tensors of the device. Each rank knows the inputs of all others, so it
computes the answer itself and compares bits: sums are formed in the order of ranks. ``trainings``: a model trained under DDP, FSDP,
FSDP2 and tensor parallelism, on the device and on the CPU. ``disturbed``: a training that waits for something to happen. ``alone``:
what a rank sees of its devices. ``killed``: rank 1 is killed. ``again``: it ends with an error, unless torchrun has started it again.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
SIZES = (0, 1, 5, 30_011)


def inputs(n: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each rank begins with."""
    made = []
    for rank in range(SIZE):
        generator = torch.Generator().manual_seed(rank)
        if dtype.is_floating_point or dtype.is_complex:
            made.append(torch.randn(n, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype))
        else:
            made.append(torch.randint(0, 2 if dtype is torch.bool else 5, (n,), generator=generator).to(dtype))
    return made


def same(what: str, ours: Tensor, want: Tensor) -> None:
    """Raises AssertionError unless both have the same bits."""
    got = ours.cpu()
    assert got.dtype == want.dtype and torch.equal(got, want), f"rank {RANK}, {what}: {got} is not {want}"


def in_order(parts: list[Tensor], fold: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = fold(total, part.to(wide))
    return total.to(dtype)


def reductions() -> None:
    ops = dist.ReduceOp
    folds: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
        ops.SUM: torch.add, ops.PRODUCT: torch.mul, ops.MAX: torch.maximum, ops.MIN: torch.minimum,
    }  # fmt: skip
    for dtype in DTYPES:
        for n in SIZES:
            parts = inputs(n, dtype)
            for op, fold in folds.items():
                if dtype.is_complex and op is not ops.SUM:
                    continue
                tensor = parts[RANK].cuda()
                dist.all_reduce(tensor, op)
                same(f"all_reduce {op} of {n} {dtype}", tensor, in_order(parts, fold))
    parts = inputs(12)
    tensor = parts[RANK].cuda()
    dist.all_reduce(tensor, ops.AVG)
    same("average", tensor, in_order(parts, torch.add) / SIZE)
    tensor = parts[RANK].view(3, 4).cuda().t()
    dist.all_reduce(tensor)
    same("not in rows", tensor, in_order([part.view(3, 4).t() for part in parts], torch.add))
    bits = torch.tensor([1 << RANK], device="cuda")
    dist.all_reduce(bits, ops.BOR)
    same("bits", bits, torch.tensor([(1 << SIZE) - 1]))
    for root in range(SIZE):
        tensor = parts[RANK].cuda()
        dist.reduce(tensor, root)
        same(f"reduce to {root}", tensor, in_order(parts, torch.add) if root == RANK else parts[RANK])
    several = inputs(6 * SIZE)
    want = in_order(several, torch.add).view(SIZE, 6)[RANK]
    out = torch.zeros(6, device="cuda")
    dist.reduce_scatter_tensor(out, several[RANK].cuda())
    same("reduce_scatter_tensor", out, want)
    out.zero_()
    dist.reduce_scatter(out, list(several[RANK].cuda().view(SIZE, 6)))
    same("reduce_scatter", out, want)


def movements() -> None:
    parts = inputs(17)
    for root in range(SIZE):
        tensor = parts[RANK].cuda()
        dist.broadcast(tensor, root)
        same(f"broadcast of {root}", tensor, parts[root])
        outs = [torch.zeros(17, device="cuda") for _ in range(SIZE)] if root == RANK else None
        dist.gather(parts[RANK].cuda(), outs, dst=root)
        for out, part in zip(outs or [], parts if outs else [], strict=True):
            same(f"gather to {root}", out, part)
        out = torch.zeros(17, device="cuda")
        dist.scatter(out, [part.cuda() for part in parts] if root == RANK else None, src=root)
        same(f"scatter of {root}", out, parts[RANK])
    outs = [torch.zeros(rank + 1, device="cuda") for rank in range(SIZE)]
    dist.all_gather(outs, torch.full((RANK + 1,), float(RANK), device="cuda"))
    for rank, out in enumerate(outs):
        same("all_gather of unequal sizes", out, torch.full((rank + 1,), float(rank)))
    out = torch.zeros(17 * SIZE, device="cuda")
    dist.all_gather_into_tensor(out, parts[RANK].cuda())
    same("all_gather_into_tensor", out, torch.cat(parts))
    square = inputs(4 * SIZE)
    out = torch.zeros(4 * SIZE, device="cuda")
    dist.all_to_all_single(out, square[RANK].cuda())
    same("all_to_all_single", out, torch.cat([part.view(SIZE, 4)[RANK] for part in square]))
    sent = [torch.full((RANK + 1 + to, 2), 10.0 * RANK + to) for to in range(SIZE)]
    want = [torch.full((rank + 1 + RANK, 2), 10.0 * rank + RANK) for rank in range(SIZE)]
    outs = [torch.zeros_like(t, device="cuda") for t in want]
    dist.all_to_all(outs, [t.cuda() for t in sent])
    same("all_to_all", torch.cat(outs), torch.cat(want))
    out = torch.zeros_like(torch.cat(want), device="cuda")
    dist.all_to_all_single(out, torch.cat(sent).cuda(), [len(t) for t in want], [len(t) for t in sent])
    same("all_to_all_single of unequal sizes", out, torch.cat(want))
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in range(SIZE)]


def mismatches() -> None:
    """Tensors that do not fit each other are refused, before anything is exchanged."""
    for gathers in (True, False):
        for dtype, n, error in (
            (torch.float64, 4, TypeError),
            (torch.int32, 8, TypeError),
            (torch.float32, 5, ValueError),
            (torch.float32, 3, ValueError),
        ):
            whole, part = torch.ones(8 * SIZE, device="cuda"), torch.ones(n, dtype=dtype, device="cuda")
            try:
                if gathers:
                    dist.all_gather_into_tensor(whole, part)
                else:
                    dist.reduce_scatter_tensor(part, whole)
            except error as refused:
                assert "tensor must" in str(refused) or "must be equal to world_size times" in str(refused)
            else:
                raise AssertionError(f"{n} {dtype} beside {8 * SIZE} float32 is taken")


def messages() -> None:
    got = torch.zeros(3, device="cuda")
    mine = torch.full((3,), float(RANK), device="cuda")
    receipt, sending = dist.irecv(got, BEFORE), dist.isend(mine, NEXT)
    assert receipt is not None and sending is not None
    receipt.wait()
    sending.wait()
    same("a ring", got, torch.full((3,), float(BEFORE)))
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, NEXT), dist.P2POp(dist.isend, mine + 1, BEFORE)]):
        work.wait()
    same("a ring, in one call", got, torch.full((3,), NEXT + 1.0))
    if RANK:
        dist.send(mine, 0)
    else:
        assert {dist.recv(got) for _ in range(SIZE - 1)} == set(range(1, SIZE))
    many = torch.full((1_000_000,), float(RANK), device="cuda")
    dist.isend(many, NEXT)  # as scripts do that wait for the answer alone
    came = torch.zeros_like(many)
    receipt = dist.irecv(came, BEFORE)
    assert receipt is not None
    while not receipt.is_completed():
        time.sleep(0.001)  # polls, as scripts do
    same("a message without a wait", came, torch.full((1_000_000,), float(BEFORE)))
    dist.barrier()


def forms() -> None:
    """The other ways into the same collectives."""
    tensor = torch.ones(4, device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None and work.wait(timedelta(seconds=60)) and work.wait() and work.is_completed()
    same("asynchronous", tensor, torch.full((4,), float(SIZE)))
    world = dist.group.WORLD
    assert world is not None
    same("functional", functional.all_reduce(torch.ones(4, device="cuda"), "sum", world) + 0, torch.full((4,), float(SIZE)))
    with dist._coalescing_manager(device=torch.device("cuda")):
        dist.all_reduce(tensor)
    same("coalesced", tensor, torch.full((4,), float(SIZE * SIZE)))
    first = dist.new_group([0])
    if RANK == 0:
        dist.all_reduce(tensor, group=first)
        same("a group of one", tensor, torch.full((4,), float(SIZE * SIZE)))
    both = dist.new_group(backend="cpu:gloo,cuda:nccl")
    for device in ("cpu", "cuda"):
        tensor = torch.ones(2, device=device)
        dist.all_reduce(tensor, group=both)
        same(f"a group of two back ends, {device}", tensor, torch.full((2,), float(SIZE)))
    dist.barrier()
    dist.barrier(device_ids=[0])


def normalisations() -> None:
    """Over all ranks' parts of a batch, of which one is longer: the values, gradients and running statistics of the whole on the CPU."""
    torch.manual_seed(0)
    whole = torch.randn(2 * SIZE + 1, 3, 5, 4)
    norm, single = nn.SyncBatchNorm(3).cuda(), nn.BatchNorm2d(3)
    for dtype, close in ((torch.float32, 1e-5), (torch.float16, 1e-2)):
        mine = whole[2 * RANK : 2 * RANK + (3 if RANK == SIZE - 1 else 2)].to("cuda", dtype).requires_grad_()
        everything = whole.clone().requires_grad_()
        want = single(everything)
        (want**3).sum().backward()
        got = norm(mine)
        (got.float() ** 3).sum().backward()
        part = slice(2 * RANK, 2 * RANK + len(mine))
        assert mine.grad is not None and everything.grad is not None and got.dtype == dtype
        for ours, theirs in ((got, want[part]), (mine.grad, everything.grad[part])):
            torch.testing.assert_close(ours.detach().cpu().float(), theirs.detach(), rtol=close, atol=10 * close)
    for ours, theirs in ((norm.running_mean, single.running_mean), (norm.running_var, single.running_var)):
        assert ours is not None
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]  # modules are untyped calls


def spread(kind: str, net: nn.Module, device: str, group: Any) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(net, process_group=group, find_unused_parameters=True)
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group(group, device)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(net, mesh=mesh)
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        number = torch.cuda.current_device() if device == "cuda" else None
        return FullyShardedDataParallel(net, process_group=group, device_id=number, use_orig_params=True)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def losses(kind: str, net: nn.Module, device: str, group: Any) -> Iterator[float]:
    spread_net = spread(kind, copy.deepcopy(net).to(device), device, group)
    optimiser = torch.optim.AdamW(spread_net.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(0 if kind == "tensor" else RANK)
    for _ in range(4):
        x = torch.randn(8, 16, generator=generator).to(device)
        loss = nn.functional.mse_loss(spread_net(x), x.roll(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield loss.item()


def trainings() -> dict[str, list[float]]:
    torch.manual_seed(0)
    net, on_cpu, on_device = Net(), dist.new_group(backend="gloo"), dist.new_group()
    found = {}
    storages_grow = hasattr(torch.UntypedStorage, "_swap_data_ptr_")  # torch 2.13 and later; FSDP resizes them
    for kind in ("ddp", "tensor", *(("fsdp2", "fsdp") if storages_grow else ())):
        found[kind] = list(losses(kind, net, "cuda", on_device))
        if kind != "fsdp":  # which torch does not have for the CPU
            torch.testing.assert_close(torch.tensor(found[kind]), torch.tensor(list(losses(kind, net, "cpu", on_cpu))))
    assert found.get("fsdp") == found.get("fsdp2")
    return found


def disturbed() -> list[float]:
    """A training in whose middle the ranks wait until the file ``continue`` is there."""
    torch.manual_seed(0)
    found = []
    for i, loss in enumerate(losses("ddp", Net(), "cuda", dist.group.WORLD)):
        found.append(loss)
        if i == 1:
            Path(f"half.{RANK}").touch()
            while not Path("continue").exists():
                time.sleep(0.01)  # polls for the other process
    return found


def alone() -> dict[str, Any]:
    """What a rank sees of its devices; the script sets its own, as scripts for torchrun do."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    tensor = torch.ones(1, device="cuda") + torch.ones(1, device=f"cuda:{local}")
    dist.all_reduce(tensor)
    dist.barrier(group=dist.new_group())
    names = [torch.cuda.get_device_properties(index).name for index in range(torch.cuda.device_count())]
    return {"device": str(tensor.device), "current": torch.cuda.current_device(), "names": len(names), "sum": tensor.item()}


def killed() -> dict[str, Any]:
    tensor = torch.ones(4, device="cuda")
    dist.all_reduce(tensor)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    found = {}
    for name, call in (("message", lambda: dist.recv(tensor, 1)), ("collective", lambda: [dist.all_reduce(tensor) for _ in range(3)])):
        try:
            call()
        except dist.DistBackendError as error:
            found[name] = str(error)
    return found | {"s": time.monotonic() - began_s}


def again() -> float:
    tensor = torch.ones(1, device="cuda")
    dist.all_reduce(tensor)
    if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise SystemExit(3)
    dist.all_reduce(tensor)
    return tensor.item()


def main() -> None:
    part, backend, out = sys.argv[1:4]
    place = {"rank": RANK, "world_size": SIZE} if "MASTER_ADDR" not in os.environ else {}  # else a launcher says where ranks meet
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if part == "alone" else None
    dist.init_process_group(backend, init_method=f"file://{out}.meeting" if place else None, device_id=device, **place)
    result: Any = None
    if part == "collectives":
        for check in (
            reductions,
            movements,
            mismatches,
            *((messages,) if SIZE > 1 else ()),
            forms,
            normalisations,
        ):  # gloo sends nothing to its own rank
            check()
    else:
        result = {"trainings": trainings, "disturbed": disturbed, "alone": alone, "killed": killed, "again": again}[part]()
    torch.save(result, f"{out}.{RANK}")
    if part != "killed":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
