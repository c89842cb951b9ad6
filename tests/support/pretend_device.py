"""A device that computes shapes alone: what a model does on a GPU, where there is none.

A tensor of the CPU that meets one of the device raises an error, as on a GPU. So do double precision, which
mps does not have, and a real tensor that was not moved. It registers a backend of torch, so it runs in a
process of its own and prints one JSON object:

python -m tests.support.pretend_device
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

import worldmodel
from tests.support.pose_sets import NAMES
from tests.support.tiny_wan import tiny_wan
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.actions.camera_motion import CameraMotionConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.actions.protocol import blank_extras
from worldmodel.models.actions.published.bwm import BwmConfig
from worldmodel.models.actions.published.open_world import OpenWorldConfig
from worldmodel.models.actions.start_state import StartStateConfig
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import HeadConfig
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training.loop.optim import OptimConfig, make_optimizer
from worldmodel.types import Actions, ClipBatch

HOME = Path(worldmodel.__file__).parent
PRETEND = torch.device("privateuseone", 0)
SIZE, FRAMES, CLIPS = 32, 9, 4
MOVES = (Tensor.to, Tensor.cpu, Tensor.copy_, Tensor.__setitem__)
IDM = IdmConfig(
    **{"image_height": SIZE, "image_width": SIZE, "patch_size": 16, "encoder_width": 48, "encoder_layers": 1},
    **{"encoder_heads": 2, "hidden": 32},
)
PICTURES = ObjectiveConfig(
    forcing="prefix", context_noise=0.1, sink_jump=0.5, pixel_weight=1.0, pixel_share=0.5, idm_weight=0.0
)
CASES = {
    "wan": WorldModelConfig(idm=IDM, mcl=ActionMclConfig()),
    "latent actions": WorldModelConfig(idm=IDM, regime="lacg", mcl=ActionMclConfig()),
    "desk": WorldModelConfig(
        causal=True,
        small=SmallNetConfig(refiner_width=8),
        objective=PICTURES,
        head=HeadConfig(width=8, num_sources=2),
        actions=ActionConfig(
            pose_maps=PoseMapsConfig(command_lag=0.3),
            place_map=PlaceMapConfig(),
            tokens=TokensConfig(),
            camera_motion=CameraMotionConfig(),
            start_state=StartStateConfig(size=7),
        ),
    ),
    "bwm": WorldModelConfig(
        idm=IDM, history=2, actions=ActionConfig(adaln=None, bwm=BwmConfig(action_dim=16))
    ),
    "open-world": WorldModelConfig(
        causal=True,
        objective=ObjectiveConfig(forcing="prefix", sampler="resample", idm_weight=0.0),
        actions=ActionConfig(adaln=None, open_world=OpenWorldConfig(16, hidden=8, condition_dim=8)),
    ),
    "compositor": WorldModelConfig(
        causal=True,
        small=SmallNetConfig(),
        objective=replace(PICTURES, sink_jump=0.0),
        actions=ActionConfig(pose_maps=PoseMapsConfig()),
        compositor_width=8,
        hand_references=2,
        sharpen=0.3,
    ),
}


class Backend(_DummyBackendModule):
    """What autocast asks a backend for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Types that it computes in."""
        return [torch.bfloat16]


class Watched(TorchFunctionMode):
    """Makes constants on the device, which torch cannot on this one, and notes where tensors cross."""

    def __init__(self) -> None:
        super().__init__()
        self.crossings: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return _blank(func(*args, **kwargs), device)
        if func is Tensor.new_tensor:
            like, data = args
            return _blank(torch.tensor(data, dtype=like.dtype), like.device)
        if func in (Tensor.__float__, Tensor.__bool__, Tensor.item):  # a number that Python waits for
            if args[0].device == PRETEND:
                self.crossings.add(_place())
            return True if func is Tensor.__bool__ else 0.5
        if func is torch.gru:  # torch has none for such a device: the same shapes from the same weights
            x, (state,), (seen, kept, *_) = args[:3]
            hidden = (F.linear(x, seen) + F.linear(state, kept)[:, None])[..., : state.shape[-1]]
            return hidden, hidden[None, :, -1]
        answer = func(*args, **kwargs)
        if isinstance(answer, Tensor) and answer.device == PRETEND and answer.dtype == torch.float64:
            raise TypeError("double precision on the device")
        if func in MOVES and _devices(args) | _devices([answer]) == {"cpu", PRETEND.type}:
            self.crossings.add(_place())
        return answer


def _blank(like: Tensor, device: torch.device) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device)


def _devices(values: Any) -> set[str]:
    return {value.device.type for value in values if isinstance(value, Tensor) and value.ndim}


def _place() -> str:
    """file:function of the package that is running."""
    frame = sys._getframe()
    while not frame.f_code.co_filename.startswith(str(HOME)):
        if frame.f_back is None:
            return "the test"
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).relative_to(HOME)}:{frame.f_lineno} {frame.f_code.co_qualname}"


def build(config: WorldModelConfig) -> WorldModel:
    """A tiny model on the CPU, with real numbers."""
    low, high = (0.0,) * len(NAMES), (1.0,) * len(NAMES)
    stats = ActionStats(NAMES, low, high, low, high, 100)
    normalizer = ActionNormalizer({"a": stats, "b": stats})
    contract = InputSpec(FRAMES, SIZE, SIZE, 10.0, camera="head", latent_scale=4)
    vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
    return WorldModel.build(replace(config, backbone=tiny_wan()), contract, normalizer, vae=vae)


def place(model: nn.Module) -> None:
    """What `model.to(device)` does: parameters and buffers, and nothing else."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, part in module._parameters.items():
            if part is not None:
                new = nn.Parameter(_blank(part, PRETEND), part.requires_grad)
                module._parameters[name] = moved.setdefault(id(part), new)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _blank(buffer, PRETEND)


