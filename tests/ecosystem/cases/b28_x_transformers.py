"""x-transformers, rotary-embedding-torch, vector-quantize-pytorch, entmax"""

# requires: x_transformers, entmax, vector_quantize_pytorch, rotary_embedding_torch
import sys

import torch
from entmax import entmax15, entmax15_loss, sparsemax
from rotary_embedding_torch import RotaryEmbedding
from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize
from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper, ViTransformerWrapper

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
r = {}
m = TransformerWrapper(
    num_tokens=20,
    max_seq_len=16,
    attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_kv_heads=1),
)
w = AutoregressiveWrapper(m).to(device)
x = torch.randint(0, 20, (2, 12)).to(device)
opt = torch.optim.Adam(w.parameters(), 1e-2)
r["l"] = []
for _ in range(3):
    l = w(x)
    opt.zero_grad(), l.backward(), opt.step()
    r["l"].append(l.item())
w.eval()
with torch.no_grad():
    r["gen"] = w.generate(x[:, :3], 5, temperature=0.0, cache_kv=True).cpu()
v = ViTransformerWrapper(
    image_size=16, patch_size=8, num_classes=3, attn_layers=Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, attn_flash=True)
).to(device)
r["vit"] = v(torch.ones(2, 3, 16, 16, device=device)).detach().cpu()
a = torch.randn(4, 9).to(device).requires_grad_()
for f in (entmax15, sparsemax):
    o = f(a, dim=-1)
    (g,) = torch.autograd.grad((o * a).sum(), a)
    r[f.__name__] = [o.detach().cpu(), g.cpu()]
r["el"] = entmax15_loss(a, torch.tensor([0, 1, 2, 3]).to(device)).detach().cpu()
torch.manual_seed(1)
vq = VectorQuantize(dim=8, codebook_size=16, decay=0.8, commitment_weight=1.0, kmeans_init=False).to(device)
z = torch.randn(2, 10, 8).to(device)
q, i, c = vq(z)
r["vq"] = [q.detach().cpu(), i.cpu(), c.detach().cpu()]
q, i, c = vq(z)
r["vq2"] = [i.cpu()]
f = FSQ([4, 4, 3]).to(device)
q, i = f(torch.randn(2, 6, 3).to(device))
r["fsq"] = [q.cpu(), i.cpu(), f.indices_to_codes(i).cpu()]
rv = ResidualVQ(dim=8, num_quantizers=2, codebook_size=8).to(device).eval()
q, i, c = rv(z)
r["rvq"] = i.cpu()
ro = RotaryEmbedding(dim=4, use_xpos=False).to(device)
r["ro"] = ro.rotate_queries_or_keys(torch.ones(1, 2, 5, 8, device=device)).detach().cpu()
torch.save(r, sys.argv[1])
