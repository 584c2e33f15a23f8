"""torch.cuda's memory interface."""

# cpu: no
import sys

import torch

torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
x = torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_allocated() - before == 4 << 20
del x
assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + (4 << 20)
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
assert "Allocated memory" in torch.cuda.memory_summary()
assert "allocated_bytes.all.current" in torch.cuda.memory_stats()
assert torch.cuda.get_device_properties(0).total_memory == total
torch.cuda.set_per_process_memory_fraction(0.5)
torch.cuda.memory_snapshot()
torch.save({"ok": True}, sys.argv[1])
