"""An index out of range ends with a message that names the operation, and, as with CUDA, ends the device for the process."""

# cpu: no
import sys

import torch

weights = torch.randn(10, 4).cuda()
ids = torch.tensor([1, 2, 30]).cuda()
try:
    torch.nn.functional.embedding(ids, weights).sum().item()
except RuntimeError as error:
    message = f"{type(error).__name__}: {error}"
else:
    message = "no error"
print(message)
assert "index" in message and "embedding" in message, message
try:
    after = torch.ones(2, device="cuda").sum().item()
except RuntimeError as error:
    after = type(error).__name__
torch.save({"message": message, "after": after}, sys.argv[1])
