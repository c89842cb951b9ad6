import json

import pytest
from studies.real_robots.protocol import EPISODES, HELD_OUT, draw, held_out_episodes


@pytest.mark.parametrize("name", list(HELD_OUT))
def test_held_out_episodes_are_those_that_were_drawn(name: str) -> None:
    readable = json.loads(EPISODES.read_text())[name]["readable"]
    known = held_out_episodes(name)
    assert known == draw(readable[::-1], *HELD_OUT[name])
    assert (len(known.test), len(known.choice)) == HELD_OUT[name]
    assert not {*known.test} & {*known.choice}
    assert {*known.test, *known.choice} < {*readable}
    assert known.splits.test_uids == known.test
    assert known.splits.val == known.splits.test == 0
