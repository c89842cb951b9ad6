"""The robots of the tabletop: pairs of equal arms that differ in reach, thickness, colors and joint count.

Joint axes are written in the frame of each link, whose x axis runs along the link:
    6 joints  z y y x y x    yaw, shoulder, elbow, forearm roll, wrist pitch, wrist roll
    7 joints  z y x y x y x  the same with an upper-arm roll after the shoulder
At all zeros an arm is stretched forwards (+y of the world) and level; positive pitch turns it down.
"""

from dataclasses import dataclass

Rgba = tuple[float, float, float, float]

TCP_OFFSET = 0.12  # m from the wrist frame to the fingertip center, along the approach direction (local x)
FINGER_TIP = 0.016  # m that the pads reach beyond the fingertip center
FINGER_THICKNESS, FINGER_WIDTH = 0.020, 0.034  # m, along and across the closing direction
AXES = {6: "zyyxyx", 7: "zyxyxyx"}


@dataclass(frozen=True)
class Embodiment:
    """Two identical arms on pedestals at the edge of the table."""

    name: str
    joints_per_arm: int  # 6 or 7
    base_spacing: float  # m between the two pedestals, along x
    base_y: float  # m, world; the table begins at y = -0.35
    shoulder_height: float  # m above the floor; table top is at 0.74
    upper_arm: float  # m, shoulder to elbow
    forearm: float  # m, elbow to wrist
    link_radius: float  # m
    home: tuple[float, ...]  # rad, base to wrist, the same for both arms
    gripper_opening: float  # m between the finger pads at command 1
    joint_speed: float  # rad/s, highest speed of any joint in a planned move
    tool_speed: float  # m/s, highest speed of the fingertips in a straight move
    upper_rgba: Rgba  # pedestal and upper arm
    forearm_rgba: Rgba
    joint_rgba: Rgba  # balls at shoulder, elbow and wrist
    hand_rgba: Rgba
    finger_rgba: Rgba

    def __post_init__(self) -> None:
        if self.joints_per_arm not in AXES:
            raise ValueError(
                f"{self.name}: joints_per_arm is one of {sorted(AXES)}, got {self.joints_per_arm}"
            )
        if len(self.home) != self.joints_per_arm:
            raise ValueError(
                f"{self.name}: home has {len(self.home)} angles for {self.joints_per_arm} joints per arm"
            )

    @property
    def axes(self) -> str:
        """One letter per joint, base to wrist."""
        return AXES[self.joints_per_arm]

    @property
    def link_offsets(self) -> tuple[float, ...]:
        """Distance of each joint from the one before it, along the link (m)."""
        half_upper, half_forearm = self.upper_arm / 2, self.forearm / 2
        if self.joints_per_arm == 6:
            return (0.0, 0.0, self.upper_arm, half_forearm, half_forearm, 0.0)
        return (0.0, 0.0, half_upper, half_upper, half_forearm, half_forearm, 0.0)

    def base_x(self, side: str) -> float:
        """World x of the pedestal on that side (m)."""
        return self.base_spacing / 2 * (-1 if side == "left" else 1)


_WHITE: Rgba = (0.92, 0.92, 0.90, 1.0)
_BLACK: Rgba = (0.12, 0.12, 0.14, 1.0)

EMBODIMENTS: dict[str, Embodiment] = {
    "finch": Embodiment(
        name="finch",
        joints_per_arm=6,
        base_spacing=0.56,
        base_y=-0.62,
        shoulder_height=0.94,
        upper_arm=0.40,
        forearm=0.38,
        link_radius=0.030,
        home=(0.0, -1.21, 2.10, 0.0, 0.68, 0.0),
        gripper_opening=0.10,
        joint_speed=1.4,
        tool_speed=0.24,
        upper_rgba=(0.95, 0.48, 0.10, 1.0),
        forearm_rgba=(0.98, 0.70, 0.20, 1.0),
        joint_rgba=(0.28, 0.28, 0.32, 1.0),
        hand_rgba=(0.25, 0.25, 0.30, 1.0),
        finger_rgba=_BLACK,
    ),
    "heron": Embodiment(
        name="heron",
        joints_per_arm=6,
        base_spacing=0.78,
        base_y=-0.66,
        shoulder_height=1.00,
        upper_arm=0.46,
        forearm=0.44,
        link_radius=0.040,
        home=(0.0, -1.16, 2.16, 0.0, 0.57, 0.0),
        gripper_opening=0.12,
        joint_speed=1.2,
        tool_speed=0.30,
        upper_rgba=(0.25, 0.40, 0.75, 1.0),
        forearm_rgba=(0.62, 0.74, 0.92, 1.0),
        joint_rgba=(0.14, 0.20, 0.40, 1.0),
        hand_rgba=_WHITE,
        finger_rgba=(0.85, 0.15, 0.15, 1.0),
    ),
    "wren": Embodiment(
        name="wren",
        joints_per_arm=6,
        base_spacing=0.44,
        base_y=-0.60,
        shoulder_height=0.88,
        upper_arm=0.36,
        forearm=0.36,
        link_radius=0.036,
        home=(0.0, -1.31, 1.96, 0.0, 0.92, 0.0),
        gripper_opening=0.10,
        joint_speed=1.8,
        tool_speed=0.32,
        upper_rgba=(0.16, 0.50, 0.30, 1.0),
        forearm_rgba=(0.55, 0.78, 0.45, 1.0),
        joint_rgba=_WHITE,
        hand_rgba=(0.95, 0.85, 0.25, 1.0),
        finger_rgba=(0.30, 0.22, 0.12, 1.0),
    ),
    "crane": Embodiment(
        name="crane",
        joints_per_arm=7,
        base_spacing=0.68,
        base_y=-0.65,
        shoulder_height=0.97,
        upper_arm=0.44,
        forearm=0.42,
        link_radius=0.034,
        home=(0.0, -1.19, 0.0, 2.16, 0.0, 0.60, 0.0),
        gripper_opening=0.11,
        joint_speed=1.5,
        tool_speed=0.27,
        upper_rgba=_WHITE,
        forearm_rgba=(0.78, 0.76, 0.80, 1.0),
        joint_rgba=(0.50, 0.25, 0.60, 1.0),
        hand_rgba=(0.50, 0.25, 0.60, 1.0),
        finger_rgba=(0.10, 0.55, 0.60, 1.0),
    ),
    "swift": Embodiment(
        name="swift",
        joints_per_arm=6,
        base_spacing=0.62,
        base_y=-0.61,
        shoulder_height=0.91,
        upper_arm=0.42,
        forearm=0.35,
        link_radius=0.033,
        home=(0.0, -1.268, 2.249, 0.0, 0.590, 0.0),
        gripper_opening=0.105,
        joint_speed=1.6,
        tool_speed=0.28,
        upper_rgba=(0.70, 0.14, 0.20, 1.0),
        forearm_rgba=(0.90, 0.45, 0.45, 1.0),
        joint_rgba=(0.15, 0.35, 0.40, 1.0),
        hand_rgba=(0.15, 0.35, 0.40, 1.0),
        finger_rgba=(0.20, 0.18, 0.35, 1.0),
    ),
}
