"""The state that a resumed run needs: trained weights, optimizer, moving average and counters."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel.training.loop.checkpoints import Checkpoint
from worldmodel.training.loop.optim import (
    ExponentialMovingAverage,
    OptimConfig,
    load_full,
    make_optimizer,
    trainable_parameters,
)
from worldmodel.training.loop.shards import read_shards

MAX_NAMED = 5  # differences listed in a message


class RunState:
    """The state of a run, which may resume on another number of processes."""

    def __init__(
        self, model: nn.Module, config: OptimConfig, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.parameters = trainable_parameters(model)
        self._buffers = _persistent_buffers(model)
        self.optimizer = make_optimizer(model, config)
        self.ema = ExponentialMovingAverage(model, config) if config.ema_decay else None
        self.step = 0  # optimizer steps done
        self.num_skipped = 0  # steps without a finite loss and gradient
        self.num_nonfinite = 0  # of those, the current consecutive ones
        self.best: float | None = None  # lowest validation number so far
        self.best_step = 0  # where it was reached
        self.validated = 0  # step of the last validation
        self.metrics: dict[str, float] = {}  # its result
        self._cpu_start = time.process_time()  # minus the time of earlier processes of the run
        # Everything else the weights depend on, as read from JSON; none: unknown.
        self.identity = json.loads(json.dumps(identity))

    @property
    def cpu_seconds(self) -> float:
        """CPU time of this process since the run began, plus that of the runs it resumes."""
        return time.process_time() - self._cpu_start

    def files(self) -> dict[str, dict[str, Tensor]]:
        """File name -> copies of the tensors on the CPU; of sharded ones, of this process's part alone."""
        moments = {
            f"{name}/{key}": value
            for name, parameter in self.parameters.items()
            for key, value in self.optimizer.state[parameter].items()
        }
        everything = {
            "weights": {**self.parameters, **self._buffers},
            "optimizer": moments,
            "ema": {} if self.ema is None else self.ema.average,
        }
        return {
            file: {
                name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
            }
            for file, tensors in everything.items()
        }

    def counters(self) -> dict[str, Any]:
        """The part of the state that is saved as JSON."""
        return {
            "num_skipped": self.num_skipped,
            "num_nonfinite": self.num_nonfinite,
            "best": self.best,
            "best_step": self.best_step,
            "validated": self.validated,
            "metrics": self.metrics,
            "num_ema_updates": 0 if self.ema is None else self.ema.num_updates,
            "cpu_seconds": self.cpu_seconds,
            "identity": self.identity,
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint; ValueError if it belongs to another model or to another run."""
        self._check_identity(checkpoint)
        _copy_all(checkpoint, "weights", {**self.parameters, **self._buffers})
        self._restore_optimizer(checkpoint)
        if self.ema is not None:
            _copy_all(checkpoint, "ema", self.ema.average)
            self.ema.num_updates = checkpoint.state["num_ema_updates"]
        self.step = checkpoint.state["step"]
        self.num_skipped = checkpoint.state["num_skipped"]
        self.num_nonfinite = checkpoint.state["num_nonfinite"]
        self.best = checkpoint.state["best"]
        # Missing in checkpoints of older versions.
        self.best_step = checkpoint.state.get("best_step", 0)
        self.validated = checkpoint.state.get("validated", self.step)
        self.metrics = checkpoint.state.get("metrics", {})
        self._cpu_start -= checkpoint.state.get("cpu_seconds", 0.0)  # missing in older checkpoints

    def _check_identity(self, checkpoint: Checkpoint) -> None:
        saved = checkpoint.state.get("identity")  # checkpoints of older versions have none
        if saved is None or self.identity is None:
            return
        # Older versions recorded fewer keys; only recorded ones are compared.
        known = {key: value for key, value in self.identity.items() if key in saved}
        if changed := list(differences(saved, known)):
            more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
            raise ValueError(
                f"{checkpoint.path} belongs to another run: {'; '.join(changed[:MAX_NAMED])}{more}. "
                "Use the seed, data, settings and start_from weights it was started with, or another folder"
            )

    def _restore_optimizer(self, checkpoint: Checkpoint) -> None:
        saved, targets = checkpoint.described("optimizer"), {}
        for full_name, value in saved.items():
            name, _, key = full_name.rpartition("/")
            parameter = self.parameters[name]
            if key == "step":
                target = torch.zeros((), dtype=value.dtype, device=parameter.device)
            else:
                target = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
            targets[full_name] = self.optimizer.state[parameter][key] = target
        _fill(checkpoint, "optimizer", targets, saved)


def differences(saved: Any, now: Any, name: str = "") -> Iterator[str]:
    """Descriptions of what changed between two JSON values; numbers within rounding are equal."""
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in [*saved, *(key for key in now if key not in saved)]:
            yield from differences(saved.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif not _agree(saved, now):
        yield f"{name} was {_shown(saved)}, now is {_shown(now)}"


def _agree(saved: Any, now: Any) -> bool:
    if isinstance(saved, list) and isinstance(now, list):
        return len(saved) == len(now) and all(map(_agree, saved, now))
    if isinstance(saved, float) and isinstance(now, float):
        # Statistics computed on another machine may differ in their last digits.
        return math.isclose(saved, now, rel_tol=1e-6, abs_tol=1e-9)
    return bool(saved == now)


def _shown(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _copy_all(checkpoint: Checkpoint, file: str, targets: Mapping[str, Tensor]) -> None:
    saved = checkpoint.described(file)
    if wrong := sorted(set(saved) ^ set(targets)):
        where = "checkpoint" if wrong[0] in saved else "model"
        raise ValueError(
            f"{checkpoint.path}/{file}.safetensors does not fit this model: {len(wrong)} names differ, "
            f"e.g. {wrong[0]} is in the {where} only. Was the config changed?"
        )
    for name, target in targets.items():
        if saved[name].shape != target.shape:
            raise ValueError(
                f"{checkpoint.path}/{file}.safetensors: {name} has shape {tuple(saved[name].shape)}, "
                f"this model expects {tuple(target.shape)}"
            )
    _fill(checkpoint, file, targets, saved)


def _fill(
    checkpoint: Checkpoint, file: str, targets: Mapping[str, Tensor], saved: Mapping[str, Tensor]
) -> None:
    if checkpoint.has_shards(file):
        read_shards(checkpoint.path / file, targets)
        return
    for name, target in targets.items():
        load_full(target, saved[name])


def _persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    saved = set(model.state_dict(keep_vars=True))
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}
