from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.tiny_contexts import LIGHT, tiny_context_model
from tests.support.tiny_mddiff import TINY, some_images, tiny_mddiff
from worldmodel.context_module.models.context_model import ContextModel, ContextModelConfig, wrap_host
from worldmodel.context_module.models.context_module import ContextModuleConfig
from worldmodel.context_module.models.hosts import FirstStageHost, HostConfig, as_host, build_host
from worldmodel.context_module.models.light_vae import LightVae, LightVaeConfig
from worldmodel.md_vae.gaussian import standard_kl
from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig

IMAGE = ImageVaeConfig(num_codes=5, image_size=16, hidden=16)
HOSTS = {
    "light_vae": HostConfig("light_vae", light_vae=LIGHT),
    "image_vae": HostConfig("image_vae", image_vae=IMAGE),
    "first_stage": HostConfig("first_stage", first_stage=TINY.vq, image_size=16),
}
IDENTITY = ContextModuleConfig(num_concepts=3, in_width=4, out_width=4, norm="none", start="identity")


def trained_host(kind: str) -> nn.Module:
    torch.manual_seed(3)
    return build_host(HOSTS[kind]).eval()


@pytest.mark.parametrize("kind", list(HOSTS))
def test_an_untrained_module_leaves_any_host_unchanged(kind: str) -> None:
    host = trained_host(kind)
    width = -(-host.latent_dim // 3)  # type: ignore[operator]  # the last block may be partly unused
    module = replace(IDENTITY, in_width=width, out_width=width)
    model = wrap_host(host, module, has_head=True).eval()
    images = some_images()
    pixels = host.pixels(images)  # type: ignore[operator]
    before, after = host.posterior(pixels), model.posterior(pixels)  # type: ignore[operator]
    dim = host.latent_dim
    assert torch.equal(after.mean[:, :dim], before.mean)
    assert torch.equal(after.log_std[:, :dim], before.log_std)
    torch.testing.assert_close(standard_kl(after), standard_kl(before))  # padding costs nothing
    for do in ((), (1,), (0, 2)):
        assert torch.equal(model.decode(after.mean, do), host.decode(before.mean))  # type: ignore[operator]


def test_models_by_their_own_names_are_hosts() -> None:
    vae = ImageVae(IMAGE)
    host, described = as_host(vae)
    assert described.image_vae == IMAGE
    images = some_images()
    made = host.pictures(host.decode(host.posterior(host.pixels(images)).mean))  # type: ignore[operator]
    assert torch.equal(made, vae.decode(vae.encode(images)))
    mddiff = tiny_mddiff()
    mddiff.set_latent_scale(images)
    stage, described = as_host(mddiff)
    assert (described.first_stage, described.image_size) == (TINY.vq, 16)
    assert isinstance(stage, FirstStageHost)
    assert stage.latent_dim == 3 * 4 * 4
    assert stage.posterior(stage.pixels(images)).mean.std().item() == pytest.approx(1, rel=0.02)
    _, described = as_host(mddiff.first_stage.vq, image_size=16)
    assert described == HOSTS["first_stage"]
    light = LightVae(LIGHT)
    assert as_host(light)[0] is light
    with pytest.raises(ValueError, match=r"Linear is not a host: latent_dim .*, pixels.* missing"):
        as_host(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not autoencoder"):
        as_host(ImageVae(replace(IMAGE, family="autoencoder")))


def test_a_first_stage_decodes_as_it_does_in_its_own_model() -> None:
    mddiff = tiny_mddiff().eval()
    vq = mddiff.first_stage.vq
    host = FirstStageHost(vq, 16).eval()
    images = some_images()
    host.set_latent_scale(images)
    pixels = host.pixels(images)
    direct = vq.decode(vq.encode(pixels).latents).sample
    torch.testing.assert_close(host.decode(host.posterior(pixels).mean), direct, atol=1e-5, rtol=1e-5)
    exact = host.nll(pixels, pixels)
    worse = host.nll(pixels, pixels + 0.2)
    num = pixels[0].numel()
    torch.testing.assert_close(worse - exact, torch.full((6,), num * 0.1**2 / (2 * 0.1**2)))


def test_a_host_of_the_user_needs_six_members() -> None:
    class Own(LightVae):
        pass

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vae = LightVae(LIGHT)
            self.latent_dim = 12

        def __getattr__(self, name: str) -> object:
            inner = super().__getattr__("vae")
            return inner if name == "vae" else getattr(inner, name)

    model = wrap_host(Bare(), replace(IDENTITY, start="random"))
    assert model.sample(2, (1,)).shape == (2, 3, 16, 16)
    with pytest.raises(ValueError, match="save its weights yourself"):
        model.save_pretrained("nowhere")
    assert wrap_host(Own(LIGHT), IDENTITY).config.host.kind == "light_vae"


@pytest.mark.parametrize("variant", ["context", "pooled", "conditional", "base"])
def test_variants_know_of_contexts_what_they_should(variant: str) -> None:
    model = tiny_context_model(variant).eval()
    if variant == "conditional":
        nn.init.normal_(model.module.shift)  # type: ignore[union-attr, arg-type]
    z = torch.randn(4, model.latent_dim)
    knows = variant in ("context", "conditional")
    assert torch.equal(model.pictures(z, (0, 2)), model.pictures(z)) != knows
    assert model.codes(some_images(), (1,)).shape == (6, 3, 2 if variant in ("context", "pooled") else 4)
    assert (model.pictures(z) >= 0).all()
    assert (model.pictures(z) <= 1).all()


def test_shifts_of_the_conditional_model_add_up() -> None:
    shift = tiny_context_model("conditional").module
    nn.init.normal_(shift.shift)  # type: ignore[union-attr, arg-type]
    z = torch.zeros(1, 12)
    torch.testing.assert_close(shift(z, (0, 2)), shift(z, (0,)) + shift(z, (2,)))  # type: ignore[misc]
    with pytest.raises(ValueError, match="concepts are 0 to 2"):
        shift(z, (3,))  # type: ignore[misc]


def test_samples_are_fresh_and_follow_their_generator() -> None:
    model = tiny_context_model().eval()
    rng = torch.Generator().manual_seed(5)
    first, second = model.sample(3, (1,), generator=rng), model.sample(3, (1,), generator=rng)
    assert not torch.equal(first, second)
    assert torch.equal(first, model.sample(3, (1,), generator=torch.Generator().manual_seed(5)))


def test_a_frozen_host_does_not_move_not_even_its_batch_statistics() -> None:
    model = tiny_context_model()
    model.freeze_host()
    before = {name: tensor.clone() for name, tensor in model.host.state_dict().items()}
    model.train()
    assert model.module is not None
    assert model.module.training
    pixels = model.host.pixels(some_images())
    model.host.nll(pixels, model.decode(model.posterior(pixels).mean, (1,))).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.host.state_dict().items())
    assert all(parameter.grad is None for parameter in model.host.parameters())
    assert model.module.unpool.weight.grad is not None  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="nothing to train"):
        tiny_context_model("base").freeze_host()


