"""torch.distributions: densities exactly, samples by their moments."""

import sys

import torch
import torch.distributions as D

device = "cuda" if torch.cuda.is_available() else "cpu"


def t(*values):
    return torch.tensor(values).to(device)


made = {
    "normal": (D.Normal(t(1.0), t(2.0)), 1.0, 2.0),
    "uniform": (D.Uniform(t(-1.0), t(3.0)), 1.0, (16 / 12) ** 0.5),
    "gamma": (D.Gamma(t(3.0), t(2.0)), 1.5, (3 / 4) ** 0.5),
    "beta": (D.Beta(t(2.0), t(2.0)), 0.5, 0.05**0.5),
    "exponential": (D.Exponential(t(2.0)), 0.5, 0.5),
    "poisson": (D.Poisson(t(4.0)), 4.0, 2.0),
    "bernoulli": (D.Bernoulli(t(0.3)), 0.3, 0.21**0.5),
    "laplace": (D.Laplace(t(0.0), t(1.0)), 0.0, 2**0.5),
    "student": (D.StudentT(t(8.0)), 0.0, (8 / 6) ** 0.5),
}
results = {}
for name, (d, mean, deviation) in made.items():
    torch.manual_seed(0)
    sample = d.sample((4000,))
    near = abs(sample.mean().item() - mean) < 0.15 and abs(sample.std().item() - deviation) < 0.2 * deviation
    results[name] = [near, d.log_prob(t(0.5) if name not in ("poisson", "bernoulli") else t(1.0)).cpu(), d.mean.cpu(), d.variance.cpu()]
c = D.Categorical(t(0.1, 0.2, 0.7))
results["categorical"] = [
    c.entropy().item(),
    bool((torch.bincount(c.sample((3000,)), minlength=3).cpu() / 3000 - torch.tensor([0.1, 0.2, 0.7])).abs().max() < 0.05),
]
mvn = D.MultivariateNormal(t(0.0, 1.0), torch.tensor([[2.0, 0.5], [0.5, 1.0]]).to(device))
results["mvn"] = [mvn.log_prob(t(0.3, 0.4)).item(), bool((mvn.sample((4000,)).mean(0).cpu() - torch.tensor([0.0, 1.0])).abs().max() < 0.15)]
results["kl"] = D.kl_divergence(made["normal"][0], D.Normal(t(0.0), t(1.0))).cpu()
results["dirichlet"] = [D.Dirichlet(t(1.0, 2.0)).log_prob(t(0.4, 0.6)).item(), D.Dirichlet(t(1.0, 2.0)).sample().sum().item()]
torch.save(results, sys.argv[1])
