import torch

from worldmodel.evaluation.controls import CONTROLS, SHIFT, controlled_actions, mirror_order, static_video

NAMES = ("left_joint1", "left_gripper", "right_joint1", "right_gripper")


def controls(num_given=1, names=NAMES, with_other=True):
    actions = torch.arange(8.0)[:, None] + torch.tensor([0.0, 0.1, 0.2, 0.3, 0.0])
    other = -actions if with_other else None
    generator = torch.Generator().manual_seed(0)
    return actions, controlled_actions(actions, names, num_given=num_given, other=other, generator=generator)


def test_every_control_is_there_and_keeps_the_shape():
    actions, made = controls()
    assert set(made) == {"true", *CONTROLS}
    assert made["null"] is None
    assert all(value is None or value.shape == actions.shape for value in made.values())
    assert torch.equal(made["true"], actions)


def test_known_answers():
    actions, made = controls()
    assert made["zero"].eq(0).all()
    assert made["hold"].eq(actions[0]).all()
    assert made["reversed"][:, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert made["shifted"][:, 0].tolist() == [4, 5, 6, 7, 7, 7, 7, 7]
    assert SHIFT == 4
    assert torch.equal(made["scaled"], actions / 2)
    assert torch.equal(made["other_episode"], -actions)
    assert torch.equal(made["mirrored"], actions[:, [2, 3, 0, 1, 4]])  # the padding stays where it is


def test_shuffled_are_the_same_actions_in_another_order():
    actions, made = controls()
    assert sorted(made["shuffled"][:, 0].tolist()) == actions[:, 0].tolist()
    assert not torch.equal(made["shuffled"], actions)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        pair = controlled_actions(actions[:2], NAMES, generator=generator)
        assert torch.equal(pair["shuffled"], actions[[1, 0]])


def test_actions_between_given_frames_never_change():
    actions, made = controls(num_given=5)
    for name, value in made.items():
        if value is not None:
            assert torch.equal(value[:4], actions[:4]), name
    assert made["hold"][4:].eq(actions[4]).all()
    assert made["shifted"][4:, 0].tolist() == [7, 7, 7, 7]


def test_what_cannot_be_made_is_left_out():
    _, made = controls(names=("joint0", "joint1", "joint2", "joint3"), with_other=False)
    assert set(CONTROLS) - set(made) == {"mirrored", "other_episode"}
    assert mirror_order(("left_x", "right_y"), 2) is None
    assert mirror_order((), 3) is None


def test_static_video_repeats_the_frame():
    frame = torch.rand(3, 4, 4)
    video = static_video(frame, 6)
    assert video.shape == (6, 3, 4, 4)
    assert video.eq(frame).all()
