"""Embedding(sparse=True) in training with SparseAdam; word2vec with negative samples, gradients of several uses added and scaled."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
table = torch.nn.Embedding(10, 4, sparse=True).to(device)
optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
table(torch.tensor([1, 3, 1]).to(device)).sum().backward()
optimizer.step()
results = {"table": table.weight.detach().cpu()}

words, contexts = (torch.nn.Embedding(12, 5, sparse=True).to(device) for _ in range(2))
weights = [words.weight, contexts.weight]
optimizer = torch.optim.SparseAdam(weights, lr=0.05)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(2):  # accumulated
        centre, near, others = torch.randint(12, (8,)), torch.randint(12, (8,)), torch.randint(12, (8, 3))
        centre, near, others = centre.to(device), near.to(device), others.to(device)
        positive = torch.nn.functional.logsigmoid((words(centre) * contexts(near)).sum(1))
        negative = torch.nn.functional.logsigmoid(-(contexts(others) @ words(centre)[:, :, None]).squeeze(2)).sum(1)
        loss = -(positive + negative).mean()
        loss.backward()
    for weight in weights:
        weight.grad.div_(2)
    optimizer.step()
    losses.append(loss.item())
results["word2vec"] = [losses, words.weight.detach().cpu(), contexts.weight.detach().cpu()]
torch.save(results, sys.argv[1])
