import dataclasses

import numpy as np
import pytest
import torch

from tests.support.pose_sets import AHEAD, HEAD, HEAD_EXTRINSICS, HEAD_INTRINSICS, PINHOLE, HandPoses
from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.dataset import ClipDataset, build_clip_dataset, check_extras, collate_clips
from worldmodel.data.index import index_episodes
from worldmodel.data.latents import LatentCache
from worldmodel.data.transitions import clip_projections, clip_transitions, read_rows
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig, pose_columns
from worldmodel.types import CameraMatrices, Row, Transitions

CLIP = ClipConfig(num_frames=9, height=48, width=64)
OPTIONS = {"num_frames": 25, "size": (48, 64)}


class Counts:
    """Reads whole numbers under a name of its own."""

    def __init__(self, width: int = 2, dtype: torch.dtype = torch.int64) -> None:
        self.row_shapes, self.versions = {"counts/of it": Row((width,), dtype)}, {"counts": 1}

    def read(self, clip: Transitions) -> dict[str, torch.Tensor]:
        return {"counts/of it": (100 * clip.actions[:, :2]).long()}


def encode(video: torch.Tensor) -> torch.Tensor:
    return video.new_zeros(len(video), 4, 3, 6, 8)


def test_the_camera_of_a_transition_is_that_of_the_frame_it_leads_to():
    count = 21
    moving = np.repeat(AHEAD[None], count, 0)
    moving[:, 0, 3] = 0.1 * np.arange(count)
    camera = CameraMatrices(np.repeat(PINHOLE.intrinsics[None], count, 0), moving, PINHOLE.size)
    source = HandPoses(1, camera, num_frames=count, size=(80, 100))
    config = dataclasses.replace(CLIP, stride=2)
    _, actions = cut_clip(source[0], 3, config)
    clip = clip_transitions(source[0], 3, actions, config)
    rows = read_rows(ActionConfig(pose_maps=PoseMapsConfig()), clip)
    assert rows["projections"].shape == (8, 3, 4)
    expected = 100 * 0.1 * np.arange(3, 21, 2) / 100  # frames 3, 5, ... of the recording
    assert clip.views[:, 0, 3].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert rows["projections"][:, 0, 3].tolist() == pytest.approx(expected[1:].tolist(), rel=1e-5)
    np.testing.assert_array_equal(rows["poses"][:, -1], source[0].robot_actions[4:20:2])
    with pytest.raises(ValueError, match="matrices of frame 30, got those of 21 frames"):
        clip_projections(camera, [2, 30], (8, 8))


def test_clips_bring_their_rows_with_and_without_a_cache(tmp_path):
    source, reader = HandPoses(3, **OPTIONS), ActionConfig(pose_maps=PoseMapsConfig())
    index = index_episodes([source], CLIP)
    fresh = build_clip_dataset([source], config=CLIP, reader=reader)
    plain = build_clip_dataset([source], config=CLIP)
    assert plain[0].extras == {}
    check_extras(index, index.records, reader)
    without, cache = (LatentCache(str(tmp_path), "vae", reader=kept) for kept in (None, reader))
    assert without.build(index, encode).built == cache.build(index, encode).built == len(index.records)
    assert cache.build(index, encode).built == without.build(index, encode).built == 0
    cached = ClipDataset(index, "train", fresh.normalizer, cache.build(index, encode), reader=reader)
    assert cached[1].frames is None
    for number in range(len(fresh)):
        one, other = fresh[number].extras, cached[number].extras
        assert one.keys() == other.keys() == {"poses", "projections"}
        assert all(torch.equal(one[name], other[name]) for name in one)
    batch = collate_clips([cached[0], cached[1]]).to("cpu")
    assert batch.extras["poses"].shape == (2, 8, 3, 16)
    assert batch.extras["projections"].shape == (2, 8, 3, 4)


def test_whole_numbers_under_any_name_stay_what_they_are(tmp_path):
    source, reader = HandPoses(3, **OPTIONS), Counts()
    index = index_episodes([source], CLIP)
    fresh = build_clip_dataset([source], config=CLIP, reader=reader)
    table = LatentCache(str(tmp_path), "vae", reader=reader).build(index, encode)
    cached = ClipDataset(index, "train", fresh.normalizer, table, reader=reader)
    for clips in (fresh, cached):
        batch = collate_clips([clips[0], clips[1]]).to("cpu")[1:]
        (rows,) = batch.extras.values()
        assert (rows.shape, rows.dtype) == ((1, 8, 2), torch.int64)
        assert torch.equal(rows[0], clips[1].extras["counts/of it"])
        assert rows.any()


def test_rows_that_differ_from_their_declaration_are_refused():
    episode = HandPoses(1, **OPTIONS)[0]
    clip = clip_transitions(episode, 0, episode.robot_actions[:8], CLIP)
    assert read_rows(Counts(), clip)["counts/of it"].shape == (8, 2)
    for wrong in (Counts(width=3), Counts(dtype=torch.float32)):
        with pytest.raises(ValueError, match=r"action paths declare rows .*, and read .*int64") as error:
            read_rows(wrong, clip)
        assert str(error.value).startswith(episode.source)
    missing = Counts()
    missing.row_shapes = {**missing.row_shapes, "more": Row(())}
    with pytest.raises(ValueError, match=r"declare rows .*'more'"):
        read_rows(missing, clip)


