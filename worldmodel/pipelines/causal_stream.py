"""A stream of frames from a causal model: one latent frame at a time, behind what is remembered.

One network call makes a latent frame in one step: it carries the frame before, now known, beside the noise,
and so writes down its keys and values. Further sampling steps carry the new frame alone.
"""

import copy
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.diffusion.euler import euler_sample
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.attention import TextContext
from worldmodel.models.attention_mask import stream_view
from worldmodel.models.kv_cache import FrameMemory, MemoryCall
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import decode_next, open_decoder
from worldmodel.pipelines.action_conditions import check_actions
from worldmodel.pipelines.hand_follower import HandFollower
from worldmodel.pipelines.sampling import Generators, draw_noise
from worldmodel.types import FRAMES_PER_LATENT, Actions, map_tensors, num_video_frames


class CausalStream:
    """The latents, the memory and the decoder of an open video."""

    def __init__(
        self,
        model: WorldModel,
        frames: Float[Tensor, "b t 3 H W"],
        past: Actions,
        num_inference_steps: int,
        generator: Generators | None,
        window: int | None = None,
        hands: HandFollower | None = None,
    ) -> None:
        self.model, self.generator = model, generator
        self.hands = HandFollower(model, frames, past.extras) if hands is None else hands
        self.tokens_per_frame = model.fdm.tokens_per_frame(model.contract.latent_grid)
        self.window = default_window(model) if window is None else window
        if self.window < 1:
            raise ValueError(f"a window has 1 latent frame or more, got {self.window}")
        given = frames[:, -num_video_frames(self._num_given(frames.shape[1], past)) :]
        latents = model.encode(given)
        assert model.vae is not None, "a model that encodes has an autoencoder"
        self.text: TextContext = model.text_context(with_keys=True)
        self.sigmas = model.sigmas(num_inference_steps)
        self.first, self.memory = latents[:, :, :1], FrameMemory()
        # Known, but not in the memory yet; the latest of them is the frame before the next one.
        self.waiting, self.num_latents = latents, latents.shape[2]
        self.last_frame = frames[:, -1]
        self.waiting_actions = self._embed_given(given, past)
        self.decoded = open_decoder(model.vae, latents)

    @torch.no_grad()
    def advance(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """The frames that so many actions lead to."""
        check_actions(self.model, actions)
        starts = range(0, num_actions, FRAMES_PER_LATENT)
        return torch.cat([self._next(actions[i : i + FRAMES_PER_LATENT]) for i in starts], 1)

    def copies(self, count: int) -> "CausalStream":
        """The same stream with every sample so many times."""
        twin = copy.copy(self)
        for name in ("first", "waiting", "last_frame", "memory", "decoded"):
            setattr(twin, name, map_tensors(getattr(self, name), lambda x: x.repeat_interleave(count, 0)))
        twin.hands = self.hands.copies(count)
        twin.waiting_actions = map_tensors(self.waiting_actions, lambda x: x.repeat_interleave(count, 0))
        return twin

    def _num_given(self, num_frames: int, past: Actions) -> int:
        """How many latent frames to start from: all that the model has learned to start from."""
        config = self.model.config
        if num_frames < num_video_frames(config.history):
            raise ValueError(
                f"expected the {num_video_frames(config.history)} frames of the model's history or more, "
                f"got {num_frames}"
            )
        hears_past = config.regime != "acg" or past.robot is not None
        if config.objective.forcing == "clip" or not hears_past:
            return config.history
        return min(1 + (num_frames - 1) // FRAMES_PER_LATENT, self.window + 1)

    def _embed_given(self, frames: Float[Tensor, "b t 3 H W"], past: Actions) -> ActionEmbedding:
        model, num_actions = self.model, frames.shape[1] - 1
        if not num_actions:
            return self._embed(Actions(), 0)
        if model.config.regime == "lacg" and past.latent is None:
            return self._embed(Actions(latent=model.infer_latent_actions(frames)), num_actions)
        return self._embed(past[-num_actions:], num_actions)

    def _embed(self, actions: Actions, num_actions: int) -> ActionEmbedding:
        """Of the null frame and the latent frames that so many actions lead to."""
        model = self.model
        given = actions.robot if actions.latent is None else actions.latent
        if model.config.regime == "lacg" and actions.latent is None and actions.robot is not None:
            given = model.control(actions.robot, self.last_frame)
        size = len(self.first), 1 + num_actions // FRAMES_PER_LATENT
        missing = torch.zeros(size, dtype=torch.bool, device=self.first.device)
        return model.embed(None if model.config.regime == "no_action" else given, actions.extras, missing)

    def _next(self, actions: Actions) -> Float[Tensor, "b 4 3 H W"]:
        embedding = self._embed(actions, FRAMES_PER_LATENT)
        if self.num_latents == 1:  # what a path embeds for the first frame comes with the first transitions
            self.waiting_actions = embedding[:1]
        embedding = embedding[1:]
        latents = self._sample(embedding)
        self.waiting, self.waiting_actions = latents, embedding
        self.num_latents += 1
        assert self.model.vae is not None, "a model that encodes has an autoencoder"
        decoded, self.decoded = decode_next(self.model.vae, self.decoded, latents)
        composed = self.hands.compose(decoded, actions.extras)
        self.last_frame = composed.frames[:, -1]
        return composed.sharpened(self.model.config.sharpen)

    def _sample(self, embedding: ActionEmbedding) -> Float[Tensor, "b c 1 h w"]:
        num_samples, channels, _, *size = self.first.shape
        noise = draw_noise(num_samples, (channels, 1, *size), self.generator).to(self.first)
        before, maps, waiting = self.waiting[:, :, -1:], self._last_maps(embedding), self.waiting.shape[2]

        def velocity(noisy: Tensor, sigma: Tensor) -> Tensor:
            nonlocal waiting
            latents, actions = noisy, embedding
            if waiting:
                latents = torch.cat([self.waiting, noisy], 2)
                sigma = torch.cat([sigma.new_zeros(num_samples, waiting), sigma], 1)
                actions = self.waiting_actions.concat(embedding)
            call = self._call(latents.shape[2])
            view = stream_view(call, self.first, before, maps)
            output = self.model.fdm(latents, sigma, actions, self.text, view=view)
            if waiting:
                self.memory = self.memory.with_frames(call.numbers[:-1], call, self.window)
                waiting = 0
            return output.velocity

        redraw = partial(draw_noise, num_samples, (channels, 1, *size), self.generator)
        is_resampled = self.model.config.objective.sampler == "resample"
        return euler_sample(velocity, noise[:, :, :0], noise, self.sigmas, redraw if is_resampled else None)

    def _last_maps(self, embedding: ActionEmbedding) -> Float[Tensor, "b 1 m h w"] | None:
        """Maps of the latest known frame."""
        maps = self.waiting_actions.concat(embedding).maps
        return None if maps is None else maps[:, -2:-1]

    def _call(self, num_frames: int) -> MemoryCall:
        newest = self.num_latents
        numbers = tuple(range(newest + 1 - num_frames, newest + 1))
        return MemoryCall(self.memory, numbers, self.window, self.tokens_per_frame)


def default_window(model: WorldModel) -> int:
    """As many frames as the latest of a clip sees in training, beside the first."""
    return max(1, model.contract.latent_grid[0] - 2)
