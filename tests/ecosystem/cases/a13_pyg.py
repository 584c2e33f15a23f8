"""PyTorch Geometric: graph layers in training, pooling and utilities."""

# requires: torch_geometric
import sys

import torch
from torch_geometric import nn as gnn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import add_self_loops, degree, softmax, to_dense_batch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
graphs = [Data(x=torch.randn(n, 6), edge_index=torch.randint(n, (2, 3 * n)), y=torch.tensor([n % 2])) for n in (5, 7, 4)]
batch = Batch.from_data_list(graphs).to(device)
results = {}
for kind in (gnn.GCNConv, gnn.GATConv, gnn.SAGEConv, gnn.TransformerConv, gnn.GraphConv):
    torch.manual_seed(1)
    layer, head = kind(6, 8).to(device), torch.nn.Linear(8, 2).to(device)
    out = head(gnn.global_mean_pool(layer(batch.x, batch.edge_index).relu(), batch.batch))
    loss = torch.nn.functional.cross_entropy(out, batch.y)
    loss.backward()
    results[kind.__name__] = [out.detach().cpu(), *[p.grad.cpu() for p in layer.parameters() if p.grad is not None]]
results["degree"] = degree(batch.edge_index[0], batch.num_nodes).cpu()
results["loops"] = add_self_loops(batch.edge_index)[0].cpu()
results["softmax"] = softmax(batch.x[batch.edge_index[0], 0], batch.edge_index[1], num_nodes=batch.num_nodes).cpu()
results["dense"] = [t.cpu() for t in to_dense_batch(batch.x, batch.batch)]
results["max"] = gnn.global_max_pool(batch.x, batch.batch).cpu()
torch.save(results, sys.argv[1])
