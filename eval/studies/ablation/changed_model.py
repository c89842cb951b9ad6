"""A trained model with other actions, or another way of drawing them, without retraining."""

from dataclasses import dataclass, replace
from pathlib import Path

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.model import WorldModel


@dataclass(frozen=True)
class ModelChange:
    """Differences from the trained model."""

    action_space: str = ""  # which recorded actions it gets; empty: those it was trained on
    command_lag: float = -1.0  # of the poses that it draws; negative: as trained


def write_changed(model: str, change: ModelChange, folder: Path) -> None:
    """Write the changed model as a separate folder, unless it exists."""
    if folder.exists():
        return
    changed = WorldModel.from_pretrained(model)
    if change.command_lag >= 0:
        actions = replace(changed.config.actions, pose_maps=PoseMapsConfig(change.command_lag))
        changed.config = replace(changed.config, actions=actions)
    if change.action_space:
        # Scales stay: both spaces are poses, and the network has learned this scale.
        stats = changed.normalizer.stats.items()
        told = {name: replace(entry, action_space=change.action_space) for name, entry in stats}
        changed.normalizer = ActionNormalizer(told, changed.normalizer.width)
    changed.save_pretrained(folder)
