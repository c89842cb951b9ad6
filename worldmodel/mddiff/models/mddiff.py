"""EncDiff and MDDiff: images to 20 scalar concepts, and back by latent diffusion.

    image --encoder--> concepts u [b k] --one MLP each--> tokens [b k m] --cross-attention--> denoiser
    image --VQ-VAE--> latent z [b c h w], noised --denoiser--> z_hat --decoder(z, u)--> image

EncDiff's decoder is not conditioned on u; MDDiff's is, and stage 2 trains a mechanistic contrast (MCL) on it.
Axes: b batch, n images, k concepts, m token width, c h w latent, H W pixels, a size of u.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from worldmodel.checked import check_range, check_type, read_json, shorten
from worldmodel.checkpoint.folder import CONFIG_FILE, CONTRACT_FILE
from worldmodel.config import load_config, save_config
from worldmodel.device import AnyDevice, find_device
from worldmodel.files import read_into, replaced_folder, write_tensors
from worldmodel.hub import load_part
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mddiff.ddim import build_scheduler, ddim_sample
from worldmodel.mddiff.models.config import MDDiffConfig
from worldmodel.mddiff.models.contrast import build_image_contrast
from worldmodel.mddiff.models.encoder import ConceptEncoder, ConceptTokens
from worldmodel.mddiff.models.first_stage import FirstStage, build_vq
from worldmodel.mddiff.models.unet import ConceptUNet
from worldmodel.tensors import check_headers, skeleton

FORMAT = {"format": 1, "model": "MDDiff"}
SCALES = 1e-12, 1e12  # plausible range of the latent scale
CHUNK = 256  # images or codes processed at once


class MDDiff(nn.Module):
    """`encode(images) -> codes`, `decode(codes) -> images`; see `mddiff_loss.py` for training.

    Examples:
        >>> from worldmodel import MDDiff
        >>> model = MDDiff.from_pretrained("outputs/desk/concepts/mcl/model")  # doctest: +SKIP
        >>> codes = model.encode(images)  # doctest: +SKIP
        >>> pictures = model.decode(codes, num_steps=50)  # doctest: +SKIP
    """

    latent_scale: Tensor  # 1 / standard deviation of raw latents

    def __init__(self, config: MDDiffConfig, vq: VQModel | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = ConceptEncoder(config.image_size, config.num_concepts, config.encoder_width)
        self.tokens = ConceptTokens(config.num_concepts, config.token_dim)
        self.unet = ConceptUNet(config.unet, config.vq.latent_channels, config.token_dim)
        vq = build_vq(config.vq) if vq is None else vq
        self.first_stage = FirstStage(vq, config.decoder, config.condition_dim).requires_grad_(False)
        self.contrast: MechanisticContrast | None = build_image_contrast(config)
        self.scheduler = build_scheduler(config.noise)
        self.register_buffer("latent_scale", torch.ones(()))

    def pixels(self, images: UInt8[Tensor, "b 3 H W"]) -> Float[Tensor, "b 3 H W"]:
        """Images as the networks expect them, in [-1, 1]."""
        size = self.config.image_size
        if images.shape[-2:] != (size, size):
            raise ValueError(f"this model takes pictures of {size}x{size}, got {tuple(images.shape[-2:])}")
        return images.to(self.latent_scale.device).float() / 127.5 - 1

    @torch.no_grad()
    def latents_of(self, pixels: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b c h w"]:
        """Latents of unit variance, before quantization."""
        # Contiguous: the forward-mode derivative of a group norm, which MCL may use, needs it.
        return (self.first_stage.encode(pixels) * self.latent_scale).contiguous()

    @torch.no_grad()
    def set_latent_scale(self, images: UInt8[Tensor, "n 3 H W"]) -> None:
        """Measure the scale on some images, as latent diffusion does on its first batch."""
        self.latent_scale.fill_(1.0)
        self.latent_scale.copy_(1 / self.latents_of(self.pixels(images)).std())

    def condition(
        self, concepts: Float[Tensor, "b k"], tokens: Float[Tensor, "b k m"]
    ) -> Float[Tensor, "b a"]:
        """u: the concepts themselves, or their tokens concatenated."""
        return tokens.flatten(1) if self.config.decoder.what == "tokens" else concepts

    def tokens_of_condition(self, condition: Float[Tensor, "b a"]) -> Float[Tensor, "b k m"]:
        """The tokens that belong to u."""
        if self.config.decoder.what == "tokens":
            return condition.unflatten(1, (self.config.num_concepts, self.config.token_dim))
        tokens: Tensor = self.tokens(condition)
        return tokens

    def codes_of(self, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Quantized latents in the same unit-variance scale; straight-through gradient."""
        return self.first_stage.quantize(latents / self.latent_scale) * self.latent_scale

    def decode_latents(
        self, codes: Float[Tensor, "b c h w"], condition: Float[Tensor, "b a"]
    ) -> Float[Tensor, "b 3 H W"]:
        """G(z, u): images in [-1, 1] from quantized latents."""
        return self.first_stage.decode(codes / self.latent_scale, condition)

    @torch.no_grad()
    def encode(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n k"]:
        """The concepts of images."""
        assert not self.training, "call eval() first: batch statistics would mix the pictures"
        return torch.cat([self.encoder(self.pixels(chunk)) for chunk in images.split(CHUNK)])

    @torch.no_grad()
    def decode(
        self, codes: Float[Tensor, "n k"], *, num_steps: int = 50, eta: float = 0.0, seed: int = 0
    ) -> Float[Tensor, "n 3 H W"]:
        """Images in [0, 1], by DDIM; all start from the same noise, so only their codes differ."""
        rng = torch.Generator().manual_seed(seed)
        start = torch.randn((1, *self.config.latent_shape), generator=rng).to(self.latent_scale.device)
        pictures = []
        for chunk in codes.to(start.device).split(CHUNK):
            tokens = self.tokens(chunk)
            latents = ddim_sample(
                self.noise_fn(tokens),
                start.expand(len(chunk), -1, -1, -1),
                self.config.noise,
                num_steps=num_steps,
                eta=eta,
                generator=rng,
            )
            pictures.append(self.decode_latents(self.codes_of(latents), self.condition(chunk, tokens)))
        return (torch.cat(pictures) / 2 + 0.5).clamp(0, 1)

    @torch.no_grad()
    def first_stage_images(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n 3 H W"]:
        """Images in [0, 1] reconstructed by the first stage alone: the best that `decode` can reach."""
        rebuilt = []
        for chunk in images.split(CHUNK):
            pixels = self.pixels(chunk)
            concepts = self.encoder(pixels)
            condition = self.condition(concepts, self.tokens(concepts))
            rebuilt.append(self.decode_latents(self.codes_of(self.latents_of(pixels)), condition))
        return (torch.cat(rebuilt) / 2 + 0.5).clamp(0, 1)

    def noise_fn(self, tokens: Float[Tensor, "b k m"]) -> Callable[[Tensor, Tensor], Tensor]:
        """The denoiser with its tokens filled in."""

        def predict(noisy: Float[Tensor, "b c h w"], steps: Int[Tensor, " b"]) -> Tensor:
            noise: Tensor = self.unet(noisy, steps, tokens)
            return noise

        return predict

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """All submodules except the VQ-VAE, by the name of their file."""
        yield from (("encoder", self.encoder), ("tokens", self.tokens), ("unet", self.unet))
        if len(self.first_stage.condition):
            yield "decoder_condition", self.first_stage.condition
        if self.contrast is not None:
            yield "contrast", self.contrast

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters of each submodule."""
        parts: dict[str, nn.Module] = {"vq": self.first_stage.vq, **dict(self.parts())}
        return {
            name: sum(math.prod(parameter.shape) for parameter in part.parameters())
            for name, part in parts.items()
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config, first stage and submodules as one folder, replacing an older one when complete."""
        with replaced_folder(Path(folder), CONTRACT_FILE) as new:
            save_config(self.config, new / CONFIG_FILE)
            values = {**FORMAT, "latent_scale": float(self.latent_scale)}
            (new / CONTRACT_FILE).write_text(json.dumps(values, indent=2) + "\n")
            self.first_stage.vq.save_pretrained(new / "vq")
            for name, part in self.parts():
                write_tensors(new / f"{name}.safetensors", part.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: AnyDevice = "auto") -> "MDDiff":
        """Load a saved model, in evaluation mode, onto a device (see `device.py`)."""
        folder, place = Path(folder), find_device(device)
        path = folder / CONTRACT_FILE
        if not path.is_file():
            raise ValueError(f"no model at {folder}: expected {path.name} in it")
        values = read_json(path)
        if {key: values.get(key) for key in FORMAT} != FORMAT:
            raise ValueError(f"{path}: expected {FORMAT}, got {shorten(values)}")
        scale = check_type(values.get("latent_scale"), float, f"{path}: latent_scale")
        check_range(scale, *SCALES, f"{path}: latent_scale")
        config = load_config(MDDiffConfig, str(folder / CONFIG_FILE))
        vq = load_part(VQModel, folder / "vq")
        planned = skeleton(lambda: cls(config, VQModel.from_config(vq.config)), str(folder))
        for name, part in planned.parts():
            check_headers([folder / f"{name}.safetensors"], part.state_dict())
        model = cls(config, vq)
        for name, part in model.parts():
            read_into(part, folder / f"{name}.safetensors")
        model.latent_scale.fill_(scale)
        return model.eval().to(place)
