"""Streams, events, waits and timing."""

# cpu: no
import sys

import torch

side = torch.cuda.Stream()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
x = torch.randn(64, 64, device="cuda")
side.wait_stream(torch.cuda.current_stream())
start.record()
with torch.cuda.stream(side):
    y = x @ x
    y.record_stream(side)
    done = side.record_event()
torch.cuda.current_stream().wait_event(done)
z = y.sum()
end.record()
end.synchronize()
assert torch.allclose(z.cpu(), (x.cpu() @ x.cpu()).sum(), atol=1e-2, rtol=1e-3)
assert start.elapsed_time(end) >= 0 and end.query() and side.query()
torch.save({"same": torch.cuda.current_stream() == torch.cuda.default_stream()}, sys.argv[1])
