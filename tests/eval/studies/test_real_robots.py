import json
from pathlib import Path

import pytest
from studies.real_robots.page import control_leads, lead, lead_text, read_split, table
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


def test_the_published_numbers_are_those_of_the_clips() -> None:
    records = read_split(Path("docs/results/real_robots/g1_seed0.jsonl"), "test")
    page = Path("docs/results/real_robots.md").read_text()
    rows = [line for line in table(records).splitlines() if not line.startswith("| direct/")]
    assert [line for line in rows if line not in page] == []
    assert table(records).split("| direct/true")[1].splitlines()[0] in page.split("| direct/true")[1]
    for other in ("base", "direct/true", "nearest", "head/shuffled", "head/shifted", "head/other_episode"):
        assert lead_text(lead(records, "head/true", other)) in page
    leads, holds = control_leads(records, "head")
    assert all(holds.values())
    assert len(holds) == 8
    assert min(found.mean for found in leads.values()) > 3.1
    assert min(found.ahead for found in leads.values()) == 17


def test_the_numbers_of_the_second_robot_are_those_of_its_clips() -> None:
    records = read_split(Path("docs/results/real_robots/cr5_seed0.jsonl"), "test")
    page = Path("docs/results/real_robots.md").read_text().split("## Results: CR5")[1]
    assert [line for line in table(records).splitlines() if line not in page] == []
    for other in ("base", "nearest", "head/scaled", "head/shifted", "head/other_episode"):
        assert lead_text(lead(records, "head/true", other)) in page
    leads, holds = control_leads(records, "head")
    assert all(holds.values())
    assert min(found.mean for found in leads.values()) > 1.5
    assert min(found.ahead for found in leads.values()) == 11


def test_the_numbers_of_the_third_run_are_those_of_its_clips() -> None:
    file = Path("docs/results/real_robots/g1_third.jsonl")
    page = Path("docs/results/real_robots.md").read_text().split("## Results of the third run")[1]
    records = read_split(file, "test")
    assert [line for line in table(records).splitlines() if line not in page] == []
    for other in ("base", "longer", "scratch/true", "nearest", "head/shifted"):
        assert lead_text(lead(records, "head/true", other)) in page
    leads, holds = control_leads(records, "head")
    assert all(holds.values())
    assert min(found.mean for found in leads.values()) == leads["shifted"].mean > 3.49
    assert min(found.ahead for found in leads.values()) == 17
    choice = lead(read_split(file, "val"), "head/true", "scratch/true")
    assert (f"{choice.mean:.2f}", f"{choice.standard_error:.2f}", choice.ahead) == ("0.23", "0.03", 6)
