"""torch.export of models that convert types and devices: dynamic shapes, saving and loading, decompositions, gradients"""

import io
import sys

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.qkv, self.scale = nn.Embedding(10, 8), nn.Linear(8, 24), nn.Parameter(torch.ones(8))

    def norm(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.scale

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = self.qkv(self.norm(x)).view(*tokens.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril().to(tokens.device)
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return (x @ self.embedding.weight.t()).double().float() + torch.arange(tokens.shape[1], device=tokens.device)[None, :, None].half()


model = Block().to(device)
tokens = torch.randint(0, 10, (2, 5)).to(device)
program = torch.export.export(model, (tokens,), dynamic_shapes=({1: torch.export.Dim("length", min=2, max=16)},))
file = io.BytesIO()
torch.export.save(program, file)
file.seek(0)
results = {"eager": model(tokens).detach().cpu(), "nodes": sum("_assert_tensor_metadata" in str(n.target) for n in program.graph.nodes) > 0}
for name, exported in {"exported": program, "loaded": torch.export.load(file), "decomposed": program.run_decompositions()}.items():
    results[name] = [exported.module()(tokens).detach().cpu(), exported.module()(tokens[:, :3]).detach().cpu()]
trained = program.module()
F.cross_entropy(trained(tokens).flatten(0, 1), tokens.flatten()).backward()
results["gradients"] = {name: p.grad.cpu() for name, p in trained.named_parameters()}
torch.save(results, sys.argv[1])
