"""stable-baselines3: PPO and DQN on a small environment."""

# requires: stable_baselines3, gymnasium
import sys

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO

device = "cuda" if torch.cuda.is_available() else "cpu"


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.n = 0.0, 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at += 1.0 if action else -1.0
        self.n += 1
        return np.array([self.at], np.float32), self.at, abs(self.at) > 3, self.n > 12, {}


small = dict(net_arch=[16])
ppo = PPO("MlpPolicy", Walk(), n_steps=64, batch_size=32, n_epochs=2, device=device, seed=0, policy_kwargs=small).learn(128)
dqn = DQN("MlpPolicy", Walk(), learning_starts=20, device=device, seed=0, policy_kwargs=small).learn(80)
ppo.save("ppo")
loaded = PPO.load("ppo", device=device)
state = np.array([0.5], np.float32)
results = {
    "same": loaded.predict(state, deterministic=True)[0] == ppo.predict(state, deterministic=True)[0],
    "device": ppo.device.type == device,
    "dqn": int(dqn.predict(state, deterministic=True)[0]) in (0, 1),
    "finite": all(bool(p.isfinite().all()) for p in ppo.policy.parameters()),
}
torch.save(results, sys.argv[1])
