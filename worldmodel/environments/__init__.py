"""World models and the simulator as gymnasium environments. Importing this registers their ids.

The names below are imported on first use, so that registering does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from worldmodel.environments.ids import register_ids

if TYPE_CHECKING:
    from worldmodel.environments.dream import WorldModelEnv as WorldModelEnv
    from worldmodel.environments.dream import WorldModelVectorEnv as WorldModelVectorEnv
    from worldmodel.environments.policies import RandomPolicy as RandomPolicy
    from worldmodel.environments.policies import ScriptedPolicy as ScriptedPolicy
    from worldmodel.environments.policies import run_policy as run_policy
    from worldmodel.environments.tabletop import TabletopEnv as TabletopEnv
    from worldmodel.environments.tabletop import TabletopVectorEnv as TabletopVectorEnv

_HOME = {
    "WorldModelEnv": "dream",
    "WorldModelVectorEnv": "dream",
    "RandomPolicy": "policies",
    "ScriptedPolicy": "policies",
    "run_policy": "policies",
    "TabletopEnv": "tabletop",
    "TabletopVectorEnv": "tabletop",
}
__all__ = list(_HOME)

register_ids()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worldmodel.environments' has no attribute {name!r}")
    return getattr(importlib.import_module(f"worldmodel.environments.{_HOME[name]}"), name)
