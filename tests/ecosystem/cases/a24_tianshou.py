"""Tianshou: a policy network collects and learns by PPO and DQN losses."""

# requires: tianshou, gymnasium
import sys

import gymnasium as gym
import numpy as np
import torch
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.utils.net.common import Net

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
np.random.seed(0)
env = gym.make("CartPole-v1")
net = Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=(32, 32)).to(device)
buffer = VectorReplayBuffer(200, 1)
seen, _ = env.reset(seed=0)
for step in range(120):
    action = step * 7 % 2
    after, reward, over, cut, _ = env.step(action)
    buffer.add(
        Batch(
            obs=seen[None],
            act=np.array([action]),
            rew=np.array([reward]),
            terminated=np.array([over]),
            truncated=np.array([cut]),
            obs_next=after[None],
            info=np.array([{}]),
        ),
        buffer_ids=[0],
    )
    seen = env.reset(seed=step)[0] if over or cut else after
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
losses = []
for _ in range(5):
    batch, _ = buffer.sample(32)
    batch.to_torch_(dtype=torch.float32, device=device)
    with torch.no_grad():
        target = batch.rew + 0.9 * net(batch.obs_next)[0].max(-1).values * (1 - batch.terminated.float())
    q = net(batch.obs)[0].gather(1, batch.act.long()[:, None])[:, 0]
    loss = torch.nn.functional.smooth_l1_loss(q, target)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    losses.append(loss.item())
torch.save({"losses": losses, "q": q.detach().cpu()}, sys.argv[1])
