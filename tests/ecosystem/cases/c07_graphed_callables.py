"""torch.cuda.make_graphed_callables."""

# cpu: no
import sys

import torch

model = torch.nn.Linear(4, 4).cuda()
graphed = torch.cuda.make_graphed_callables(model, (torch.randn(2, 4, device="cuda"),))
torch.save({"y": graphed(torch.ones(2, 4, device="cuda")).cpu()}, sys.argv[1])
