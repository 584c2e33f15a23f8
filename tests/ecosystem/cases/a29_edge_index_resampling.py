"""Libraries that compare data pointers: PyG's EdgeIndex and Index, MONAI's spatial transforms, huggingface_hub's shared weights"""

# requires: torch_geometric, monai, huggingface_hub
import sys
import tempfile

import torch
from huggingface_hub import load_torch_model, save_torch_model
from monai.transforms import Affine, AffineGrid, Resample, Spacing
from torch_geometric import EdgeIndex, Index
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x, image = torch.randn(3, 4).to(device), torch.randn(1, 8, 8).to(device)
edges = EdgeIndex([[0, 1, 1, 2], [1, 0, 2, 1]], sort_order="row", is_undirected=True, sparse_size=(3, 3)).to(device)
edges.validate().fill_cache_()
results = {"matmul": edges @ x, "csr": edges.get_csr()[0][0], "csc": edges.get_csc()[0][0], "flip": edges.flip(0).as_tensor()}
results["sorted"] = edges.sort_by("col").values.as_tensor()
for layer in (GCNConv, SAGEConv, GATConv):
    results[layer.__name__] = layer(4, 3).to(device)(x, edges)
index = Index([0, 1, 1, 2], dim_size=3, is_sorted=True).to(device)
results |= {"indptr": index.get_indptr(), "index + 1": (index + 1).as_tensor()}

where = torch.device(device)
grid = AffineGrid(rotate_params=0.3, device=where)(spatial_size=(8, 8))[0]
results |= {
    "affine": Affine(rotate_params=0.3, device=where, image_only=True)(image).as_tensor(),
    "spacing": Spacing(pixdim=(2.0, 2.0))(image).as_tensor(),
    "resample": Resample(device=where)(image, grid).as_tensor(),
}

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
model[1].weight = model[0].weight
with tempfile.TemporaryDirectory() as folder:
    save_torch_model(model, folder)
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    other[1].weight = other[0].weight
    load_torch_model(other, folder, strict=False)
results["loaded"] = [p.detach() for p in other.parameters()]
torch.save({k: [t.cpu() for t in v] if isinstance(v, list) else v.detach().cpu() for k, v in results.items()}, sys.argv[1])