def clip_batch(config: WorldModelConfig) -> ClipBatch:
    """Clips of any content, on the CPU."""
    count = FRAMES - 1
    return ClipBatch(
        torch.zeros(CLIPS, count, 16),
        torch.ones(CLIPS, 16, dtype=torch.bool),
        torch.zeros(CLIPS, dtype=torch.long),
        ("clip",) * CLIPS,
        torch.zeros(CLIPS, FRAMES, 3, SIZE, SIZE, dtype=torch.uint8),
        extras=blank_extras(config.actions.row_shapes, CLIPS, count),
    )


def train(model: WorldModel, batch: ClipBatch) -> None:
    """Forward, backward and a step of AdamW; every gradient is on the device."""
    model.train().freeze_untrained()
    losses = world_model_step(model, batch.to(PRETEND), torch.Generator().manual_seed(0))
    losses.total.backward()
    trained = [part for part in model.parameters() if part.requires_grad]
    assert trained, "nothing is trained"
    assert all(part.grad is None or part.grad.device == PRETEND for part in trained)
    assert sum(part.grad is not None for part in trained) > len(trained) / 2
    make_optimizer(model, OptimConfig()).step()


def roll(model: WorldModel, batch: ClipBatch) -> None:
    """A session with steps and a fork, and a rollout, from frames and actions on the CPU."""
    pipeline, actions = RolloutPipeline(model), Actions(batch.robot_actions, extras=batch.extras)[:4]
    assert batch.frames is not None
    given, names = batch.frames[:, :1], ["a"] * CLIPS
    session = pipeline.open(given, embodiment="a", num_inference_steps=2)
    assert session.advance(actions, 4).device == PRETEND
    assert session.fork(2).step().device.type == "cpu"
    assert pipeline.rollout(given, actions, embodiments=names).frames.device.type == "cpu"


PARTS: dict[str, Callable[[WorldModel, ClipBatch], None]] = {"train": train, "roll": roll}


def run(case: str, part: str, plant: str = "") -> tuple[str, set[str]]:
    """The error of a part on the device, and where tensors crossed; with a constant planted on the CPU."""
    torch.manual_seed(0)
    model, watched = build(CASES[case]), Watched()
    with FakeTensorMode(allow_non_fake_inputs=False, shape_env=ShapeEnv()), watched:
        place(model)
        try:
            with planted(model, plant):
                PARTS[part](model, clip_batch(model.config))
        except Exception as error:  # any error is the result
            return f"{type(error).__name__}: {error}"[:300], watched.crossings
    return "", watched.crossings


@contextmanager
def planted(model: WorldModel, name: str) -> Iterator[None]:
    """A constant of the CPU in the forward pass of a module, or in a function."""
    if name == "a mask of attention":
        from worldmodel.models import attention_mask, dynamics

        def on_the_cpu(num_frames: int, _: torch.device) -> attention_mask.AttentionView:
            return attention_mask.causal_view(num_frames, torch.device("cpu"))

        with patch.object(dynamics, "causal_view", on_the_cpu):
            yield
    elif name == "a table that was not moved":
        rope = model.fdm.backbone.rope.base
        rope.freqs_cos = torch.zeros(rope.freqs_cos.shape)
        yield
    elif name:
        for module in model.get_submodule(name).modules():
            if own := list(module.parameters(recurse=False)):
                module.register_forward_hook(lambda *_, weight=own[0]: weight.flatten()[:1] + torch.ones(1))
        yield
    else:
        yield


PLANTS = (
    ("compositor", "train", "a mask of attention"),
    ("desk", "train", "a table that was not moved"),
    *(("desk", part, name) for part in PARTS for name in ("interface", "fdm.backbone.blocks.1", "head")),
    *(("desk", "roll", name) for name in ("vae.decoder", "fdm.small.refiner", "a table that was not moved")),
    *(("latent actions", "train", name) for name in ("idm", "mcl", "controller", "embodiment_classifier")),
    *(("latent actions", "roll", name) for name in ("idm", "controller")),
    *(("compositor", part, "compositor") for part in PARTS),
)


def main() -> None:
    """All cases."""
    _setup_privateuseone_for_python_backend("pretend", Backend())
    plain = {f"{case}, {part}": run(case, part) for case in CASES for part in PARTS}
    found = {
        "errors": {name: error for name, (error, _) in plain.items()},
        "crossings": sorted(set().union(*(crossings for _, crossings in plain.values()))),
        "planted": {", ".join(plant): run(*plant)[0] for plant in PLANTS},
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
