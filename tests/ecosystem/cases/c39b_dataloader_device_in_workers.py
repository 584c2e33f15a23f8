"""The device used in forked workers of a DataLoader: CUDA's own error."""

# cpu: no
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class OnDevice(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((2,), float(i), device="cuda")


torch.ones(1, device="cuda").item()
try:
    next(iter(DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork")))
    message = "no error"
except RuntimeError as error:
    message = str(error)
assert "Cannot re-initialize CUDA in forked subprocess" in message, message
assert torch.ones(2, device="cuda").sum().item() == 2
torch.save({"ok": True}, sys.argv[1])
