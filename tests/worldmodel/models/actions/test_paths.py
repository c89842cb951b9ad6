"""What holds for every action path: each field of `ActionConfig` is tried."""

import pickle
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
import torch

from worldmodel.models.actions.interface import ActionConfig, ActionInterface
from worldmodel.models.actions.pose_maps import ARM_COLUMNS
from worldmodel.models.actions.protocol import ActionEmbedding, PathConfig, PathShape, blank_extras
from worldmodel.models.actions.start_state import StartStateConfig
from worldmodel.types import Transitions, map_tensors

NUM = 8
NAMES = tuple(f"{arm}_{column}" for arm in ("left", "right") for column in ARM_COLUMNS)
SHAPE = PathShape(action_dim=len(NAMES), width=48, num_layers=2, num_heads=2, patch=(2, 2), grid=(8, 8))


def settings_of(name: str) -> PathConfig:
    kinds = get_args(get_type_hints(ActionConfig)[name])
    return next(kind for kind in kinds if kind is not type(None))()


@pytest.fixture
def clip() -> Transitions:
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(NUM + 2, len(NAMES), generator=generator).double()
    views = torch.tensor([[1.0, 0, 0.5, 0], [0, 1, 0.5, 0], [0, 0, 1, 2]]) + 0.05 * torch.rand(
        NUM + 1, 3, 4, generator=generator
    )
    return Transitions(actions[2:], actions[:2], NAMES, views=views, source="clip", state=torch.rand(7))


def sliced(clip: Transitions, start: int) -> Transitions:
    past = torch.cat([clip.before, clip.actions])
    assert clip.views is not None
    return replace(clip, actions=past[start + 2 :], before=past[start : start + 2], views=clip.views[start:])


# Those of published models take their actions only.
PATHS = [field.name for field in fields(ActionConfig) if field.name not in ("bwm", "open_world")]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_reads_what_it_declares_and_slicing_commutes_with_it(name: str, clip: Transitions) -> None:
    path = settings_of(name)
    rows = path.read(clip)
    expected = {name: ((NUM, *row.shape), row.dtype) for name, row in path.row_shapes.items()}
    assert {name: (tuple(part.shape), part.dtype) for name, part in rows.items()} == expected
    later = path.read(sliced(clip, 4))
    assert all(torch.equal(part[4:], later[name]) for name, part in rows.items())
    assert pickle.loads(pickle.dumps(path)) == path


def embedded(path: torch.nn.Module, extras: dict[str, Any], missing: torch.Tensor) -> ActionEmbedding:
    actions = torch.rand(2, NUM, SHAPE.action_dim, generator=torch.Generator().manual_seed(1))
    found: ActionEmbedding = path(actions, extras, missing)
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in PATHS if name != "tokens"])
def test_a_new_path_adds_nothing_and_unknown_actions_are_all_alike(name: str, clip: Transitions) -> None:
    path = settings_of(name)
    module = path.build(SHAPE)
    known = torch.zeros(2, 3, dtype=torch.bool)
    extras = map_tensors(path.read(clip), lambda part: torch.stack([part, part.flip(0)]))
    first = embedded(module, extras, known)
    places = [part for part in (first.frames, first.places, first.first_block) if part is not None]
    assert places
    assert not any(part.any() for part in places)
    for parameter in module.parameters():
        parameter += 0.1
    assert any(
        part is not None and part[:, 1:].any()
        for part in (
            embedded(module, extras, known).frames,
            embedded(module, extras, known).places,
            embedded(module, extras, known).first_block,
        )
    )
    hidden, blank = (
        embedded(module, rows, ~known) for rows in (extras, blank_extras(path.row_shapes, 2, NUM))
    )
    for part, other in ((hidden.frames, blank.frames), (hidden.places, blank.places)):
        assert (part is None) == (other is None)
        assert part is None or torch.equal(part, other)


def test_a_start_state_is_the_first_one_or_has_no_effect(clip: Transitions) -> None:
    path = StartStateConfig(size=9)
    row = path.read(clip)["start_state"]
    assert clip.state is not None
    assert torch.equal(row[5], torch.cat([clip.state, torch.zeros(2), torch.ones(1)]))
    unknown = path.read(replace(clip, state=None))["start_state"]
    assert not unknown.any()
    module = path.build(SHAPE)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    known = torch.zeros(1, 3, dtype=torch.bool)
    actions = torch.zeros(1, NUM, 16)
    frames = [module(actions, {"start_state": rows[None]}, known).frames for rows in (row, unknown)]
    assert frames[0].any()
    assert not frames[1].any()
    with pytest.raises(ValueError, match=r"has 7 numbers, .* 4: set model\.actions\.start_state\.size=7"):
        StartStateConfig(size=4).read(clip)


@torch.no_grad()
def test_paths_with_rows_of_their_own_add_up(clip: Transitions) -> None:
    chosen = {name: settings_of(name) for name in ("pose_maps", "camera_motion", "start_state", "place_map")}
    config = ActionConfig(adaln=None, **chosen)  # type: ignore[arg-type]
    interface, known = ActionInterface(config, SHAPE), torch.zeros(1, 3, dtype=torch.bool)
    for parameter in interface.parameters():
        torch.nn.init.normal_(parameter)
    extras = map_tensors(config.read(clip), lambda part: part[None])
    actions = torch.rand(1, NUM, SHAPE.action_dim)
    alone = {name: interface[name](actions, extras, known) for name in chosen}
    joined = interface(actions, extras, known)
    assert torch.equal(joined.places, alone["pose_maps"].places + alone["camera_motion"].places)
    assert torch.equal(joined.frames, alone["start_state"].frames)
    assert torch.equal(joined.maps, alone["pose_maps"].maps)
    del extras["start_state"]
    with pytest.raises(ValueError, match="need start_state beside the actions, got poses, projections, cam"):
        interface(actions, extras, known)
