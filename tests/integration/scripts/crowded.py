"""Asks for more than the device has, catches the error, lets go, and goes on: what it held before is as it was."""

import torch

MIB = 1 << 20


def floats(mib):
    return torch.ones(mib * MIB // 4, device="cuda")


kept = torch.arange(1024.0, device="cuda")
for _ in range(3):
    old = floats(8)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    weight = floats(1)
    torch.cuda.synchronize()
    try:
        weight.add_(1)  # in one batch with what does not fit: it is lost, too, and that is said
        del old
        big = floats(35), floats(35)  # each alone would fit
        total = big[0].sum() + big[1].sum()
        print("no room, and yet", total.item())
    except torch.cuda.OutOfMemoryError as error:
        assert "out of memory" in str(error), error
    try:
        weight.sum().item()
        raise SystemExit("a change that was lost went unnoticed")
    except torch.cuda.OutOfMemoryError as error:
        assert "refused for lack of memory" in str(error), error
    del big, total, weight
    assert torch.cuda.memory_allocated() == held - 8 * MIB, (torch.cuda.memory_allocated(), held)
    for _ in range(60):  # a busy node may answer too late for one question
        free, total_bytes = torch.cuda.mem_get_info()
        if total_bytes - free == held - 8 * MIB:
            break
    else:
        raise SystemExit(f"the node holds {total_bytes - free} bytes, not {held - 8 * MIB}")
    assert floats(40).sum().item() == 10 * MIB  # smaller, and it fits: 8 MiB that were let go among it
    assert torch.equal(kept.cpu(), torch.arange(1024.0))
print("survived")
