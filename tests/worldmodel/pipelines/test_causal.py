"""Causal models: cached keys and values against computing everything again."""

import copy
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.nn.functional as F

from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.diffusion.euler import sigma_schedule
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.models.attention_mask import causal_view
from worldmodel.models.config import ObjectiveConfig
from worldmodel.pipelines.causal import advance, default_window, open_video
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import VideoState
from worldmodel.pipelines.whole_clip import Sampler
from worldmodel.types import Actions, map_tensors

PREFIX = ObjectiveConfig(forcing="prefix")
SMALL = {
    "small": SmallNetConfig(refiner_width=8),
    "actions": ActionConfig(place_map=PlaceMapConfig()),
}
TOKENS = {"actions": ActionConfig(tokens=TokensConfig())}
POSES = {**SMALL, "actions": ActionConfig(pose_maps=PoseMapsConfig())}
NO_ACTION = {"regime": "no_action"}


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


@pytest.fixture
def causal(make_world_model, randomize):
    def make(**options):
        model = make_world_model(causal=True, **{"objective": PREFIX, **options})
        for part in model.parts().values():
            randomize(part)
        return model.eval()

    return make


class WindowAttention:
    """Self-attention over all frames of a video, frame by frame: a frame sees the first and its window.

    The first frame stands where it was, or right behind the window if that has moved on.
    """

    def __init__(self, window):
        self.window = window

    def __call__(self, attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb):
        cosines, sines = (x[0, :, 0] for x in rotary_emb[:2])
        width = hidden_states.shape[1]
        tokens = hidden_states.reshape(-1, len(cosines), hidden_states.shape[-1])
        query, key, value = (
            x.unflatten(2, (attn.heads, -1)).transpose(1, 2)
            for x in (attn.norm_q(attn.to_q(tokens)), attn.norm_k(attn.to_k(tokens)), attn.to_v(tokens))
        )

        def place(frame):
            return torch.arange(frame * width, (frame + 1) * width)

        def turn(x, places):
            angle = torch.atan2(sines[places], cosines[places])[:, ::2]
            return torch.view_as_real(
                torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
                * torch.polar(angle * 0 + 1, angle)
            ).flatten(-2)

        outputs = []
        for i in range(len(cosines) // width):
            recent = list(range(max(1, i - self.window), i + 1))
            keys = [turn(key[:, :, place(j)], place(j)) for j in recent]
            keys += [turn(key[:, :, place(0)], place(max(0, i - self.window - 1)))]
            if i == 0:
                keys, recent = keys[-1:], []
            values = [value[:, :, place(j)] for j in (*recent, 0)]
            asked = turn(query[:, :, place(i)], place(i))
            outputs.append(F.scaled_dot_product_attention(asked, torch.cat(keys, 2), torch.cat(values, 2)))
        attended = torch.cat(outputs, 2).transpose(1, 2).flatten(2)
        return attn.to_out[1](attn.to_out[0](attended)).view_as(hidden_states)


class Again:
    """The same stream without a memory: every network call computes all frames so far."""

    def __init__(self, model, frames, window, num_steps, generator):
        self.model, self.generator = copy.deepcopy(model), generator
        for block in self.model.fdm.backbone.blocks:
            block.attn1.set_processor(WindowAttention(window))
        self.latents = model.encode(frames)
        self.sigmas = sigma_schedule(num_steps, model.config.objective.shift)

    def next(self, actions, known_actions):
        known, number = self.latents, self.latents.shape[2]
        extras = known_actions[: 4 * number].extras
        embedding = self.model.interface(actions[:, : 4 * number], extras)
        shape = (known.shape[1], 1, *known.shape[3:])
        noisy = torch.stack([torch.randn(shape, generator=one) for one in self.generator])
        view = causal_view(number + 1, known.device)
        for level, following in zip(self.sigmas[:-1], self.sigmas[1:], strict=True):
            sigma = torch.zeros(len(known), number + 1)
            sigma[:, -1] = level
            clip = torch.cat([known, noisy], 2)
            output = self.model.fdm(clip, sigma, embedding, self.model.text_context(), view=view)
            noisy = noisy + (following - level) * output.velocity[:, :, -1:]
        self.latents = torch.cat([known, noisy], 2)
        return noisy


def extras_of(actions, options):
    """Hands that go where a camera straight ahead sees them."""
    if options is not POSES:
        return {}
    poses = torch.zeros(*actions.shape[:2], 16)
    poses[..., :3] = 0.3 * actions[..., :3]
    poses[..., 8:11] = 0.3 * actions[..., 3:6]
    poses[..., [3, 7, 11, 15]] = 1.0
    camera = torch.tensor([[1.0, 0, 0.5, 0.5], [0, 1.0, 0.5, 0.5], [0, 0, 1.0, 1.0]])
    before = torch.cat([poses[:, :1], poses[:, :1], poses], 1)
    rows = torch.stack([before[:, :-2], before[:, 1:-1], poses], 2)
    return {"poses": rows, "projections": camera.expand(*actions.shape[:2], 3, 4)}


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "num_steps", "window", "num_given"),
    [
        (SMALL, 1, 2, 1),
        (SMALL, 3, 1, 1),
        (TOKENS, 1, 3, 9),
        (TOKENS, 2, 1, 5),
        (POSES, 2, 2, 5),
        (NO_ACTION, 2, 2, 1),
    ],
)
def test_a_stream_equals_computing_everything_again(causal, batch, options, num_steps, window, num_given):
    model = causal(**options)
    actions = batch.robot_actions.repeat(1, 4, 1)
    drive = actions[:, :, :0] if options is NO_ACTION else actions
    known = Actions() if options is NO_ACTION else Actions(actions, extras=extras_of(actions, options))
    past, frames = known[: num_given - 1], batch.frames[:, :num_given] / 255
    state, frame = open_video(model, frames, past, window), frames[:, -1]
    sampler = Sampler(model.text_context(with_keys=True), model.sigmas(num_steps), seeds(0, 1, 2, 3))
    again = Again(model, frames, window, num_steps, seeds(0, 1, 2, 3))
    for start in range(num_given - 1, num_given + 31, 4):
        decoded, state = advance(model, state, frame, known[start : start + 4], sampler)
        frame, expected = decoded[:, -1], again.next(drive, known)
        assert (state.waiting - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)
        assert (state.waiting - state.first).abs().max() > 1e-2
    assert len(state.memory.numbers) == 1 + window


