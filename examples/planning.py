"""The planning protocol of stable-worldmodel: encode, rollout and get_cost on dictionaries of tensors.

    info["pixels"]       [B, S or 1, H, 3, h, w] or [B, H, 3, h, w], uint8 or float in [0, 1]; H given frames
    info["goal"]         the same, the picture to reach
    action_candidates    [B, S, horizon, a], or [B, S, horizon, 4 a] with four actions a step, raw units
    predicted_emb        [B, S, H + horizon, d], those of the given frames first

An embedding is the autoencoder's latent of one frame, flattened. A cost is the mean squared distance between
that of the last dreamed frame and the goal's. The dream starts at the newest given frame: `action_history` is
not used.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel
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
        num_inference_steps: int = 0,
        seed: int = 0,
    ) -> None:
        self.pipeline = RolloutPipeline(model)
        self.model, self.camera, self.seed = model, camera, seed
        self.embodiment = embodiment or model.normalizer.embodiments[0]
        self.num_inference_steps = num_inference_steps
        self.action_dim = len(model.normalizer.stats[self.embodiment].names)

    @torch.no_grad()
    def encode(self, info: dict[str, Any]) -> dict[str, Any]:
        """Adds `emb` [B, H, d] of the given frames."""
        return {**info, "emb": self._embed(_frames(info["pixels"]))}

    @torch.no_grad()
    def rollout(self, info: dict[str, Any], action_candidates: Float[Tensor, "b s n a"]) -> dict[str, Any]:
        """Adds `predicted_emb` and `predicted_pixels` [B, S, horizon, 3, h, w]."""
        actions = self._rows(action_candidates)
        count, samples, horizon = action_candidates.shape[:3]
        given = _frames(info["pixels"])
        session = self.pipeline.open(
            to_unit_range(given[:, -1:]),
            embodiment=self.embodiment,
            num_inference_steps=self.num_inference_steps,
            generator=[torch.Generator().manual_seed(self.seed) for _ in range(count)],
            camera=self.camera,
        ).fork(samples)
        blocks = actions.flatten(0, 1).split(FRAMES_PER_LATENT, dim=1)
        made = torch.cat([session.step(block) for block in blocks], 1)
        each = made.shape[1] // horizon  # frames of a step, the last of which counts
        made = made[:, each - 1 :: each].unflatten(0, (count, samples))
        context = self._embed(given)[:, None].expand(-1, samples, -1, -1)
        dreamed = self._embed(made.flatten(0, 1)).unflatten(0, (count, samples))
        return {**info, "predicted_emb": torch.cat([context, dreamed], 2), "predicted_pixels": made}

    @torch.no_grad()
    def criterion(
        self, info: dict[str, Any], action_candidates: Float[Tensor, "b s n a"] | None = None
    ) -> Float[Tensor, "b s"]:
        """The cost of what `rollout` added."""
        goal = self._embed(_frames(info["goal"])[:, -1:])[:, 0]
        return (info["predicted_emb"][:, :, -1] - goal[:, None]).square().mean(-1)

    def get_cost(
        self, info: dict[str, Any], action_candidates: Float[Tensor, "b s n a"]
    ) -> Float[Tensor, "b s"]:
        """How far each candidate ends from the goal."""
        return self.criterion(self.rollout(info, action_candidates), action_candidates)

    def _embed(self, frames: Float[Tensor, "b t 3 h w"]) -> Float[Tensor, "b t d"]:
        flat = to_unit_range(frames).flatten(0, 1)[:, None]
        latents = self.model.encode(flat.to(self.model.device)).to(frames.device)
        return latents.flatten(1).unflatten(0, frames.shape[:2])

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


def _frames(pixels: Tensor) -> Float[Tensor, "b t 3 h w"]:
    """Those of the first sample: solvers repeat them for every candidate."""
    return pixels[:, 0] if pixels.ndim == 6 else pixels
