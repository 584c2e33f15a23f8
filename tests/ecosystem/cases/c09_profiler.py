"""torch.profiler around training steps: a table and a trace file."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(16, 4).to(device)
x = torch.ones(8, 16).to(device)
activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=2), record_shapes=True, profile_memory=True) as prof:
    for _ in range(4):
        with record_function("step"):
            model(x).sum().backward()
        prof.step()
prof.export_chrome_trace("trace.json")
results = {
    "has linear": "aten::linear" in prof.key_averages().table(row_limit=50),
    "has step": any(e.key == "step" for e in prof.key_averages()),
}
torch.save(results, sys.argv[1])
