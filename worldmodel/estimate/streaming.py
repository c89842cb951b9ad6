"""How fast a causal model streams: operations of one latent frame, counted on tensors without storage.

time of a latent frame   sum over network calls of max(FLOPs / (peak FLOP/s * utilization), bytes of weights /
                         bandwidth), and FLOPs of the decoder / (peak FLOP/s * utilization)

The first call of a latent frame carries the frame before as well; further sampling steps carry the new one
alone. Both look at as many remembered frames as a clip of training has. One video; launching kernels and
handing over pictures is not counted.
"""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from worldmodel.models.attention_mask import stream_view
from worldmodel.models.kv_cache import FrameMemory, MemoryCall
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import VideoAutoencoder, decode_next, open_decoder
from worldmodel.types import FRAMES_PER_LATENT


@dataclass(frozen=True)
class StreamCost:
    """Work of one latent frame of one video."""

    first_flops: int  # of the call that carries the frame before
    further_flops: int  # of each further sampling step
    decoder_flops: int
    weight_bytes: int  # read in every network call

    def seconds(self, num_steps: int, flops_per_second: float, bytes_per_second: float) -> float:
        """Time to generate one latent frame with `num_steps` sampling steps."""
        calls = [self.first_flops] + [self.further_flops] * (num_steps - 1)
        reading = self.weight_bytes / bytes_per_second
        network = sum(max(flops / flops_per_second, reading) for flops in calls)
        return network + self.decoder_flops / flops_per_second

    def frames_per_second(self, num_steps: int, flops_per_second: float, bytes_per_second: float) -> float:
        """Frames of the video, four to a latent frame."""
        return FRAMES_PER_LATENT / self.seconds(num_steps, flops_per_second, bytes_per_second)


def stream_cost(model: WorldModel, vae: VideoAutoencoder | None) -> StreamCost:
    """Count the calls of a stream whose memory is full; model and autoencoder are on the meta device."""
    return StreamCost(
        first_flops=_network_flops(model, 2),
        further_flops=_network_flops(model, 1),
        decoder_flops=0 if vae is None else _decoder_flops(model, vae),
        weight_bytes=sum(p.nbytes for p in model.fdm.parameters()),
    )


@torch.no_grad()
def _network_flops(model: WorldModel, num_frames: int) -> int:
    contract, fdm = model.contract, model.fdm
    num_latents, height, width = contract.latent_grid
    window, tokens = max(1, num_latents - 2), fdm.tokens_per_frame(contract.latent_grid)
    blocks, heads = fdm.backbone.config["num_layers"], fdm.backbone.config["num_attention_heads"]
    known = torch.empty(
        1, (window + 1) * tokens, heads, fdm.width // heads, dtype=fdm.backbone.dtype, device="meta"
    )
    memory = FrameMemory((0, *range(2, window + 2)), (known,) * blocks, (known,) * blocks)
    call = MemoryCall(memory, tuple(range(window + 2, window + 2 + num_frames)), window, tokens)
    latents = torch.empty(1, contract.latent_channels, num_frames, height, width, device="meta")
    one, sigma = latents[:, :, :1], torch.empty(1, num_frames, device="meta")
    missing = torch.empty(1, 1 + num_frames, dtype=torch.bool, device="meta")
    embedding = model.embed(None, None, missing)[1:]
    text = fdm.embed_text(model.text, with_keys=True)
    with FlopCounterMode(display=False) as counter:
        fdm(latents, sigma, embedding, text, view=stream_view(call, one, one))
    return counter.get_total_flops()


@torch.no_grad()
def _decoder_flops(model: WorldModel, vae: VideoAutoencoder) -> int:
    _, height, width = model.contract.latent_grid
    latents = torch.empty(1, model.contract.latent_channels, 2, height, width, device="meta")
    state = open_decoder(vae, latents)
    with FlopCounterMode(display=False) as counter:
        decode_next(vae, state, latents[:, :, :1])
    return counter.get_total_flops()
