"""Natural-language instructions for an episode, in our own words."""

from robotwin_adapters.tabletop.scene import SceneSpec
from robotwin_adapters.tabletop.tasks import arm_side

# {A} is moved next to {B} by {arm}; {side} is left or right. `unseen` sentences are for evaluation only.
SEEN = (
    "Put {A} to the {side} of {B}.",
    "Move {A} so that it stands {side} of {B}.",
    "Take {A} with {arm} and set it down {side} of {B}.",
    "Place {A} next to {B}, on its {side}.",
    "Use {arm} to bring {A} to the {side} side of {B}.",
    "{A} belongs on the {side} of {B}; put it there.",
)
UNSEEN = (
    "On the {side} of {B} there should be {A}.",
    "Pick {A} up with {arm} and leave it {side} of {B}.",
    "Shift {A} over to the {side} of {B}.",
)
CARRY_SEEN = (
    "Pick {A} up with {arm} and carry it about.",
    "Take {A} and move it around above the table.",
    "Keep {A} in the hand and go from place to place with {arm}.",
)
CARRY_UNSEEN = ("Lift {A} and do not put it down.",)
BABBLE_SEEN = (
    "Move both arms about freely.",
    "Wave the two arms above the table.",
    "Explore the table with both arms.",
)
BABBLE_UNSEEN = ("Swing both arms around at random.",)
ONE_ARM_SEEN = (
    "Move the {arm} arm about freely and hold the other one still.",
    "Wave the {arm} arm above the table.",
    "Explore the table with the {arm} arm alone.",
)
ONE_ARM_UNSEEN = ("Swing only the {arm} arm around at random.",)


def instructions_for(task: str, setup: SceneSpec, moving: str = "both") -> dict[str, list[str]]:
    """The sentences of one episode in RoboTwin's format; `moving` arms of babble."""
    if task == "babble":
        is_one = moving != "both"
        seen, unseen = (ONE_ARM_SEEN, ONE_ARM_UNSEEN) if is_one else (BABBLE_SEEN, BABBLE_UNSEEN)
        return {
            "seen": [line.format(arm=moving) for line in seen],
            "unseen": [line.format(arm=moving) for line in unseen],
        }
    by_set: dict[str, tuple[str, ...]] = {"seen": SEEN, "unseen": UNSEEN}
    if task == "carry":
        by_set = {"seen": CARRY_SEEN, "unseen": CARRY_UNSEEN}
    words = {
        "A": f"the {setup.object_a.phrase}",
        "B": f"the {setup.object_b.phrase}",
        "arm": f"the {arm_side(setup)} arm",
        "side": task.rpartition("_")[2],
    }
    return {
        name: [_sentence(template.format(**words)) for template in templates]
        for name, templates in by_set.items()
    }


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