@torch.no_grad()
def test_within_the_window_the_reference_is_the_causal_model(causal, batch):
    model = causal(**SMALL)
    latents, sigma = model.encode(batch.frames), torch.full((4, 4), 0.5)
    call = (latents, sigma, model.interface(batch.robot_actions), model.text_context())
    expected = model.fdm(*call).clean
    for block in model.fdm.backbone.blocks:
        block.attn1.set_processor(WindowAttention(2))
    assert torch.allclose(model.fdm(*call).clean, expected, atol=1e-5)


def test_a_rollout_is_a_session_of_latent_frames(causal, batch):
    pipeline = RolloutPipeline(causal(**SMALL))
    actions = batch.robot_actions.repeat(1, 2, 1)[:, :18]
    options = {"num_inference_steps": 2}
    video = pipeline.rollout(
        batch.frames[:, :1], Actions(actions), generator=seeds(0, 1, 2, 3), **options
    ).frames
    stream = pipeline.open(batch.frames[:, :1], generator=seeds(0, 1, 2, 3), **options)
    made = [stream.advance(Actions(actions[:, :8]), 8), stream.advance(Actions(actions[:, 8:16]), 8)]
    assert torch.equal(torch.cat(made, 1), video[:, 1:17])
    assert video.shape[1] == 19
    assert stream.num_frames == 17
    # What is not known yet cannot matter: actions change the frames behind them alone.
    changed = actions.clone()
    changed[:, 8:] *= -1
    other = pipeline.rollout(
        batch.frames[:, :1], Actions(changed), generator=seeds(0, 1, 2, 3), **options
    ).frames
    difference = (video - other).abs().amax((0, 2, 3, 4))
    assert difference[:9].max() == 0
    assert difference[9:].min() > 1e-4


@pytest.mark.parametrize("regime", ["acg", "lacg", "no_action"])
def test_samples_do_not_depend_on_their_batch_and_forks_share_nothing(causal, batch, regime):
    pipeline = RolloutPipeline(causal(regime=regime, **{**SMALL, "actions": ActionConfig()}))
    drive = Actions() if regime == "no_action" else Actions(batch.robot_actions)
    other = map_tensors(drive, lambda x: -x)
    together = pipeline.open(batch.frames[:, :1], generator=seeds(0, 1, 2, 3))
    alone = pipeline.open(batch.frames[2:3, :1], generator=seeds(2))
    for start in (0, 4, 8, 0, 4):
        part = drive[start : start + 4]
        fork = together.fork(2)
        made = together.advance(part, 4)
        assert torch.allclose(alone.advance(map_tensors(part, lambda x: x[2:3]), 4), made[2:3], atol=2e-5)
        twice = map_tensors(part, lambda x: x.repeat_interleave(2, 0))
        assert torch.allclose(fork.fork().advance(twice, 4), made.repeat_interleave(2, 0), atol=2e-5)
        if regime != "no_action":
            wrong = map_tensors(other[start : start + 4], lambda x: x.repeat_interleave(2, 0))
            assert (fork.advance(wrong, 4) - made.repeat_interleave(2, 0)).abs().max() > 1e-4


