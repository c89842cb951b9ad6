"""Checks requests against the model and answers them; the same answer for the same sample, always.

Every sample is computed by itself with its own generator, so that no other sample can change a pixel of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.checked import LARGEST
from worldmodel.environments.spaces import WorldSpec
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.commands import read_commands
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.errors import ServiceError, invalid
from worldmodel.serving.messages import (
    API_VERSION,
    CameraText,
    Context,
    OpenMessage,
    PredictRequest,
    Sample,
)
from worldmodel.serving.pictures import decode_picture, encode_picture
from worldmodel.types import CameraMatrices, to_uint8

FARTHEST = 1e6  # pixels or metres, of a camera


@dataclass(frozen=True)
class ServedModel:
    """A world model with the description that the service publishes of it."""

    model: WorldModel
    version: str  # changes with the weights and with nothing else
    profiles: dict[str, str]  # profile id -> robot
    camera: CameraMatrices | None = (
        None  # for requests that bring none; None: models with pose maps refuse them
    )

    def __post_init__(self) -> None:
        for robot in self.profiles.values():
            self.model.normalizer.index(robot)


@dataclass(frozen=True)
class _Checked:
    """A sample whose every field fits the profile."""

    frames: UInt8[Tensor, "1 t 3 H W"]
    actions: Float[np.ndarray, "1 n a"]  # those between the frames first
    seed: int
    num_new: int
    camera: CameraMatrices | None
    state: Float[Tensor, "1 s"] | None  # measured at the first frame


class Predictor:
    """Turns checked requests into frames."""

    def __init__(self, served: ServedModel, config: ServeConfig) -> None:
        self.served, self.config = served, config
        self.pipeline = RolloutPipeline(served.model)
        self.min_context = served.model.config.num_given

    def capabilities(self) -> dict[str, Any]:
        """The manifest: what is accepted, no more and no less."""
        return {
            "api_version": API_VERSION,
            "model_version": self.served.version,
            "profiles": [self._profile(name) for name in self.served.profiles],
            "limits": {
                "max_batch_size": self.config.max_batch_size,
                "max_request_bytes": self.config.max_request_bytes,
                "max_concurrency": self.config.max_concurrency,
                "recommended_timeout_ms": int(1000 * self.config.deadline_s),
            },
            "determinism": {"seed_supported": True, "same_seed_same_pixels": True},
        }

    def check(self, request: PredictRequest) -> list[_Checked]:
        """Refuse requests that do not fit the model, before anything is computed."""
        served = self.served
        if request.api_version != API_VERSION:
            raise _unsupported(f"api_version: expected {API_VERSION!r}, got {request.api_version!r}")
        if request.model_version != served.version:
            raise _unsupported(f"model_version: this is {served.version!r}, got {request.model_version!r}")
        spec = self.spec_of(request.profile_id)
        if len(request.samples) > self.config.max_batch_size:
            raise invalid(
                f"samples: at most {self.config.max_batch_size} in a request, got {len(request.samples)}"
            )
        names = [sample.sample_id for sample in request.samples]
        if len(set(names)) < len(names):
            raise invalid("samples: sample_id appears twice in the request")
        return [
            self._check_sample(sample, spec, f"samples[{number}]")
            for number, sample in enumerate(request.samples)
        ]

    def predict(
        self, samples: Sequence[_Checked], profile_id: str, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[list[dict[str, object]]]:
        """Encoded frames of every sample; stops between samples if the client has disconnected."""
        answers = []
        for sample in samples:
            if not is_wanted():
                raise ServiceError("DEADLINE_EXCEEDED", "the request was given up before it was computed")
            result = self.pipeline(
                sample.frames,
                sample.actions,
                embodiment=self.served.profiles[profile_id],
                num_inference_steps=self.config.num_inference_steps,
                generator=[torch.Generator().manual_seed(sample.seed)],
                camera=sample.camera,
                start_state=sample.state,
            )
            answers.append(encode_frames(result.frames[0, -sample.num_new :]))
        return answers

    def open(self, message: OpenMessage) -> tuple[Session, WorldSpec]:
        """Open a streaming session that continues the frames of a message."""
        spec = self.spec_of(message.profile_id)
        frames, past, camera, state = self._check_context(message.context, spec, "context")
        session = self.pipeline.open(
            frames,
            past[None] if len(past) else None,
            embodiment=spec.embodiment,
            camera=camera,
            start_state=state,
            num_inference_steps=self.config.num_inference_steps,
            generator=[torch.Generator().manual_seed(message.seed)],
        )
        return session, spec

    def spec_of(self, profile_id: str) -> WorldSpec:
        """The pictures and actions of a profile."""
        if profile_id not in self.served.profiles:
            known = ", ".join(self.served.profiles)
            raise _unsupported(f"profile_id: this service has {known}, got {profile_id!r}")
        model = self.served.model
        return WorldSpec.of(model.contract, model.normalizer, self.served.profiles[profile_id])

    def check_actions(
        self, rows: Sequence[Sequence[float]], spec: WorldSpec, place: str
    ) -> Float[np.ndarray, "n a"]:
        """Actions as numbers, each of the robot's width."""
        width = len(spec.action_names)
        for number, row in enumerate(rows):
            if len(row) != width:
                raise invalid(f"{place}[{number}] has dimension {len(row)}; expected {width}")
        array = np.array(rows, np.float64).reshape(len(rows), width)
        if np.abs(array).max(initial=0) > LARGEST:
            raise invalid(f"{place}: expected numbers up to {LARGEST:g}, got {np.abs(array).max():g}")
        return array

    def _profile(self, name: str) -> dict[str, Any]:
        spec = self.spec_of(name)
        picture = {"height": spec.height, "width": spec.width, "channels": 3}
        return {
            "profile_id": name,
            "image": {"encoding": "png_base64", "color_space": "RGB", **picture},
            "context_frames": {"min": self.min_context, "max": self.config.max_context_frames},
            "prediction_frames": {"min": 1, "max": self.config.max_prediction_frames},
            "action": {
                "dtype": "float32",
                "dimension": len(spec.action_names),
                "representation": spec.action_space or "not_stated",
                "names": list(spec.action_names),
                "frames_per_second": spec.fps,
            },
            "state": {"supported": False, "dimension": None},
            "instruction": {"supported": False},
        }

    def _check_sample(self, sample: Sample, spec: WorldSpec, place: str) -> _Checked:
        frames, past, camera, state = self._check_context(sample.context, spec, f"{place}.context")
        actions = self.check_actions(sample.actions, spec, f"{place}.actions")
        if not 1 <= len(actions) <= self.config.max_prediction_frames:
            raise invalid(
                f"{place}.actions: expected 1 to {self.config.max_prediction_frames}, got {len(actions)}"
            )
        every = np.concatenate([past, actions])[None]
        return _Checked(frames, every, sample.seed, len(actions), camera, state)

    def _check_context(
        self, context: Context, spec: WorldSpec, place: str
    ) -> tuple[
        UInt8[Tensor, "1 t 3 H W"],
        Float[np.ndarray, "n a"],
        CameraMatrices | None,
        Float[Tensor, "1 s"] | None,
    ]:
        count, most = len(context.frames), self.config.max_context_frames
        if not self.min_context <= count <= most:
            raise invalid(f"{place}.frames: expected {self.min_context} to {most}, got {count}")
        past = self.check_actions(context.actions, spec, f"{place}.actions")
        if len(past) != count - 1:
            raise invalid(f"{place}.actions: expected {count - 1}, one less than frames, got {len(past)}")
        if context.states is not None and len(context.states) != count:
            raise invalid(f"{place}.states: expected {count}, one per frame, got {len(context.states)}")
        size = (spec.height, spec.width)
        pictures = [
            decode_picture(picture, size, f"{place}.frames[{number}]")
            for number, picture in enumerate(context.frames)
        ]
        frames = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)[None]
        camera = _camera(context.camera, size, place) or self.served.camera
        state = torch.tensor(context.states[:1]) if context.states else None
        middle = (spec.low + spec.high) / 2
        try:  # what action paths refuse: too many numbers in a state, no camera
            read_commands(self.served.model, middle[None, None], [spec.embodiment], camera, start_state=state)
        except ValueError as error:
            raise invalid(f"{place}: {error}") from error
        return frames, past, camera, state


