"""From robot commands to latent actions: makes a latent-action model drivable by a real robot's interface."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Controller(nn.Module):
    """Robot actions, read in order from the last known frame on -> one latent action for each.

    A command says where to go, and the commands before it say where the robot is by then: future frames,
    which do not exist yet while driving, are not needed.
    """

    def __init__(
        self, robot_action_dim: int, feature_dim: int, latent_action_dim: int, hidden: int = 128
    ) -> None:
        super().__init__()
        self.start = nn.Linear(feature_dim, hidden)
        self.lift = nn.Sequential(nn.Linear(robot_action_dim + feature_dim, hidden), nn.GELU())
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Linear(hidden, latent_action_dim)
        )

    def forward(
        self, robot_actions: Float[Tensor, "b n a"], features: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b n k"]:
        """Normalized robot actions that start at the frame `features` describe."""
        context = features[:, None].expand(-1, robot_actions.shape[1], -1)
        lifted = self.lift(torch.cat([robot_actions, context], -1))
        state = self.start(features).tanh()[None].contiguous()
        remembered, _ = self.memory(lifted, state)
        return self.out(torch.cat([lifted, remembered], -1))
