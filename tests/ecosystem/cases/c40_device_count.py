"""Questions about devices: count, names, capability, properties, current device."""

# cpu: no
import sys

import torch

assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
properties = torch.cuda.get_device_properties(0)
assert properties.major >= 8 and properties.multi_processor_count > 0 and torch.cuda.get_device_name() == properties.name
assert torch.cuda.get_device_capability() == (properties.major, properties.minor)
assert torch.cuda.is_bf16_supported() and torch.ones(1).cuda().device == torch.device("cuda", 0)
with torch.cuda.device(0):
    assert torch.ones(1, device="cuda").is_cuda
try:
    torch.ones(1, device="cuda:3")
    message = "no error"
except RuntimeError as error:
    message = str(error)
assert "invalid device ordinal" in message, message
torch.save({"version": torch.version.cuda is not None}, sys.argv[1])
