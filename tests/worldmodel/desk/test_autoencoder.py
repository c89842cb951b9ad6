import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.vae import encode_video


def make(**options) -> CausalAutoencoder:
    torch.manual_seed(0)
    return CausalAutoencoder(**{"height": 32, "width": 32, "hidden": 16, "num_blocks": 1, **options})


def video_of(clips, count: int) -> torch.Tensor:
    frames = torch.stack([clips[i].frames for i in range(count)])
    return frames.movedim(1, 2).float() / 127.5 - 1


@torch.no_grad()
def rebuilt(vae: CausalAutoencoder, video: torch.Tensor) -> torch.Tensor:
    return vae.decode(vae.encode(video).latent_dist.mode()).sample


@pytest.mark.parametrize("scales", [1, 2])
@pytest.mark.parametrize("scale", [4, 8])
def test_shapes_are_those_of_the_wan_autoencoder(scale, scales):
    vae = make(scale_factor_spatial=scale, num_scales=scales)
    video = torch.zeros(2, 3, 9, 32, 32)
    encoded = vae.encode(video)
    assert encoded.latent_dist.mode().shape == (2, 16, 3, 32 // scale, 32 // scale)
    assert torch.equal(encoded.latent_dist.sample(), encoded.latent_dist.mode())
    assert rebuilt(vae, video).shape == video.shape
    assert vae.encode(video[:, :, :1]).latent_dist.mode().shape[2] == 1
    with pytest.raises(ValueError, match=r"1 \+ 4k frames"):
        vae.encode(video[:, :, :4])
    with pytest.raises(ValueError, match=r"\(32, 32\) pixels \(height, width\), got \(32, 16\)"):
        vae.encode(video[..., :16])
    with pytest.raises(ValueError, match="multiples of 4, got 30x32"):
        make(height=30)
    with pytest.raises(ValueError, match=r"num_scales is 1, or 2 .* got 3 and 4"):
        make(num_scales=3)


def test_initial_linear_path_is_the_pca_of_the_patches(clips):
    vae, video = make(), video_of(clips, 6)
    vae.initialize_from(video)
    centered = (video - vae.mean_image[:, None])[:, :, 1:]
    patches = centered.unfold(2, 4, 4).unfold(3, 4, 4).unfold(4, 4, 4)
    patches = patches.permute(0, 2, 3, 4, 1, 5, 6, 7).flatten(0, 3).flatten(1).double().numpy()
    first = (video - vae.mean_image[:, None])[:, :, :1].expand(-1, -1, 4, -1, -1)
    first = first.unfold(3, 4, 4).unfold(4, 4, 4).permute(0, 3, 4, 1, 2, 5, 6).flatten(0, 2).flatten(1)
    patches = np.concatenate([patches, first.double().numpy()])
    pca = PCA(n_components=16, svd_solver="full").fit(patches)
    expected = float(np.square(pca.inverse_transform(pca.transform(patches)) - patches).mean())
    # Clamping to [-1, 1] can only bring frames nearer to what they were; frame 0 is one frame, not four.
    error = rebuilt(vae, video)[:, :, 1:] - video[:, :, 1:]
    assert float(error.square().mean()) == pytest.approx(expected, rel=0.2)
    assert float(error.square().mean()) < 0.2 * float((video - vae.mean_image[:, None]).square().mean())


@torch.no_grad()
@pytest.mark.parametrize("scales", [1, 2])
def test_latents_of_a_still_scene_are_equal(clips, scales):
    vae = make(num_scales=scales)
    vae.initialize_from(video_of(clips, 4))
    torch.nn.init.normal_(vae.encoder[-1].weight, std=0.1)
    still = video_of(clips, 2)[:, :, :1].expand(-1, -1, 9, -1, -1)
    latents = vae.encode(still).latent_dist.mode()
    assert torch.allclose(latents, latents[:, :, :1].expand_as(latents), atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("scales", [1, 2])
def test_latents_see_their_own_frames_only(clips, scales):
    vae, video = make(num_scales=scales), video_of(clips, 1)
    vae.initialize_from(video_of(clips, 4))
    torch.nn.init.normal_(vae.encoder[-1].weight, std=0.1)
    reference = vae.encode(video).latent_dist.mode()
    for frame in range(13):
        changed = video.clone()
        changed[:, :, frame] += 0.5
        moved = (vae.encode(changed).latent_dist.mode() - reference).abs().amax((0, 1, 3, 4)) > 0
        assert moved.nonzero().flatten().tolist() == [(frame + 3) // 4]


@pytest.mark.parametrize("scales", [1, 2])
def test_training_refines_both_directions_from_the_linear_start(clips, scales):
    vae, video = make(num_scales=scales), video_of(clips, 8)
    vae.initialize_from(video)
    start = float((rebuilt(vae, video) - video).square().mean())
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3)
    for _ in range(30):
        optimizer.zero_grad()
        loss = (vae.decode(vae.encode(video).latent_dist.mode()).sample - video).square().mean()
        loss.backward()
        optimizer.step()
    assert vae.encoder[-1].weight.abs().max() > 0
    assert float((rebuilt(vae, video) - video).square().mean()) < 0.9 * start


def test_statistics_travel_with_the_weights(clips, tmp_path):
    vae, video = make(), video_of(clips, 6)
    vae.initialize_from(video)
    vae.set_latent_statistics(video)
    latents = encode_video(vae, video.transpose(1, 2))
    assert float(latents.mean().abs()) < 1e-3
    assert 0.5 < float(latents.std()) < 2
    vae.save_pretrained(tmp_path)
    loaded = CausalAutoencoder.from_pretrained(tmp_path)
    assert torch.equal(encode_video(loaded, video.transpose(1, 2)), latents)
