"""Pyro: SVI, enumeration, NUTS, flows, a Gaussian process; BoTorch: a model is fitted and an acquisition function optimised"""

# requires: pyro, botorch
# tolerance: 1e-3
import sys

import pyro
import pyro.distributions as dist
import torch
from botorch.acquisition import UpperConfidenceBound, qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from pyro.contrib import gp
from pyro.distributions.transforms import affine_autoregressive, spline_coupling
from pyro.infer import MCMC, NUTS, SVI, TraceEnum_ELBO, config_enumerate

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
pyro.set_rng_seed(0)
x = torch.linspace(-1, 1, 10).to(device)
y = 2 * x + 0.1


def line(x, y=None):
    zero = torch.tensor(0.0, device=device)
    slope, shift = pyro.sample("slope", dist.Normal(zero, 1.0)), pyro.sample("shift", dist.Normal(zero, 1.0))
    with pyro.plate("points", len(x)):
        return pyro.sample("y", dist.Normal(slope * x + shift, 0.5), obs=y)


@config_enumerate
def mixture(x):
    weights = pyro.param("weights", lambda: torch.tensor([0.4, 0.6], device=device), constraint=dist.constraints.simplex)
    means = pyro.param("means", lambda: torch.tensor([-1.0, 1.0], device=device))
    with pyro.plate("points", len(x)):
        group = pyro.sample("group", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(means[group], 0.5), obs=x)


svi = SVI(mixture, lambda x: None, pyro.optim.ClippedAdam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=1))
results["mixture"] = [svi.step(x) for _ in range(4)] + [pyro.param("weights").detach().cpu()]
chain = MCMC(NUTS(line, max_tree_depth=2), num_samples=4, warmup_steps=3, disable_progbar=True)
chain.run(x, y)  # its draws are the device's own
results["chain"] = {name: [tuple(v.shape), bool(v.isfinite().all())] for name, v in chain.get_samples().items()}
regression = gp.models.GPRegression(x, y, gp.kernels.RBF(1), noise=torch.tensor(0.1)).to(device)
results["gp"] = [v.detach().cpu() for v in regression(torch.tensor([0.3, 0.5], device=device), full_cov=True)]
for name, make in {"autoregressive": affine_autoregressive, "spline": spline_coupling}.items():
    torch.manual_seed(0)
    flow = make(4, hidden_dims=[8]).to(device)
    base = dist.Normal(torch.zeros(4, device=device), 1.0).to_event(1)
    at = torch.tensor([[0.1, 0.2, 0.3, 0.4]], device=device)
    results[name] = dist.TransformedDistribution(base, [flow]).log_prob(at).detach().cpu()

torch.manual_seed(0)
points = torch.rand(8, 2, dtype=torch.float64).to(device)
values = points.sin().sum(1, keepdim=True)
model = SingleTaskGP(points, values)
fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 8}})
posterior = model.posterior(torch.linspace(0, 1, 6, dtype=torch.float64).view(3, 2).to(device))
improvement = qLogExpectedImprovement(model, best_f=values.max(), sampler=SobolQMCNormalSampler(torch.Size([16]), seed=1))
best, value = optimize_acqf(
    UpperConfidenceBound(model, beta=0.1),
    bounds=torch.stack([torch.zeros(2), torch.ones(2)]).double().to(device),
    q=1,
    num_restarts=2,
    raw_samples=8,
    options={"maxiter": 5, "seed": 0},
)
tried = improvement(torch.tensor([[[0.5, 0.5]], [[0.1, 0.9]]], dtype=torch.float64).to(device))
found = {"mean": posterior.mean, "variance": posterior.variance, "improvement": tried, "best": best, "value": value}
results |= {name: v.detach().cpu().float() for name, v in found.items()}
torch.save(results, sys.argv[1])
