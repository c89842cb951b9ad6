"""The names under which gymnasium finds the environments; imports gymnasium and nothing else.

The package is a plugin of gymnasium, so an installed one need not be imported first.
"""

import gymnasium

IDS = {
    "worldmodel/Tabletop-v0": ("tabletop:TabletopEnv", "tabletop:TabletopVectorEnv"),
    "worldmodel/Dream-v0": ("dream:WorldModelEnv", "dream:WorldModelVectorEnv"),
}


def register_ids() -> None:
    """Tell gymnasium the ids, once. Installed packages are asked by gymnasium itself."""
    for name, (single, vector) in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=f"worldmodel.environments.{single}",
                vector_entry_point=f"worldmodel.environments.{vector}",
            )
