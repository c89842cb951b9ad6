"""A trained model that is told other actions, or draws them in another way: nothing is trained again."""

from dataclasses import dataclass, replace
from pathlib import Path

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.model import WorldModel


@dataclass(frozen=True)
class ModelChange:
    """What is different from the model as it was trained."""

    action_space: str = ""  # which recorded actions it is told; empty: those that it was trained on
    command_lag: float = -1.0  # of the poses that it draws; negative: as it was trained


def write_changed(model: str, change: ModelChange, folder: Path) -> None:
    """The changed model as a folder of its own, unless it is there."""
    if folder.exists():
        return
    changed = WorldModel.from_pretrained(model)
    if change.command_lag >= 0:
        changed.config = replace(changed.config, command_lag=change.command_lag)
    if change.action_space:
        # Scales stay: poses are poses, and the network has learned this scale.
        stats = changed.normalizer.stats.items()
        told = {name: replace(entry, action_space=change.action_space) for name, entry in stats}
        changed.normalizer = ActionNormalizer(told, changed.normalizer.width)
    changed.save_pretrained(folder)
