"""The planning protocol of stable-worldmodel: encode, rollout and get_cost on dictionaries of tensors.

    info["pixels"]       [B, S or 1, T, 3, H, W] or [B, T, 3, H, W], uint8 or float in [0, 1]; the last counts
    info["goal"]         the same, the picture to reach
    action_candidates    [B, S, horizon, a], or [B, S, horizon, 4 a] with four actions a step, raw units

An embedding is the autoencoder's latent of one frame, flattened; a cost is the mean squared distance between
that of the last dreamed frame and the goal's.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.environments.starts import camera_argument
from worldmodel.models.world_model.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import FRAMES_PER_LATENT, CameraMatrices, to_unit_range


class PlanningModel:
    """Dynamics and cost for solvers that look for the best of many action sequences."""

    def __init__(
        self,
        model: WorldModel,
        embodiment: str | None = None,
        *,
        camera: CameraMatrices | None = None,
        num_inference_steps: int = 1,
        seed: int = 0,
    ) -> None:
        self.pipeline = RolloutPipeline(model)
        self.model, self.camera, self.seed = model, camera, seed
        self.embodiment = embodiment or model.normalizer.embodiments[0]
        self.num_inference_steps = num_inference_steps
        self.action_dim = len(model.normalizer.stats[self.embodiment].names)

    @torch.no_grad()
    def encode(self, info: dict[str, Any]) -> dict[str, Any]:
        """Adds `emb` [B, 1, d] of the newest frame."""
        return {**info, "emb": self._embed(_newest(info["pixels"]))[:, None]}

    @torch.no_grad()
    def rollout(self, info: dict[str, Any], action_candidates: Float[Tensor, "b s n a"]) -> dict[str, Any]:
        """Adds `predicted_emb` [B, S, k, d] and `predicted_pixels` [B, S, k, 3, H, W], one per block."""
        actions = self._rows(action_candidates)
        count, samples = actions.shape[:2]
        first = to_unit_range(_newest(info["pixels"]))
        session = self.pipeline.open(
            first[:, None],
            embodiment=self.embodiment,
            num_inference_steps=self.num_inference_steps,
            generator=[torch.Generator().manual_seed(self.seed) for _ in range(count)],
            **camera_argument(self.model, [self.camera] * count),
        ).fork(samples)
        blocks = actions.flatten(0, 1).split(FRAMES_PER_LATENT, dim=1)
        last = torch.stack([session.step(block)[:, -1] for block in blocks], 1)
        embedded = self._embed(last.flatten(0, 1)).unflatten(0, (count, samples, len(blocks)))
        return {**info, "predicted_emb": embedded, "predicted_pixels": last.unflatten(0, (count, samples))}

    @torch.no_grad()
    def criterion(
        self, info: dict[str, Any], action_candidates: Float[Tensor, "b s n a"] | None = None
    ) -> Float[Tensor, "b s"]:
        """The cost of what `rollout` added."""
        goal = self._embed(_newest(info["goal"]))
        return (info["predicted_emb"][:, :, -1] - goal[:, None]).square().mean(-1)

    def get_cost(
        self, info: dict[str, Any], action_candidates: Float[Tensor, "b s n a"]
    ) -> Float[Tensor, "b s"]:
        """How far each candidate ends from the goal."""
        return self.criterion(self.rollout(info, action_candidates), action_candidates)

    def _embed(self, frames: Tensor) -> Float[Tensor, "b d"]:
        return self.model.encode(to_unit_range(frames)[:, None]).flatten(1)

    def _rows(self, candidates: Tensor) -> Float[Tensor, "b s n a"]:
        width = candidates.shape[-1]
        if width == FRAMES_PER_LATENT * self.action_dim:
            candidates = candidates.unflatten(-1, (FRAMES_PER_LATENT, self.action_dim)).flatten(2, 3)
        elif width != self.action_dim or candidates.shape[2] % FRAMES_PER_LATENT:
            raise ValueError(
                f"expected candidates [B, S, 4k, {self.action_dim}] or [B, S, k, "
                f"{FRAMES_PER_LATENT * self.action_dim}], got {list(candidates.shape)}"
            )
        return candidates


def _newest(pixels: Tensor) -> Tensor:
    """[B, 3, H, W]: the last frame of the first sample."""
    if pixels.ndim == 6:
        pixels = pixels[:, 0]
    return pixels[:, -1] if pixels.ndim == 5 else pixels
