"""The action paths of a model: `ActionConfig` lists them, `ActionInterface` adds up what they embed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from worldmodel.device import in_float32
from worldmodel.models.actions.adaln import AdalnConfig
from worldmodel.models.actions.camera_motion import CameraMotionConfig
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.actions.protocol import ActionEmbedding, GatedTokens, PathConfig, PathShape
from worldmodel.models.actions.published.bwm import BwmConfig
from worldmodel.models.actions.published.open_world import OpenWorldConfig
from worldmodel.models.actions.start_state import StartStateConfig
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.types import FRAMES_PER_LATENT, Extras, Row, Transitions


@dataclass(frozen=True)
class ActionConfig:
    """How actions reach the backbone: one block a path, any number of them."""

    # They are built in this order, and random weights depend on it: new paths come last.
    pose_maps: PoseMapsConfig | None = None  # hand poses drawn into the picture
    adaln: AdalnConfig | None = field(default_factory=AdalnConfig)  # modulation of every block
    place_map: PlaceMapConfig | None = None  # an embedding for each place
    tokens: TokensConfig | None = None  # attention to each action
    bwm: BwmConfig | None = None  # of a published model, with its weights
    open_world: OpenWorldConfig | None = None  # of a published model, with its weights
    camera_motion: CameraMotionConfig | None = None  # where each pixel was in the frame before
    start_state: StartStateConfig | None = None  # the robot's measured state at the first frame

    def __post_init__(self) -> None:
        if not self.paths():
            raise ValueError("actions reach the network by no path: set one, as actions.adaln={}")
        names = [name for path in self.paths().values() for name in path.row_shapes]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two action paths read rows named {', '.join(sorted(twice))}: rename one")

    def paths(self) -> dict[str, PathConfig]:
        """Those that are set, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: path for name, path in found.items() if path is not None}

    def check(self, regime: str) -> None:
        """Refuse paths that do not work with a regime."""
        for name, path in self.paths().items():
            if regime not in path.regimes:
                raise ValueError(
                    f"actions.{name} works with regime {' or '.join(path.regimes)}, got {regime}: set "
                    f"actions.{name}=null"
                )

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """Of all paths; see PathConfig."""
        return {name: row for path in self.paths().values() for name, row in path.row_shapes.items()}

    @property
    def versions(self) -> Mapping[str, int]:
        """Of the rows, by path."""
        return {name: path.version for name, path in self.paths().items() if path.row_shapes}

    @property
    def map_channels(self) -> int:
        """Of the maps of all paths side by side."""
        return sum(path.map_channels for path in self.paths().values())

    @property
    def cross_attends(self) -> bool:
        """Whether a path does."""
        return any(path.cross_attends for path in self.paths().values())

    @property
    def needs_views(self) -> bool:
        """Whether a path does."""
        return any(path.needs_views for path in self.paths().values())

    @property
    def replaces_prompt(self) -> bool:
        """Whether a path does."""
        return any(path.replaces_prompt for path in self.paths().values())

    @property
    def keeps_first(self) -> bool:
        """Whether the history of a video is its first frame and the latest ones."""
        return self.bwm is not None and self.bwm.keep_first

    def read(self, clip: Transitions) -> Extras:
        """The rows of all paths."""
        return {name: rows for path in self.paths().values() for name, rows in path.read(clip).items()}


class ActionInterface(nn.ModuleDict):
    """Actions and extras -> ActionEmbedding: the sum over paths, which are its entries.

    Everything new starts at zero: an untrained interface leaves Wan bit for bit as it was.
    """

    def __init__(self, config: ActionConfig, shape: PathShape) -> None:
        super().__init__({name: path.build(shape) for name, path in config.paths().items()})
        self.row_shapes = config.row_shapes

    @property
    def gates(self) -> GatedTokens | None:
        """The path that embeds action tokens, if there is one."""
        return next((path for path in self.values() if isinstance(path, GatedTokens)), None)

    @in_float32
    def forward(
        self,
        actions: Float[Tensor, "b n u"],
        extras: Extras | None = None,
        missing: Bool[Tensor, "b f"] | None = None,
    ) -> ActionEmbedding:
        """`missing` marks latent frames whose actions are unknown; of frame 0 few paths know any."""
        extras = extras or {}
        if lacking := self.row_shapes.keys() - extras.keys():
            raise ValueError(
                f"the model's action paths need {', '.join(sorted(lacking))} beside the actions, got "
                f"{', '.join(extras) or 'none'}"
            )
        if missing is None:
            size = len(actions), 1 + actions.shape[1] // FRAMES_PER_LATENT
            missing = torch.zeros(size, dtype=torch.bool, device=actions.device)
        embedded: ActionEmbedding = reduce(add, (path(actions, extras, missing) for path in self.values()))
        return embedded
