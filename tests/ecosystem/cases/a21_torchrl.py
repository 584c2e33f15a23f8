"""TorchRL and TensorDict: modules, memory maps, replay buffers, advantages, PPO and DQN losses"""

# requires: tensordict, torchrl

import sys

import torch
import torch.nn as nn


def cpu(o):
    if isinstance(o, torch.Tensor):
        return o.detach().cpu()
    if isinstance(o, dict):
        return {k: cpu(v) for k, v in o.items()}
    return [cpu(v) for v in o] if isinstance(o, (list, tuple)) else o


device = "cuda" if torch.cuda.is_available() else "cpu"
g = torch.Generator()


def R(*s):
    return torch.randn(*s, generator=g).to(device)


def td():
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    t = TensorDict({"a": torch.arange(12.0).view(4, 3), "n": {"b": torch.ones(4, 2)}}, [4]).to(device)
    u = t.clone()
    u["a"] *= 2
    s = torch.stack([t, u], 0)
    c = torch.cat([t, u], 0)
    import tempfile

    d = tempfile.mkdtemp()
    t.cpu().memmap(d)
    back = TensorDict.load_memmap(d).to(device)
    m = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), in_keys=["a"], out_keys=["h"]), TensorDictModule(torch.tanh, in_keys=["h"], out_keys=["o"])
    ).to(device)
    torch.manual_seed(0)
    [nn.init.normal_(p) for p in m.parameters()]
    for p in m.parameters():
        p.data = torch.linspace(-1, 1, p.numel()).view_as(p).to(device)
    o = m(t.clone())
    P = TensorDict.from_module(m)
    with P.apply(lambda x: x * 2).to_module(m):
        o2 = m(t.clone())
    cons = t.consolidate() if hasattr(t, "consolidate") else t
    return (
        s["n", "b"],
        c["a"],
        o["o"],
        o2["o"],
        back["a"],
        u[u["a"][:, 0] > 3]["a"],
        (t + u)["a"],
        t.device.type == device,
        t.view(2, 2)["a"].shape,
        s.sum(0)["a"],
        cons["a"],
        t.split(2)[0]["a"],
        t.to_dict()["a"],
        repr(t).replace("cuda:0", "cpu").replace("is_shared=True", "is_shared=False"),
    )


def tdc():
    from tensordict import tensorclass

    @tensorclass
    class D:
        x: torch.Tensor
        y: torch.Tensor

    d = D(x=torch.ones(3, 2), y=torch.zeros(3), batch_size=[3]).to(device)
    d[0] = D(x=torch.zeros(2, device=device), y=torch.ones((), device=device), batch_size=[])
    return d.x, d.y, d[1:].x, d.device.type == device


def rb():
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

    b = TensorDictReplayBuffer(storage=LazyTensorStorage(50, device=device), batch_size=8, sampler=SamplerWithoutReplacement())
    b.extend(TensorDict({"o": torch.arange(40.0).view(20, 2), "r": torch.arange(20.0)}, [20]).to(device))
    s = b.sample(20)
    return s["r"].sort()[0], s.device.type == device


def adv():
    from torchrl.objectives.value.functional import (
        generalized_advantage_estimate,
        td_lambda_return_estimate,
        vec_generalized_advantage_estimate,
        vec_td_lambda_return_estimate,
        vtrace_advantage_estimate,
    )

    g = torch.Generator().manual_seed(0)
    R = lambda *s: torch.randn(*s, generator=g).to(device)
    v, nv, rw = R(3, 7, 1), R(3, 7, 1), R(3, 7, 1)
    dn = R(3, 7, 1) > 1
    return (
        generalized_advantage_estimate(0.99, 0.95, v, nv, rw, dn, dn),
        vec_generalized_advantage_estimate(0.99, 0.95, v, nv, rw, dn, dn),
        td_lambda_return_estimate(0.9, 0.9, nv, rw, dn),
        vec_td_lambda_return_estimate(0.9, 0.9, nv, rw, dn),
        vtrace_advantage_estimate(0.99, R(3, 7, 1), R(3, 7, 1), v, nv, rw, dn, dn),
    )


def ppo():
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss, DQNLoss, SoftUpdate

    torch.manual_seed(0)
    net = nn.Sequential(MLP(in_features=3, out_features=4, num_cells=[8]), NormalParamExtractor()).to(device)
    act = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    cr = ValueOperator(MLP(in_features=3, out_features=1, num_cells=[8]).to(device), in_keys=["observation"])
    L = ClipPPOLoss(act, cr)
    g = torch.Generator().manual_seed(0)
    R = lambda *s: torch.randn(*s, generator=g).to(device)
    d = TensorDict(
        {
            "observation": R(6, 3),
            "action": R(6, 2).tanh() * 0.9,
            "action_log_prob": R(6),
            "sample_log_prob": R(6),
            "next": {
                "observation": R(6, 3),
                "reward": R(6, 1),
                "done": torch.zeros(6, 1, dtype=torch.bool, device=device),
                "terminated": torch.zeros(6, 1, dtype=torch.bool, device=device),
            },
        },
        [6],
        device=device,
    )
    L.value_estimator(d) if 0 else L.make_value_estimator(L.default_value_estimator, gamma=0.9, lmbda=0.9)
    L.value_estimator(d, params=L.critic_network_params, target_params=L.target_critic_network_params)
    o = L(d)
    sum(v for k, v in o.items() if k.startswith("loss")).backward()
    torch.manual_seed(5)
    q = QValueActor(MLP(in_features=3, out_features=4, num_cells=[8]).to(device), spec=None, action_space="one-hot")
    D = DQNLoss(q, action_space="one-hot", delay_value=True)
    up = SoftUpdate(D, tau=0.1)
    d2 = d.exclude("action", "action_log_prob", "sample_log_prob")
    d2["action"] = torch.nn.functional.one_hot(torch.arange(6, device=device) % 4, 4)
    o2 = D(d2)
    o2["loss"].backward()
    up.step()
    return o["loss_critic"], [p.grad for p in L.critic_network_params.values(True, True)], o2["loss"]


r = {}
for f in (td, tdc, rb, adv, ppo):
    g.manual_seed(0)
    torch.manual_seed(0)
    r[f.__name__] = cpu(f())
torch.save(r, sys.argv[1])
