"""MCL on the action channel: how a contrast reads the mechanism of a world model from its training clips.

A reading says which latent z the mechanism is differentiated by, and how the clean estimate depends on it:

    noisy          z[b c f h w]  the noisy latents of a clip            a row is a generated latent frame
    history        z[b c g h w]  the given clean latents                a row is a clip
    latent_action  z[b n u]      the actions that drive it, u := z      a row is a generated latent frame
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from worldmodel.mcl.config import DIRECTIONAL, ActionMclConfig
from worldmodel.mcl.features import JointPass
from worldmodel.mcl.rows import MclOutput
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.dynamics import FdmOutput
from worldmodel.models.model import WorldModel
from worldmodel.models.parts import TASK_DIM
from worldmodel.types import ClipBatch, latent_frame_actions

Embed = Callable[[Tensor], ActionEmbedding]  # actions[b n u] -> what the backbone hears of them
Run = Callable[[Tensor, ActionEmbedding], FdmOutput]  # noisy latents and actions -> the network's answer


@dataclass(frozen=True)
class DrivenClips:
    """Noisy clips, the actions that drive them, and the network between."""

    batch: ClipBatch
    noisy: Float[Tensor, "b c f h w"]
    actions: Float[Tensor, "b n u"]  # what drives them, with the graph of what inferred them
    rows: Bool[Tensor, "b f"]  # generated latent frames with known actions
    embed: Embed
    run: Run

    def output(self) -> FdmOutput:
        """The network's output for these clips."""
        return self.run(self.noisy, self.embed(self.actions))


@dataclass(frozen=True)
class Reading:
    """The latent z, and the generator as a function of z with all else fixed."""

    z: Float[Tensor, "..."]
    inputs: Callable[[Tensor], tuple[Tensor, Tensor]]  # z -> noisy latents and actions of the clips
    generate: Callable[[Tensor], FdmOutput]
    output: FdmOutput  # generate(z), for the host's own loss
    embedding: ActionEmbedding  # of the actions, at z


def read_mechanism(model: WorldModel, clips: DrivenClips) -> Reading:
    """Run the clips once, as a function of the latent that the config names."""
    config, history = _config(model), model.config.history
    # Gradient features are derivatives by z; along a direction z needs no graph.
    is_leaf = config.mode not in DIRECTIONAL
    noisy, actions = clips.noisy, clips.actions
    if config.latent == "latent_action":
        z = actions if actions.requires_grad else actions.clone().requires_grad_(is_leaf)
        embedding = clips.embed(z)
        output = clips.run(noisy, embedding)
        return Reading(
            z,
            lambda moved: (noisy, moved),
            lambda moved: clips.run(noisy, clips.embed(moved)),
            output,
            embedding,
        )
    embedding = clips.embed(actions)
    if config.latent == "noisy":
        z = noisy.clone().requires_grad_(is_leaf)

        def noisy_at(moved: Tensor) -> Tensor:
            return moved
    else:
        z = noisy[:, :, :history].clone().requires_grad_(is_leaf)

        def noisy_at(moved: Tensor) -> Tensor:
            return torch.cat([moved, noisy[:, :, history:]], 2)

    def generate(moved: Tensor) -> FdmOutput:
        return clips.run(noisy_at(moved), embedding)

    return Reading(z, lambda moved: (noisy_at(moved), actions), generate, generate(z), embedding)


def contrast_actions(
    model: WorldModel,
    clips: DrivenClips,
    reading: Reading,
    generator: torch.Generator,
    joint_pass: JointPass | None = None,
) -> MclOutput:
    """The MCL term of these clips; with `joint_pass`, the network runs on moved latents there."""
    assert model.mcl is not None
    # Keys are given, not trained: z must not be shaped to be told apart by the heads alone.
    groups = latent_frame_actions(clips.actions).detach()
    rows = clips.rows
    embedded = reading.embedding.frames
    assert embedded is not None, "adaln is always there"
    keys = {"action": groups if _config(model).key == "group" else embedded.detach()}
    keys |= {name: auxiliary_keys(name, clips.batch, model) for name in _config(model).auxiliaries}
    if _config(model).latent == "history":
        keys["action"] = keys["action"][:, model.config.history :].flatten(1)
        rows = rows[:, -1]
    else:
        keys = {name: key if key.ndim == 3 else _per_frame(key, rows) for name, key in keys.items()}
    clean = reading.output.clean
    output: MclOutput = model.mcl(
        lambda moved, _: reading.generate(moved).clean,
        reading.z,
        keys.pop("action"),
        u_for_g=groups,
        # Under no_grad (validation) there is no graph for gradients: MCL then makes its own.
        x_hat=clean if clean.requires_grad or _config(model).mode in DIRECTIONAL else None,
        mask=rows,
        also=keys,
        joint_pass=joint_pass,
        is_half=model.fdm.backbone.patch_embedding.weight.dtype == torch.bfloat16,
        rng=generator,
    )
    return output


def auxiliary_keys(name: str, batch: ClipBatch, model: WorldModel) -> Float[Tensor, "b a"]:
    """The robot of each clip as a one-hot row, or its task as a vector derived from its name."""
    if name == "embodiment":
        return F.one_hot(batch.embodiment, len(model.normalizer.embodiments)).float()
    if not batch.tasks:
        raise ValueError(f"mcl auxiliary 'task' needs clips that name their task: {batch.sources[0]}, ...")
    return torch.stack([task_vector(task) for task in batch.tasks]).to(batch.robot_actions.device)


def task_vector(task: str) -> Float[Tensor, " a"]:
    """The same unit vector for the same name, on every machine; nearly orthogonal ones for others."""
    source = torch.Generator().manual_seed(zlib.crc32(task.encode()))
    return F.normalize(torch.randn(TASK_DIM, generator=source), dim=0)


def _per_frame(key: Float[Tensor, "b a"], rows: Bool[Tensor, "b f"]) -> Float[Tensor, "b f a"]:
    return key[:, None].expand(-1, rows.shape[1], -1)


def _config(model: WorldModel) -> ActionMclConfig:
    assert model.mcl is not None
    config = model.mcl.config
    assert isinstance(config, ActionMclConfig), type(config)
    return config
