"""Which parts a world model of a given config has, and at which sizes."""

import math
from dataclasses import replace

from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import nn
from transformers import Dinov2Model

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.desk.small_net import SmallNet
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import ActionCritic, HistoryCritic, LatentVideoCritic, ProjectionHead
from worldmodel.mcl.gradient_flow import freeze_unreached
from worldmodel.models.actions.interface import ActionInterface
from worldmodel.models.actions.protocol import PathShape
from worldmodel.models.compositor import COMPOSITOR_CELL, Compositor
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.hand_references import HandReferences
from worldmodel.models.idm import Controller, EmbodimentClassifier, InverseDynamicsModel
from worldmodel.models.picture_head import PictureHead
from worldmodel.models.vae import VideoAutoencoder
from worldmodel.types import FRAMES_PER_LATENT

TASK_DIM = 16  # of the vector that stands for a task's name


def check_fit(contract: InputSpec, backbone: WanTransformer3DModel, vae: VideoAutoencoder | None) -> None:
    """Refuse a backbone or autoencoder that cannot work on these frames."""
    channels = backbone.config["in_channels"]
    if channels != contract.latent_channels:
        raise ValueError(f"expected a backbone of {contract.latent_channels} latent channels, got {channels}")
    _, *patch = backbone.config["patch_size"]
    _, *grid = contract.latent_grid
    if grid[0] % patch[0] or grid[1] % patch[1]:
        raise ValueError(
            f"latents of {grid[0]}x{grid[1]} do not divide into patches of {patch[0]}x{patch[1]}"
        )
    if vae is None:
        return
    expected = (contract.latent_channels, contract.latent_scale)
    got = (vae.config["z_dim"], vae.config["scale_factor_spatial"])
    if got != expected:
        raise ValueError(f"expected an autoencoder of {expected} (channels, pixels per latent), got {got}")
    if isinstance(vae, CausalAutoencoder):
        contract.check(size=(vae.config["height"], vae.config["width"]))


def condition_dim(config: WorldModelConfig, normalizer: ActionNormalizer) -> int:
    """Size of the action vector that drives one transition."""
    return {"no_action": 0, "acg": normalizer.width, "lacg": config.latent_action_dim}[config.regime]


def build_interface(
    config: WorldModelConfig,
    contract: InputSpec,
    normalizer: ActionNormalizer,
    backbone: WanTransformer3DModel,
) -> ActionInterface:
    """The action interface at the backbone's width."""
    shape, (_, height, width) = backbone.config, contract.latent_grid
    _, patch_height, patch_width = shape["patch_size"]
    heads = shape["num_attention_heads"]
    return ActionInterface(
        config.actions,
        PathShape(
            action_dim=condition_dim(config, normalizer),
            width=heads * shape["attention_head_dim"],
            num_layers=shape["num_layers"],
            num_heads=heads,
            patch=(patch_height, patch_width),
            grid=(height, width),
        ),
    )


def build_small(
    config: WorldModelConfig, contract: InputSpec, backbone: WanTransformer3DModel
) -> SmallNet | None:
    """The additions to a small backbone, where the config asks for them."""
    if config.small is None:
        return None
    shape = backbone.config
    width = shape["num_attention_heads"] * shape["attention_head_dim"]
    size, maps = tuple(shape["patch_size"]), config.actions.map_channels
    return SmallNet(config.small, contract.latent_grid, size, shape["in_channels"], width, maps)


def build_compositor(config: WorldModelConfig, contract: InputSpec) -> Compositor | None:
    """What makes decoded frames sharp, where the config asks for it."""
    if not config.compositor_width:
        return None
    if contract.height % COMPOSITOR_CELL or contract.width % COMPOSITOR_CELL:
        raise ValueError(
            f"a compositor needs frames whose sides are multiples of {COMPOSITOR_CELL} pixels, got "
            f"{contract.height}x{contract.width}: set compositor_width=0, or another data.clip size"
        )
    assert config.actions.pose_maps is not None, "the config was checked"
    lag = config.actions.pose_maps.command_lag
    return Compositor((contract.height, contract.width), config.compositor_width, command_lag=lag)


def build_hand_references(
    config: WorldModelConfig, contract: InputSpec, normalizer: ActionNormalizer
) -> HandReferences | None:
    """Places for pictures of the robots' hands, where the config asks for them."""
    if not config.hand_references:
        return None
    size = contract.height, contract.width
    return HandReferences(len(normalizer.embodiments), config.hand_references, size)


def build_head(config: WorldModelConfig) -> PictureHead | None:
    """What turns decoded frames into shown ones, where the config asks for it."""
    return None if config.head is None else PictureHead(config.head)