def encode_frames(frames: Float[Tensor, "n 3 H W"]) -> list[dict[str, object]]:
    """Encode frames in [0, 1] for a response."""
    return [encode_picture(rgb) for rgb in to_uint8(frames).permute(0, 2, 3, 1).contiguous().numpy()]


def _camera(camera: CameraText | None, size: tuple[int, int], place: str) -> CameraMatrices | None:
    if camera is None:
        return None
    if {len(row) for row in camera.intrinsics} != {3} or {len(row) for row in camera.extrinsics} != {4}:
        raise invalid(f"{place}.camera: expected intrinsics of 3x3 and extrinsics of 3x4 numbers")
    intrinsics, extrinsics = np.array(camera.intrinsics), np.array(camera.extrinsics)
    farthest = max(np.abs(intrinsics).max(), np.abs(extrinsics).max())
    focal, turn = min(intrinsics[0, 0], intrinsics[1, 1]), extrinsics[:, :3]
    if farthest > FARTHEST or focal <= 0 or not np.allclose(turn @ turn.T, np.eye(3), atol=0.01):
        raise invalid(
            f"{place}.camera: expected positive focal lengths, a rotation, and numbers up to {FARTHEST:g}"
        )
    return CameraMatrices(intrinsics.astype(np.float32), extrinsics.astype(np.float32), size)


def _unsupported(message: str) -> ServiceError:
    return ServiceError("UNSUPPORTED_VERSION", message)
