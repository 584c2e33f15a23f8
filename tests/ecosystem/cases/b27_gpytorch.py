"""gpytorch: exact GP regression, sparse variational GP, predictions"""

# requires: gpytorch
# tolerance: 2e-3
import math
import sys

import gpytorch
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.linspace(0, 1, 20).to(device)
y = torch.sin(x * 2 * math.pi)


class GP(gpytorch.models.ExactGP):
    def __init__(self, x, y, l):
        super().__init__(x, y, l)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5) + gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


lik = gpytorch.likelihoods.GaussianLikelihood().to(device)
m = GP(x, y, lik).to(device)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(lik, m)
opt = torch.optim.Adam(m.parameters(), lr=0.1)
m.train(), lik.train()
r = {"l": [], "s": []}
for _ in range(4):
    opt.zero_grad()
    l = -mll(m(x), y)
    l.backward()
    opt.step()
    r["l"].append(l.item())
m.eval(), lik.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    p = lik(m(torch.linspace(0, 1, 7).to(device)))
    r["p"] = [p.mean.cpu(), p.variance.cpu()]


class SV(gpytorch.models.ApproximateGP):
    def __init__(self, z):
        vd = gpytorch.variational.CholeskyVariationalDistribution(z.size(0))
        super().__init__(gpytorch.variational.VariationalStrategy(self, z, vd, learn_inducing_locations=True))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


s = SV(x[::4].clone()).to(device)
lk = gpytorch.likelihoods.BernoulliLikelihood().to(device)
e = gpytorch.mlls.VariationalELBO(lk, s, 20)
o = torch.optim.Adam(s.parameters(), 0.05)
s.variational_strategy.variational_params_initialized.fill_(1)
for _ in range(3):
    o.zero_grad()
    l = -e(s(x), (y > 0).float())
    l.backward()
    o.step()
    r["s"].append(l.item())
torch.save(r, sys.argv[1])
