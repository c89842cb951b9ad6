"""A plain baseline for world models: given frame and commands -> frames, by one network at once.

No latent, no diffusion, no stream. A recurrent network reads the commands, a U-Net sees the given frame. For
each frame it finds two flows of the given one, paints, and takes each pixel from the given frame, from either
warp, from a learned still background or from the paint. What a world model cannot do better in the same time
is no achievement.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.data.dataset import ClipDataset
from worldmodel.desk.refiner import ResidualBlock, zero_convolution
from worldmodel.models.picture_head import pixel_places, resized, sample_at
from worldmodel.objectives.pictures import shown_loss
from worldmodel.training.loop.checkpoints import CheckpointStore
from worldmodel.training.loop.distributed import MachineConfig
from worldmodel.training.loop.fit import FitConfig, FitResult, fit
from worldmodel.training.loop.optim import OptimConfig
from worldmodel.types import FRAMES_PER_LATENT, ClipBatch, Losses, to_unit_range

CELL = 2  # pixels per side that the finest level sees as one place
FINEST, COARSER = 1.0, 2.0  # farthest flow, in halves of the picture: found late, and found early
NUM_SHARES = 5  # given, two warps, background, paint
ANSWERS = (2, 3, NUM_SHARES)  # channels of a frame: late flow, paint, shares


@dataclass(frozen=True)
class DirectConfig:
    """Size of a `DirectPredictor`."""

    widths: tuple[int, int, int] = (40, 80, 128)  # channels at 2, 4 and 8 pixels a place
    code: int = 160  # channels of what a group of four commands says


class DirectPredictor(nn.Module):
    """The frames that commands lead to, 4 at a time."""

    def __init__(self, action_dim: int, background: Float[Tensor, "3 H W"], config: DirectConfig) -> None:
        super().__init__()
        height, width = background.shape[-2:]
        if height % (4 * CELL) or width % (4 * CELL):
            raise ValueError(f"sides of pictures are multiples of {4 * CELL}, got {height}x{width}")
        fine, _, low = config.widths
        self.background = nn.Parameter(background.clone())
        self.read = nn.GRU(2 * action_dim, config.code, batch_first=True)
        self.group = nn.Linear(FRAMES_PER_LATENT * config.code, config.code)
        self.place = nn.Linear(config.code, 8 * (height // 8) * (width // 8))
        self.enter = nn.Conv2d(5 * CELL**2, fine, 3, padding=1)
        steps = list(pairwise(config.widths))
        self.before = nn.ModuleList(ResidualBlock(size) for size in config.widths)
        self.downs = nn.ModuleList(nn.Conv2d(size, deep, 3, stride=2, padding=1) for size, deep in steps)
        self.join = nn.Conv2d(low + 8, low, 1)
        self.tell = nn.ModuleList(nn.Linear(config.code, 2 * size) for size in config.widths)
        self.after = nn.ModuleList(ResidualBlock(size) for size in config.widths)
        self.ups = nn.ModuleList(nn.Conv2d(deep, 4 * size, 1) for size, deep in steps)
        self.early = zero_convolution(nn.Conv2d(config.widths[1], 2 * FRAMES_PER_LATENT, 3, padding=1))
        answers = sum(ANSWERS) * FRAMES_PER_LATENT * CELL**2
        self.leave = zero_convolution(nn.Conv2d(fine, answers, 3, padding=1))

    def forward(
        self, given: Float[Tensor, "b 3 H W"], actions: Float[Tensor, "b n a"]
    ) -> Float[Tensor, "b n 3 H W"]:
        """Frames in [0, 1] behind the given one; n is a multiple of 4."""
        said, _ = self.read(torch.cat([actions, actions - actions[:, :1]], 2))
        codes = F.silu(self.group(said.unflatten(1, (-1, FRAMES_PER_LATENT)).flatten(2)))
        early, answer = self._draw(given, codes)
        late, paint, shares = answer.split(ANSWERS, 2)
        flows = (COARSER * early, COARSER * early + FINEST * late)
        count = actions.shape[1]
        first = given.repeat_interleave(count, 0)
        warps = [sample_at(first, flow.flatten(0, 1)).view_as(paint) for flow in flows]
        known = given[:, None]
        sources = (known, *warps, self.background, known + paint)
        mix = shares.softmax(2).split(1, 2)
        mixed = torch.stack([share * source for share, source in zip(mix, sources, strict=True)]).sum(0)
        return mixed if self.training else mixed.clamp(0, 1)

    def _draw(
        self, given: Float[Tensor, "b 3 H W"], codes: Float[Tensor, "b f d"]
    ) -> tuple[Float[Tensor, "b n 2 H W"], Float[Tensor, "b n k H W"]]:
        """Early flows, and all else that the U-Net answers, for every frame."""
        size, count = given.shape[-2:], codes.shape[1]
        place = pixel_places(size[0], size[1], given).expand(len(given), -1, -1, -1)
        features = self.enter(
            F.pixel_unshuffle(torch.cat([2 * given - 1, place], 1), CELL).contiguous(
                memory_format=torch.channels_last
            )
        )
        kept: list[Tensor] = []
        for level, block in enumerate(self.before):
            kept.append(block(features if level == 0 else self.downs[level - 1](kept[-1])))
        code = codes.flatten(0, 1)
        maps = self.place(code).view(len(code), 8, *kept[-1].shape[-2:])
        low = kept[-1].repeat_interleave(count, 0)
        features = self.after[2](self._told(2, self.join(torch.cat([low, maps.to(low.dtype)], 1)), code))
        early = features
        for level in (1, 0):
            fine = kept[level].repeat_interleave(count, 0) + F.pixel_shuffle(self.ups[level](features), 2)
            features = self.after[level](self._told(level, fine, code))
            early = features if level == 1 else early
        flows = resized(self.early(F.silu(early)).float(), size)
        answer = F.pixel_shuffle(self.leave(F.silu(features)).float(), CELL)
        return tuple(
            rearrange(x, "(b f) (r k) y x -> b (f r) k y x", f=count, r=FRAMES_PER_LATENT)
            for x in (flows, answer)
        )  # type: ignore[return-value]

    def _told(
        self, level: int, features: Float[Tensor, "m d y x"], code: Float[Tensor, "m e"]
    ) -> Float[Tensor, "m d y x"]:
        scale, shift = self.tell[level](code)[..., None, None].chunk(2, 1)
        told: Tensor = features * (1 + scale) + shift
        return told


def direct_step(model: DirectPredictor, batch: ClipBatch, generator: torch.Generator) -> Losses:
    """The error of what one given frame and all commands of each clip lead to."""
    if batch.frames is None:
        raise ValueError(f"the direct predictor learns from frames, got none: {batch.sources[0]}, ...")
    frames = to_unit_range(batch.frames)
    made = model(frames[:, 0], batch.robot_actions)
    return Losses(shown_loss(made, frames[:, 1:], frames[:, 0]), {})


def direct_fit(steps: int, seed: int = 0) -> FitConfig:
    """How the baseline is trained, whatever the robot."""
    rates = OptimConfig(
        lr=1.5e-3,
        betas=(0.9, 0.99),
        warmup_steps=min(50, steps // 4),
        schedule="cosine",
        decay_fraction=0.7,
        max_grad_norm=0.5,
        ema_decay=0.995,
    )
    machine = MachineConfig(device="cpu", mixed_precision="bf16")
    return FitConfig(steps=steps, seed=seed, checkpoint_every=250, trackers=(), optim=rates, machine=machine)


def train_direct(
    clips: ClipDataset, steps: int, folder: Path, *, seed: int = 0
) -> tuple[DirectPredictor, FitResult]:
    """A trained baseline with averaged weights; a training that was stopped in this folder goes on."""
    torch.manual_seed(seed)
    some = [clips[number * len(clips) // 64].frames for number in range(64)]
    background = torch.stack([to_unit_range(one[0]) for one in some if one is not None]).mean(0)
    model = DirectPredictor(clips.normalizer.width, background, DirectConfig())
    result = fit(direct_step, model, clips, direct_fit(steps, seed), folder, resume=True)
    model.load_state_dict(averaged_weights(folder))
    return model.eval(), result


def averaged_weights(folder: Path) -> dict[str, Tensor]:
    """The averaged weights of the newest whole checkpoint of a run."""
    last = CheckpointStore(folder / "checkpoints", 1).last_good()
    if last is None:
        raise ValueError(f"{folder}: expected a finished training, there is no checkpoint")
    return {**last.tensors("weights"), **last.tensors("ema")}
