"""What a person might say to the robot before an episode, in our own words."""

from robotwin_adapters.tabletop.scene import SceneSpec
from robotwin_adapters.tabletop.tasks import arm_side

# {A} is moved beside {B} by {arm}; {side} is left or right. `unseen` sentences are for evaluation only.
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
BABBLE_SEEN = (
    "Move both arms about freely.",
    "Wave the two arms above the table.",
    "Explore the table with both arms.",
)
BABBLE_UNSEEN = ("Swing both arms around at random.",)


def instructions_for(task: str, setup: SceneSpec) -> dict[str, list[str]]:
    """The sentences of one episode, as RoboTwin's instruction files hold them."""
    if task == "babble":
        return {"seen": list(BABBLE_SEEN), "unseen": list(BABBLE_UNSEEN)}
    words = {
        "A": f"the {setup.object_a.phrase}",
        "B": f"the {setup.object_b.phrase}",
        "arm": f"the {arm_side(setup)} arm",
        "side": task.rsplit("_", 1)[1],
    }
    return {
        name: [_sentence(template.format(**words)) for template in templates]
        for name, templates in (("seen", SEEN), ("unseen", UNSEEN))
    }


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