def build_idm(
    config: WorldModelConfig, normalizer: ActionNormalizer, encoder: Dinov2Model | None
) -> InverseDynamicsModel | None:
    """The IDM: source of latent actions (lacg), judge of robot actions (acg, unless its weight is 0)."""
    if config.regime == "no_action" or (config.regime == "acg" and not config.objective.idm_weight):
        return None
    return InverseDynamicsModel(
        config.idm,
        latent_action_dim=config.latent_action_dim if config.regime == "lacg" else None,
        robot_action_dim=normalizer.width,
        encoder=encoder,
    )


def build_controller(config: WorldModelConfig, normalizer: ActionNormalizer) -> Controller | None:
    """Robot actions to latent actions (lacg)."""
    if config.regime != "lacg":
        return None
    return Controller(normalizer.width, config.idm.hidden, config.latent_action_dim)


def build_embodiment_classifier(
    config: WorldModelConfig, normalizer: ActionNormalizer
) -> EmbodimentClassifier | None:
    """The adversary of embodiment-specific latent actions: lacg with two embodiments or more."""
    num_embodiments = len(normalizer.embodiments)
    if config.regime != "lacg" or num_embodiments < 2 or not config.objective.adversarial_weight:
        return None
    return EmbodimentClassifier(config.latent_action_dim, num_embodiments)


def build_parts(
    config: WorldModelConfig,
    contract: InputSpec,
    normalizer: ActionNormalizer,
    backbone: WanTransformer3DModel,
    encoder: Dinov2Model | None,
) -> dict[str, nn.Module | None]:
    """Build all modules other than the backbone, by name; None for those that the config leaves out.

    The one list of parts, always in this order: random weights depend on it.
    """
    width = backbone.config["num_attention_heads"] * backbone.config["attention_head_dim"]
    return {
        "small": build_small(config, contract, backbone),
        "interface": build_interface(config, contract, normalizer, backbone),
        "idm": build_idm(config, normalizer, encoder),
        "controller": build_controller(config, normalizer),
        "embodiment_classifier": build_embodiment_classifier(config, normalizer),
        "mcl": build_mcl(config, contract, normalizer, width),
        "compositor": build_compositor(config, contract),
        "hand_references": build_hand_references(config, contract, normalizer),
        "head": build_head(config),
    }


def contrast_widths(
    config: WorldModelConfig, contract: InputSpec, normalizer: ActionNormalizer, width: int
) -> tuple[int, int, int]:
    """Widths of z, of x_hat and of the key in one row of the contrast."""
    mcl = config.mcl
    assert mcl is not None
    group_dim = FRAMES_PER_LATENT * condition_dim(config, normalizer)
    frames, *grid = contract.latent_grid
    frame_dim = contract.latent_channels * math.prod(grid)
    key_dim = group_dim if mcl.key == "group" else width
    return {
        "noisy": (frame_dim, frame_dim, key_dim),
        "history": (config.history * frame_dim, frames * frame_dim, (frames - config.history) * key_dim),
        "latent_action": (group_dim, frame_dim, key_dim),
    }[mcl.latent]


def build_mcl(
    config: WorldModelConfig, contract: InputSpec, normalizer: ActionNormalizer, width: int
) -> MechanisticContrast | None:
    """The mechanistic contrast of actions for a backbone of this width."""
    mcl = config.mcl
    if mcl is None:
        return None
    group_dim = FRAMES_PER_LATENT * condition_dim(config, normalizer)
    latent_dim, output_dim, key_dim = contrast_widths(config, contract, normalizer, width)
    critics: dict[str, type[LatentVideoCritic | HistoryCritic | ActionCritic]]
    critics = {"noisy": LatentVideoCritic, "history": HistoryCritic, "latent_action": ActionCritic}
    feature_dim = mcl.feature_dim(latent_dim, output_dim)
    auxiliaries = {"embodiment": len(normalizer.embodiments), "task": TASK_DIM}
    contrast = MechanisticContrast(
        # D.5 trains what infers the latent action too.
        replace(mcl, through_latent=mcl.through_latent or mcl.latent == "latent_action"),
        critics[mcl.latent](contract.latent_channels, group_dim, mcl.critic_hidden),
        ProjectionHead(feature_dim, mcl.embedding_dim),
        ProjectionHead(key_dim, mcl.embedding_dim),
        {
            name: (
                ProjectionHead(feature_dim, mcl.embedding_dim),
                ProjectionHead(auxiliaries[name], mcl.embedding_dim),
            )
            for name in mcl.auxiliaries
        },
    )
    return freeze_unreached(contrast)
