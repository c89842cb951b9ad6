import pytest
import torch

from worldmodel.mcl.critics import ImageCritic, LatentVideoCritic, ProjectionHead, VectorCritic


def test_scores_are_one_per_row() -> None:
    vector = VectorCritic(latent_dim=3, output_dim=5, condition_dim=2)
    assert vector(torch.randn(4, 7, 5), torch.randn(4, 7, 3), torch.randn(4, 7, 2)).shape == (4, 7)
    image = ImageCritic(image_channels=3, latent_dim=2 * 4 * 4, condition_dim=6)
    assert image(torch.randn(5, 3, 16, 16), torch.randn(5, 2, 4, 4), torch.randn(5, 6)).shape == (5,)
    video = LatentVideoCritic(latent_channels=4, condition_dim=8)
    latent = torch.randn(2, 4, 3, 8, 8)
    assert video(latent, latent, torch.randn(2, 3, 8)).shape == (2, 3)


def test_vector_critic_is_the_three_layer_mlp_of_the_paper() -> None:
    critic = VectorCritic(latent_dim=5, output_dim=64, condition_dim=16)
    sizes = [tuple(p.shape) for p in critic.parameters() if p.ndim == 2]
    assert sizes == [(256, 85), (256, 256), (1, 256)]


def test_latent_video_scores_look_at_their_own_frame_only() -> None:
    torch.manual_seed(0)
    critic = LatentVideoCritic(latent_channels=2, condition_dim=3)
    latent = torch.randn(1, 2, 4, 8, 8, requires_grad=True)
    critic(latent, latent, torch.randn(1, 4, 3))[0, 2].backward()
    assert latent.grad is not None
    moved = latent.grad.abs().amax(dim=(0, 1, 3, 4)) > 0
    assert moved.tolist() == [False, False, True, False]


def test_latent_video_rows_and_conditions_line_up() -> None:
    critic = LatentVideoCritic(latent_channels=2, condition_dim=1)
    b, f = 2, 3
    marks = torch.arange(b * f).float().view(b, f)
    latent = marks.view(b, 1, f, 1, 1).expand(b, 2, f, 4, 4)
    rows, conditions = critic.rows(latent), critic.condition_rows(marks.unsqueeze(-1))
    assert rows.shape == (6, 32)
    assert (rows == conditions).all()


@pytest.mark.parametrize("layer_norm", [False, True])
def test_heads_end_on_the_unit_sphere(layer_norm: bool) -> None:
    head = ProjectionHead(7, layer_norm=layer_norm)
    out = head(100 * torch.randn(9, 7))
    assert out.shape == (9, 128)
    torch.testing.assert_close(out.norm(dim=-1), torch.ones(9))


def test_critics_have_second_derivatives() -> None:
    torch.manual_seed(0)
    critic = VectorCritic(latent_dim=3, output_dim=3, condition_dim=1)
    z = torch.randn(1, 3)
    hessian = torch.autograd.functional.hessian(lambda z: critic(z, z, torch.ones(1, 1)).sum(), z)
    assert hessian.abs().max() > 1e-4
