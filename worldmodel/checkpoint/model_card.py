"""The README of a saved world model: what it takes, what it was trained on, how to call it."""

from worldmodel.data.action_spaces import describe_action_spaces
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.actions.published.first_action import PublishedPath
from worldmodel.models.config import InputSpec, WorldModelConfig

DRIVES = {
    "no_action": "nothing: it continues the first frames on its own",
    "acg": "robot actions",
    "lacg": "latent actions: inferred from video, copied from another episode, or made from robot actions",
}

TEMPLATE = """---
library_name: worldmodel{license}
pipeline_tag: image-to-video
tags:
- world-model
- robotics
---
# World model ({regime})

Predicts robot video from its first frames. Driven by {drive}.

| | |
|---|---|
| frames | {height} x {width} pixels, {fps:g} per second, camera {camera} |
| actions | {actions} |
| action paths | {path} |
| clip | {num_frames} frames, of which the first {num_history} are given |
| backbone | {backbone} |
{credits}| network predicts | {prediction} |
| MCL | {mcl} |

Input that differs from this table is refused. Actions are in the robot's own units; their scales are inside.

## Embodiments

{embodiments}

## Use

```python
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline

pipeline = RolloutPipeline(WorldModel.from_pretrained("."))
settings = {{"embodiment": "{first}"{cameras}}}
video = pipeline(frames, robot_actions, **settings).frames
```
"""


def model_card(config: WorldModelConfig, contract: InputSpec, normalizer: ActionNormalizer) -> str:
    """Markdown with the front matter the hub reads."""
    adapters = f" with rank {config.lora.rank} adapters" if config.lora.rank else ""
    stats, paths = normalizer.stats.items(), config.actions.paths().values()
    published = [path for path in paths if isinstance(path, PublishedPath)]
    start = "as published" if published else "from scratch"
    return TEMPLATE.format(
        license="".join(f"\nlicense: {path.license}" for path in published if path.license),
        credits="".join(f"| weights from | {path.credits} |\n" for path in published),
        regime=config.regime,
        drive=DRIVES[config.regime],
        height=contract.height,
        width=contract.width,
        fps=contract.fps,
        camera=(contract.camera or "not recorded") + (f", {contract.layout}" if contract.layout else ""),
        actions=describe_action_spaces(entry.action_space for entry in normalizer.stats.values()),
        path="; ".join(f"{name}: {path.summary}" for name, path in config.actions.paths().items())
        if config.regime != "no_action"
        else "none",
        num_frames=contract.num_frames,
        num_history=config.num_given,
        backbone=(config.pretrained or f"Wan of {config.backbone.num_layers} layers, {start}") + adapters,
        prediction=config.prediction,
        mcl="off" if config.mcl is None else f"{config.mcl.variant}, {config.mcl.mode}",
        embodiments="\n".join(f"- `{name}`: {', '.join(entry.names)}" for name, entry in stats),
        first=normalizer.embodiments[0],
        cameras=', "camera": episode.cameras[name]' if config.actions.needs_views else "",
    )