@pytest.mark.parametrize("kind", list(HOSTS))
def test_a_saved_model_reads_back_equal(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = ContextModuleConfig(num_concepts=3, in_width=5, out_width=2)
    model = ContextModel(ContextModelConfig("context", True, HOSTS[kind], module)).eval()
    model.save_pretrained(tmp_path / "model")
    again = ContextModel.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    z = torch.randn(2, 15)
    assert torch.equal(again.pictures(z, (0, 1)), model.pictures(z, (0, 1)))
    (tmp_path / "model/contract.json").write_text('{"model": "Other"}')
    with pytest.raises(ValueError, match=r"expected .*ContextModel"):
        ContextModel.from_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="no model at"):
        ContextModel.from_pretrained(tmp_path)


def test_sizes_that_do_not_fit_are_refused() -> None:
    module = ContextModuleConfig(num_concepts=3, in_width=5, out_width=2)
    with pytest.raises(ValueError, match="12 latent dimensions, 3 concepts of 5 need 15"):
        tiny_context_model(module=module)
    with pytest.raises(ValueError, match="no module for a head"):
        tiny_context_model("base", has_head=True)
    with pytest.raises(ValueError, match="at least 12, got 9"):
        wrap_host(LightVae(LIGHT), replace(IDENTITY, in_width=3, out_width=3), has_head=True)
    with pytest.raises(ValueError, match="multiple of 8"):
        LightVaeConfig(image_size=20, channels=(4, 4, 4))
    with pytest.raises(ValueError, match="pictures of 16x16"):
        LightVae(LIGHT).pixels(some_images(size=32))
