"""CUDA_VISIBLE_DEVICES empty or -1 hides the device."""

# cpu: no
import os
import subprocess
import sys

import torch

assert torch.cuda.is_available()
for value in ("", "-1"):
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"CUDA_VISIBLE_DEVICES": value}, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "0"], (value, done.stdout)
done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"CUDA_VISIBLE_DEVICES": "0"}, capture_output=True, text=True)
assert done.stdout.split() == ["True", "1"], done.stdout
torch.save({"ok": True}, sys.argv[1])
