"""Action-conditioned video generation for robots, and tests of whether actions control the video.

The names below are the public API; each is imported on first use.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robotwin_adapters.open_dataset import open_dataset as open_dataset
    from worldmodel.config import load_config as load_config
    from worldmodel.context_module.models.context_module import ContextModule as ContextModule
    from worldmodel.data.clips import ClipConfig as ClipConfig
    from worldmodel.data.dataset import build_clip_dataset as build_clip_dataset
    from worldmodel.evaluation.metrics.video import psnr as psnr
    from worldmodel.evaluation.metrics.video import ssim as ssim
    from worldmodel.locator.model import Locator as Locator
    from worldmodel.mcl.config import MclConfig as MclConfig
    from worldmodel.mcl.contrast import MechanisticContrast as MechanisticContrast
    from worldmodel.mddiff.models.image_vae import ImageVae as ImageVae
    from worldmodel.mddiff.models.mddiff import MDDiff as MDDiff
    from worldmodel.models.config import InputSpec as InputSpec
    from worldmodel.models.config import WorldModelConfig as WorldModelConfig
    from worldmodel.models.model import WorldModel as WorldModel
    from worldmodel.pipelines.rollout import RolloutPipeline as RolloutPipeline
    from worldmodel.pipelines.session import Session as Session
    from worldmodel.types import Clip as Clip
    from worldmodel.types import ClipBatch as ClipBatch
    from worldmodel.types import Episode as Episode
    from worldmodel.types import RolloutResult as RolloutResult

try:
    __version__ = metadata.version("worldmodel")
except metadata.PackageNotFoundError:  # not installed: run from a checkout
    __version__ = "0+unknown"

_HOME = {
    "open_dataset": "robotwin_adapters.open_dataset",
    "load_config": "worldmodel.config",
    "ClipConfig": "worldmodel.data.clips",
    "build_clip_dataset": "worldmodel.data.dataset",
    "Locator": "worldmodel.locator.model",
    "psnr": "worldmodel.evaluation.metrics.video",
    "ssim": "worldmodel.evaluation.metrics.video",
    "MclConfig": "worldmodel.mcl.config",
    "MechanisticContrast": "worldmodel.mcl.contrast",
    "ImageVae": "worldmodel.mddiff.models.image_vae",
    "MDDiff": "worldmodel.mddiff.models.mddiff",
    "ContextModule": "worldmodel.context_module.models.context_module",
    "InputSpec": "worldmodel.models.config",
    "WorldModelConfig": "worldmodel.models.config",
    "WorldModel": "worldmodel.models.model",
    "RolloutPipeline": "worldmodel.pipelines.rollout",
    "Session": "worldmodel.pipelines.session",
    "Clip": "worldmodel.types",
    "ClipBatch": "worldmodel.types",
    "Episode": "worldmodel.types",
    "RolloutResult": "worldmodel.types",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worldmodel' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
