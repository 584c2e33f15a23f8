"""What scripts ask torch.cuda: memory, events, streams, seeds, properties. Runs only where there is a device."""

import sys

import torch

assert torch.cuda.is_available() and torch.cuda.device_count() >= 1
name = torch.cuda.get_device_name(0)
properties = torch.cuda.get_device_properties(0)
assert properties.name == name and properties.total_memory > 0
assert torch.cuda.get_device_capability(0)[0] >= 7
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total

before = torch.cuda.memory_allocated()
x = torch.empty(1024, 1024, device="cuda")
assert torch.cuda.memory_allocated() - before >= 4 << 20
peak = torch.cuda.max_memory_allocated()
del x
assert torch.cuda.memory_allocated() == before
assert torch.cuda.max_memory_allocated() == peak >= before + (4 << 20)
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == before
torch.cuda.empty_cache()
assert "allocated_bytes.all.current" in torch.cuda.memory_stats()

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
y = torch.ones(256, 256, device="cuda") @ torch.ones(256, 256, device="cuda")
end.record()
torch.cuda.synchronize()
assert end.query() and start.elapsed_time(end) >= 0
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    z = y * 2
stream.synchronize()
torch.cuda.current_stream().wait_stream(stream)
assert z.sum().item() == 2 * 256**3

torch.cuda.manual_seed(7)
a = torch.randn(8, device="cuda")
state = torch.cuda.get_rng_state()
b = torch.randn(8, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(b, torch.randn(8, device="cuda"))
torch.cuda.manual_seed_all(7)
assert torch.equal(a, torch.randn(8, device="cuda")) and not torch.equal(a, b)
generator = torch.Generator("cuda").manual_seed(3)
g = torch.rand(4, device="cuda", generator=generator)
assert torch.equal(g, torch.rand(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3)))
drop = torch.nn.functional.dropout(torch.ones(10_000, device="cuda"), 0.25)
assert abs((drop == 0).float().mean().item() - 0.25) < 0.02
normal = torch.randn(20_000, device="cuda")
assert abs(normal.mean().item()) < 0.05 and abs(normal.std().item() - 1) < 0.05
with torch.device("cuda"):
    assert torch.ones(2).device == torch.device("cuda", 0)
with torch.cuda.device(0):
    assert torch.cuda.current_device() == 0
torch.save(
    {"random": a.cpu(), "dropped": drop.cpu(), "normal": normal.cpu(), "permutation": torch.randperm(50, device="cuda").cpu()}, sys.argv[1]
)
print(name)