def test_more_given_frames_are_used_where_they_were_learned(causal, batch):
    frames, actions = batch.frames / 255, Actions(batch.robot_actions)
    for num_frames, num_latents in ((1, 1), (4, 1), (5, 2), (9, 3), (13, 3)):
        past = actions[: num_frames - 1]
        assert open_video(causal(), frames[:, :num_frames], past).num_latents == num_latents
        assert open_video(causal(), frames[:, :num_frames], Actions()).num_latents == 1
    clip = causal(objective=ObjectiveConfig())
    assert open_video(clip, frames, actions).num_latents == 1


def test_windows_and_starts_that_do_not_fit_are_refused(causal, make_world_model, batch):
    with pytest.raises(ValueError, match="window has 1 latent frame or more, got 0"):
        RolloutPipeline(causal()).open(batch.frames[:, :1], window=0)
    with pytest.raises(ValueError, match="generates whole clips"):
        RolloutPipeline(make_world_model()).open(batch.frames[:, :1], window=3)
    with pytest.raises(ValueError, match="5 frames of the model's history or more, got 1"):
        RolloutPipeline(causal(regime="no_action", history=2)).open(batch.frames[:, :1])
    assert default_window(causal()) == 2
    with pytest.raises(ValueError, match=r"action paths need poses, projections .* pass extras"):
        RolloutPipeline(causal(**POSES)).open(batch.frames[:, :1]).advance(
            Actions(batch.robot_actions[:, :4]), 4
        )


def remembered(state: VideoState) -> int:
    """Numbers that a session keeps."""
    kept: list[torch.Tensor] = []
    map_tensors(state, lambda part: kept.append(part) or part)
    return sum(x.untyped_storage().nbytes() // x.element_size() for x in kept)


def test_what_a_stream_keeps_does_not_grow(causal, batch):
    stream = RolloutPipeline(causal(**SMALL)).open(batch.frames[:1, :1])
    sizes = []
    for _ in range(8):
        stream.advance(Actions(), 4)
        sizes.append(remembered(stream.state))
    assert sizes[3] > sizes[0]
    assert len(set(sizes[3:])) == 1


@pytest.mark.slow
def test_5000_frames_cost_the_same_per_step_from_first_to_last(causal, batch):
    actions = Actions(batch.robot_actions[:1, :4])
    stream = RolloutPipeline(causal(**SMALL)).open(batch.frames[:1, :1], generator=seeds(0))
    process, seconds, sizes = psutil.Process(), [], []
    for step in range(1250):
        start = time.process_time()
        frames = stream.advance(actions, 4)
        seconds.append(time.process_time() - start)
        if step in (25, 1249):
            sizes.append(process.memory_info().rss / 1e6)
    early, late = (sorted(x)[len(x) // 2] for x in (seconds[10:135], seconds[-125:]))
    print(f"frames {stream.num_frames}, ms a step {1e3 * early:.1f} then {1e3 * late:.1f}, MB {sizes}")
    assert stream.num_frames == 5001
    assert frames.isfinite().all()
    assert late < 1.3 * early
    assert sizes[1] - sizes[0] < 20


LONG_ROLLOUT = """
import dataclasses, sys
import psutil, torch
from worldmodel import RolloutPipeline, WorldModel
model = WorldModel.from_pretrained("desk")
if sys.argv[1] == "causal":
    model.config, model.fdm.causal = dataclasses.replace(model.config, causal=True), True
frames, options = torch.rand(1, 1, 3, 64, 64), {"num_inference_steps": 1}
RolloutPipeline(model).rollout(frames, num_frames=101, **options)
before = psutil.Process().memory_info().rss
video = RolloutPipeline(model).rollout(frames, num_frames=1201, **options).frames
print((psutil.Process().memory_info().rss - before) / (video.numel() * video.element_size()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["causal", "clips"])
def test_a_long_rollout_grows_by_its_frames(mode):
    # In a process of its own: checking shapes, as the tests do, leaves garbage behind.
    command = [sys.executable, "-c", LONG_ROLLOUT, mode]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{mode}: grown by {grown:.2f} of the frames")
    assert grown < 1.1
