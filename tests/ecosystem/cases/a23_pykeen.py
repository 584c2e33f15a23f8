"""PyKEEN: knowledge-graph embeddings are trained and evaluated."""

# requires: pykeen
import logging
import sys

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import ComplEx, RotatE, TransE
from pykeen.training import SLCWATrainingLoop
from pykeen.triples import TriplesFactory

logging.disable(logging.CRITICAL)
device = "cuda" if torch.cuda.is_available() else "cpu"
rng = np.random.default_rng(0)
triples = np.stack([rng.integers(0, 30, 200).astype(str), rng.integers(0, 4, 200).astype(str), rng.integers(0, 30, 200).astype(str)], 1)
factory = TriplesFactory.from_labeled_triples(triples)
results = {}
for kind in (TransE, ComplEx, RotatE):
    torch.manual_seed(0)
    model = kind(triples_factory=factory, embedding_dim=16, random_seed=0).to(device)
    hrt = factory.mapped_triples.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.softplus(-model.score_hrt(hrt)).mean() + model.score_t(hrt[:, :2]).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        model.post_parameter_update()
    results[kind.__name__] = [loss.item(), model.score_h(hrt[:5, 1:]).detach().cpu()]
    ranks = RankBasedEvaluator().evaluate(model, factory.mapped_triples[:50], batch_size=16, device=torch.device(device), use_tqdm=False)
    results[kind.__name__].append(float(ranks.get_metric("mean_reciprocal_rank")))
model = TransE(triples_factory=factory, embedding_dim=16, random_seed=0).to(device)
losses = SLCWATrainingLoop(model=model, triples_factory=factory, optimizer=torch.optim.Adam(model.parameters())).train(
    triples_factory=factory, num_epochs=2, batch_size=64, use_tqdm=False
)
results["trained"] = len(losses)
torch.save(results, sys.argv[1])
