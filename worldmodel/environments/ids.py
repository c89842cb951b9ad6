"""The names under which gymnasium finds the environments; imports gymnasium and nothing else.

Gymnasium 1.x loads no plugins: import `worldmodel.environments` first, or write it before the id, as in
`gymnasium.make("worldmodel.environments:worldmodel/Dream-v0")`.
"""

import gymnasium

IDS = {
    "worldmodel/Tabletop-v0": ("tabletop:TabletopEnv", "tabletop:TabletopVectorEnv"),
    "worldmodel/Dream-v0": ("dream:WorldModelEnv", "dream:WorldModelVectorEnv"),
}


def register_ids() -> None:
    """Register the ids with gymnasium, once."""
    for name, (single, vector) in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=f"worldmodel.environments.{single}",
                vector_entry_point=f"worldmodel.environments.{vector}",
            )
