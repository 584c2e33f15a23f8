"""CUDA graphs and a compiled model: a training captured and replayed, callables made of graphs, beside the same without."""

import copy
import sys

import torch
import torch.nn.functional as F

STEPS, WARM = 10, 3
data = [(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), torch.full((4, 1), float(i))) for i in range(STEPS)]


def train(graphed, wrap=lambda model: model):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers).cuda()
    called = wrap(model)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2, capturable=True)
    x, y = torch.zeros(4, 8, device="cuda"), torch.zeros(4, 1, device="cuda")

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = F.mse_loss(called(x), y)
        loss.backward()
        optimiser.step()
        return loss

    losses = []
    for i, (inputs, targets) in enumerate(data):
        x.copy_(inputs)
        y.copy_(targets)
        if not graphed or i < WARM:
            losses.append(step().item())
            continue
        if i == WARM:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = step()
        graph.replay()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def callables():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).cuda()
    plain = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(2, 4, device="cuda", requires_grad=True),))
    found = []
    for _ in range(3):
        x = torch.randn(2, 4, device="cuda", requires_grad=True)
        outs = []
        for called, owner in ((graphed, model), (plain, plain)):
            owner.zero_grad()
            x.grad = None
            called(x).square().sum().backward()
            outs.append([x.grad.cpu(), *(p.grad.cpu() for p in owner.parameters())])
        for mine, its in zip(*outs, strict=True):
            assert torch.equal(mine, its), (mine, its)
        found += outs[0]
    return found


losses, weights = train(False)
for other in (train(True), train(False, lambda model: torch.compile(model, backend="wooly"))):
    assert losses == other[0], (losses, other[0])
    for mine, its in zip(weights, other[1], strict=True):
        assert torch.equal(mine, its), (mine, its)
torch.save({"losses": losses, "weights": weights, "callables": callables()}, sys.argv[1])
