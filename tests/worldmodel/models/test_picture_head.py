import dataclasses

import pytest
import torch
from torch import Tensor

from worldmodel.models.config import ObjectiveConfig, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import (
    HeadConfig,
    PictureHead,
    matching_size,
    pixel_places,
    resized,
    sample_at,
)
from worldmodel.objectives.pictures import head_loss
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions


def small_head(num_sources: int = 1) -> PictureHead:
    torch.manual_seed(0)
    return PictureHead(HeadConfig(width=8, num_flows=2, num_sources=num_sources))


def blocks(count: int, size: int = 32, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Colored squares on a plain ground that move to the right: given, soft and true frames."""
    generator = torch.Generator().manual_seed(seed)
    given, real = torch.full((count, 3, size, size), 0.5), torch.full((count, 3, size, size), 0.5)
    for number in range(count):
        colors = torch.rand(3, 4, 4, generator=generator).round()
        pattern = colors.repeat_interleave(4, 1).repeat_interleave(4, 2)
        row, column, step = torch.randint(0, 8, (3,), generator=generator).tolist()
        given[number, :, row : row + 16, column : column + 16] = pattern
        real[number, :, row : row + 16, column + step : column + step + 16] = pattern
    soft = resized(resized(real, (size // 4, size // 4)), (size, size))
    return given[:, None], soft[:, None], real[:, None]


@pytest.mark.parametrize("decoded_size", [(16, 16), (24, 40), (30, 22)])
@pytest.mark.parametrize("full", [None, (37, 61)])
def test_any_size_and_aspect(decoded_size: tuple[int, int], full: tuple[int, int] | None) -> None:
    head, given = small_head().eval(), torch.rand(2, 1, 3, *(full or decoded_size))
    shown, state = head(torch.rand(2, 4, 3, *decoded_size), head.open(given))
    assert shown.shape == (2, 4, 3, *given.shape[-2:])
    assert torch.equal(state.sources, given)
    assert 0 <= shown.min() <= shown.max() <= 1


def test_the_latest_shown_frame_becomes_a_source() -> None:
    head, given = small_head(num_sources=2).eval(), torch.rand(1, 1, 3, 16, 16)
    state = head.open(given)
    assert torch.equal(state.sources, given.expand(-1, 2, -1, -1, -1))
    shown, state = head(torch.rand(1, 4, 3, 16, 16), state)
    assert torch.equal(state.sources, torch.cat([given, shown[:, -1:]], 1))
    earlier = head.open(torch.cat([shown[:, :1], given], 1))
    assert torch.equal(earlier.sources, torch.cat([given, shown[:, :1]], 1))


def test_frames_of_a_block_do_not_depend_on_each_other() -> None:
    head, state = small_head().eval(), small_head().open(torch.rand(1, 1, 3, 16, 16))
    torch.nn.init.normal_(head.leave.weight, std=0.1)
    decoded = torch.rand(1, 4, 3, 16, 16)
    together, _ = head(decoded, state)
    apart = torch.cat([head(one, state)[0] for one in decoded.split(1, 1)], 1)
    torch.testing.assert_close(together, apart)


def test_sampling_by_a_flow_moves_pixels_exactly() -> None:
    images = torch.rand(1, 3, 12, 20)
    flow = torch.zeros(1, 2, 12, 20)
    assert torch.allclose(sample_at(images, flow), images, atol=1e-5)
    flow[:, 0] = 2 * 3 / 20  # from three pixels to the right
    moved = sample_at(images, flow)
    assert torch.allclose(moved[..., :-4], images[..., 3:-1], atol=1e-4)
    assert pixel_places(2, 4, images)[0, 0].tolist() == [-0.75, -0.25, 0.25, 0.75]


@pytest.mark.parametrize(
    ("size", "expected"), [((64, 64), (64, 64)), ((240, 320), (60, 80)), ((6, 9), (4, 8))]
)
def test_matching_is_bounded(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert matching_size(*size) == expected


def test_equal_features_match_where_they_are() -> None:
    head = small_head()
    with torch.no_grad():
        head.log_sharpness.fill_(8.0)
    image = torch.rand(1, 3, 32, 32)
    flows = head._match(image, image[:, None])
    assert flows.abs().max() < 0.02


def test_a_larger_given_frame_stays_as_sharp_as_it_is() -> None:
    head, given = small_head().eval(), torch.rand(1, 1, 3, 64, 48)
    with torch.no_grad():
        head.leave.bias.view(-1, 4)[3 + 2 * 2 + 1] = 20.0  # all of the given frame
    shown, _ = head(torch.zeros(1, 1, 3, 16, 12), head.open(given))
    torch.testing.assert_close(shown, given, atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_sources", [1, 2])
def test_it_learns_to_carry_what_it_knows(num_sources: int) -> None:
    head = small_head(num_sources).train()
    optimizer = torch.optim.AdamW(head.parameters(), 4e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for step in range(60):
        given, soft, real = blocks(16, seed=step)
        loss = head_loss(head, soft, torch.cat([given, real], 1), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    given, soft, real = blocks(16, seed=1000)
    shown, _ = head.eval()(soft, head.open(given))
    assert losses[-1] < 0.6 * losses[0]
    assert (shown - real).square().mean() < 0.7 * (soft - real).square().mean()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())


def test_over_a_tiny_wan_autoencoder() -> None:
    from diffusers import AutoencoderKLWan

    from worldmodel.models.vae import decode_latents, encode_frames, freeze

    torch.manual_seed(0)
    vae = freeze(AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1))
    frames = torch.rand(1, 5, 3, 32, 48)
    decoded = decode_latents(vae, encode_frames(vae, frames))[:, 1:]
    head = small_head()
    loss = head_loss(head, decoded, frames, torch.Generator())
    loss.backward()
    assert torch.isfinite(loss)
    shown, _ = head.eval()(decoded, head.open(frames[:, :1]))
    assert shown.shape == (1, 4, 3, 32, 48)


LEARNS = {"objective": ObjectiveConfig(pixel_weight=1.0, pixel_share=0.5), "head": HeadConfig(width=8)}
LARGE = (44, 60)  # pixels: the size of the given frames, beside the model's 32x32


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_a_model_shows_frames_at_the_size_of_the_given_ones(
    make_world_model, batch, randomize, tmp_path, causal
) -> None:
    sources = dataclasses.replace(LEARNS["head"], num_sources=2)
    model = make_world_model(causal=causal, **{**LEARNS, "head": sources})
    for part in model.parts().values():
        randomize(part)
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model/head.safetensors").is_file()
    pipeline = RolloutPipeline(WorldModel.from_pretrained(tmp_path / "model"))
    given = resized(batch.frames[:2, 0] / 255, LARGE)[:, None].clamp(0, 1)
    actions = Actions(batch.robot_actions[:2].repeat(1, 2, 1))
    options = {"num_inference_steps": 1}
    made = pipeline.rollout(given, actions, generator=torch.Generator().manual_seed(0), **options).frames
    assert made.shape == (2, 25, 3, *LARGE)
    session = pipeline.open(given, generator=torch.Generator().manual_seed(0), **options)
    blocks = [actions[start : start + session.block] for start in range(0, 24, session.block)]
    steps = [session.advance(block, session.block) for block in blocks]
    assert torch.equal(torch.cat(steps, 1), made[:, 1:])
    assert session.state.recent.shape == (2, 1, 3, 32, 32)
    assert torch.equal(session.state.head.sources[:, 0], given[:, -1])
    assert torch.equal(session.state.head.sources[:, 1], made[:, -1])
    assert torch.equal(session.fork(2).state.head.sources[1], session.state.head.sources[0])
    # Where the given frames have the model's own size, a head that takes nothing shows what is decoded.
    model.head = None
    decoded = RolloutPipeline(model.eval()).rollout(batch.frames[:2, :1], actions, **options).frames
    assert decoded.shape == (2, 25, 3, 32, 32)


def test_frames_that_are_not_of_the_clips_aspect_ratio_are_refused(make_world_model) -> None:
    model = make_world_model(**LEARNS)
    model.contract = dataclasses.replace(model.contract, aspect="crop")
    with pytest.raises(ValueError, match="aspect ratio of 32x32, to which clips were cropped, got 44x60"):
        RolloutPipeline(model).open(torch.rand(1, 1, 3, *LARGE))
    RolloutPipeline(model).open(torch.rand(1, 1, 3, 45, 44))
    model.head = None
    with pytest.raises(ValueError, match="expected frames of 32x32 pixels, got 44x60"):
        RolloutPipeline(model).open(torch.rand(1, 1, 3, *LARGE))


def test_a_head_is_trained_alone_by_the_ordinary_step(make_world_model, batch) -> None:
    model = make_world_model(trained="head", **LEARNS)
    model.freeze_untrained()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = world_model_step(model.train(), batch, torch.Generator().manual_seed(step % 2))
        loss.total.backward()
        optimizer.step()
        losses.append(float(loss.parts["pixels"]))
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {f"head.{name}" for name, _ in model.head.named_parameters()}
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2])


def test_places_are_found_in_float32_inside_a_bfloat16_training() -> None:
    torch.manual_seed(0)
    head, frames = PictureHead(HeadConfig(width=8)), torch.rand(2, 4, 3, 32, 32)
    decoded, known = frames[:, 1], frames[:, :1]
    exact = head._match(decoded, known)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head._match(decoded, known), exact)
        shown, _ = head(frames[:, 1:], head.open(frames[:, :1]))
    assert shown.dtype == torch.float32
    assert exact.abs().max() > 0.1, "there is something to find"


def test_settings_of_a_head_that_cannot_learn_are_refused() -> None:
    for head in (None, HeadConfig()):
        with pytest.raises(ValueError, match=r"head=\{\} and objective\.pixel_weight above 0"):
            WorldModelConfig(trained="head", head=head)