def test_rows_of_a_part_are_a_part_of_the_rows():
    episode, reader = HandPoses(1, **OPTIONS)[0], ActionConfig(pose_maps=PoseMapsConfig())
    clip = clip_transitions(episode, 7, episode.robot_actions[7:15], CLIP)
    whole, commands = read_rows(reader, clip), torch.cat([clip.before, clip.actions])
    for start, stop in ((0, 4), (1, 2), (4, 8)):
        part = dataclasses.replace(
            clip,
            actions=clip.actions[start:stop],
            before=commands[start : start + 2],
            views=clip.views[start : stop + 1],
        )
        rows = read_rows(reader, part)
        assert all(torch.equal(rows[name], whole[name][start:stop]) for name in whole)


def test_data_without_camera_or_poses_is_refused():
    reader = ActionConfig(pose_maps=PoseMapsConfig())
    blind = index_episodes([HandPoses(2, None, **OPTIONS)], CLIP)
    needs = r"camera 'head' are not known, the data describe no camera; set model\.actions\.pose_maps=null"
    with pytest.raises(ValueError, match=f"intrinsics and extrinsics of {needs}"):
        check_extras(blind, blind.records, reader)
    sums = index_episodes([HandPoses(2, **OPTIONS)], dataclasses.replace(CLIP, merge="sum"))
    with pytest.raises(ValueError, match=r"draw absolute poses .* got changes .*data\.clip\.merge=sum"):
        check_extras(sums, sums.records, reader)
    episode = HandPoses(1, **OPTIONS)[0]
    two = dataclasses.replace(episode, frames={**episode.frames, "wrist": episode.frames["head"]})
    both = dataclasses.replace(CLIP, camera=("head", "wrist"))
    with pytest.raises(ValueError, match=r"several cameras, head.*: name one in data\.clip\.camera"):
        read_rows(reader, clip_transitions(two, 0, episode.robot_actions[:8], both))
    changes = dataclasses.replace(episode, delta_actions=("left_x",))
    with pytest.raises(ValueError, match=r"absolute poses .* got changes \(left_x;") as error:
        read_rows(reader, clip_transitions(changes, 0, episode.robot_actions[:8], CLIP))
    assert str(error.value).startswith(episode.source)
    joints = dataclasses.replace(episode, action_names=tuple(f"joint{i}" for i in range(16)))
    with pytest.raises(ValueError, match=r"set data\.action_space=pose_commands") as error:
        read_rows(reader, clip_transitions(joints, 0, episode.robot_actions[:8], CLIP))
    assert str(error.value).startswith(episode.source)


def test_an_intrinsic_matrix_scales_with_its_picture():
    doubled = CameraMatrices(HEAD_INTRINSICS * [[2], [2], [1]], HEAD_EXTRINSICS, (480, 640))
    one, other = (clip_projections(camera, range(2), (64, 64)) for camera in (HEAD, doubled))
    torch.testing.assert_close(one, other)


def test_clips_know_the_commands_before_them():
    source = HandPoses(1, num_frames=40, size=(48, 64), embodiments=("a",))
    episode = source[0]
    poses = pose_columns(torch.from_numpy(episode.robot_actions), episode.action_names)
    config = dataclasses.replace(CLIP, stride=2)
    _, actions = cut_clip(episode, 5, config)
    clip = clip_transitions(episode, 5, actions, config)
    torch.testing.assert_close(clip.before, poses[[2, 4]])
    torch.testing.assert_close(
        read_rows(ActionConfig(pose_maps=PoseMapsConfig()), clip)["poses"][0], poses[[2, 4, 6]]
    )
    _, actions = cut_clip(episode, 0, CLIP)
    torch.testing.assert_close(clip_transitions(episode, 0, actions, CLIP).before, poses[[0, 0]])


def test_a_clip_of_measured_poses_knows_the_pose_of_the_first_frame():
    episode = HandPoses(1, PINHOLE, num_frames=12, size=(80, 100))[0]
    states = np.concatenate([episode.robot_actions[:1] - 1, episode.robot_actions])
    measured = dataclasses.replace(
        episode, action_space="measured_poses", robot_states=states, state_names=episode.action_names
    )
    commanded = dataclasses.replace(measured, action_space="pose_commands")
    for one, expected in ((measured, states[0]), (commanded, episode.robot_actions[0])):
        _, actions = cut_clip(one, 0, CLIP)
        np.testing.assert_array_equal(clip_transitions(one, 0, actions, CLIP).before[-1], expected)
        _, actions = cut_clip(one, 2, CLIP)  # inside the episode: the action that led there
        np.testing.assert_array_equal(
            clip_transitions(one, 2, actions, CLIP).before[-1], episode.robot_actions[1]
        )
