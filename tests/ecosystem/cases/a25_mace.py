"""MACE: energies, forces and a training step of an equivariant force field."""

# requires: mace
import sys

import numpy as np
import torch

torch.serialization.add_safe_globals([slice])  # what e3nn 0.4 saved its constants with
from e3nn import o3
from mace import data, modules, tools
from mace.tools import torch_geometric

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
table = tools.AtomicNumberTable([1, 8])
model = modules.MACE(
    r_max=4.0,
    num_bessel=4,
    num_polynomial_cutoff=5,
    max_ell=2,
    interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
    interaction_cls_first=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
    num_interactions=2,
    num_elements=2,
    hidden_irreps=o3.Irreps("8x0e + 8x1o"),
    MLP_irreps=o3.Irreps("8x0e"),
    gate=torch.nn.functional.silu,
    atomic_energies=np.array([-1.0, -3.0]),
    avg_num_neighbors=4,
    atomic_numbers=table.zs,
    correlation=2,
).to(device)
rng = np.random.default_rng(0)
configs = [
    data.Configuration(
        atomic_numbers=np.array([8, 1, 1, 8, 1, 1]),
        positions=rng.normal(size=(6, 3)) * 1.5,
        properties={"energy": -4.0, "forces": rng.normal(size=(6, 3))},
        property_weights={"energy": 1.0, "forces": 1.0},
    )
    for _ in range(2)
]
atoms = [data.AtomicData.from_config(config, z_table=table, cutoff=4.0) for config in configs]
batch = next(iter(torch_geometric.dataloader.DataLoader(atoms, batch_size=2, shuffle=False))).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_of = modules.WeightedEnergyForcesLoss(1.0, 10.0).to(device)
losses = []
for _ in range(3):
    out = model(batch.to_dict(), training=True, compute_force=True)
    loss = loss_of(pred=out, ref=batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
out = model(batch.to_dict(), compute_force=True, compute_stress=False)
torch.save({"losses": losses, "energy": out["energy"].detach().cpu(), "forces": out["forces"].detach().cpu()}, sys.argv[1])
