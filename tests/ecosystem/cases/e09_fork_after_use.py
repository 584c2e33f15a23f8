"""A child forked after the device was used: CUDA's error in the child; the parent continues."""

# cpu: no
import os
import sys

import torch

x = torch.ones(3, device="cuda")
assert x.sum().item() == 3
read, write = os.pipe()
if os.fork() == 0:
    try:
        torch.ones(3, device="cuda").sum().item()
        message = "no error"
    except RuntimeError as error:
        message = str(error)
    os.write(write, message.encode())
    os._exit(0)
message = os.read(read, 4096).decode()
os.wait()
assert "Cannot re-initialize CUDA in forked subprocess" in message, message
assert (x * 2).sum().item() == 6
torch.save({"ok": True}, sys.argv[1])
