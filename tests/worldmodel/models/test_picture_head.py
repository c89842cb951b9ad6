import pytest
import torch
from torch import Tensor

from worldmodel.models.picture_head import (
    HeadConfig,
    PictureHead,
    matching_size,
    pixel_places,
    resized,
    sample_at,
)
from worldmodel.objectives.pictures import head_loss


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
