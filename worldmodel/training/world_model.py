"""Train a world model:

accelerate launch -m worldmodel train CONFIG.yaml key=value ...      (or worldmodel train, or torchrun)

Writes OUTPUT/first_batch.mp4 (what the model is fed), checkpoints, log.jsonl, tensorboard/, rollouts/*.mp4
and, when finished, metrics.json and the world model folders OUTPUT/model (last step) and OUTPUT/best (lowest
validation number), which `WorldModel.from_pretrained` loads.
"""

import logging
from collections.abc import Sequence, Sized
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor

from worldmodel.checkpoint.folder import locate, read_description
from worldmodel.cli_errors import one_way_out
from worldmodel.config import load_config, save_config
from worldmodel.data.batches import load_batches
from worldmodel.data.dataset import ClipDataset, check_extras, collate_clips
from worldmodel.data.index import EpisodeIndex
from worldmodel.data.normalize import ActionStats
from worldmodel.estimate.cost import DEVICES, GIB, RunShape, needs_checkpointing
from worldmodel.files import check_apart, fingerprint, read_into
from worldmodel.models.config import WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import load_vae
from worldmodel.objectives.distillation import student_step
from worldmodel.objectives.training_step import mcl_gradient_flow, world_model_step
from worldmodel.shipped import find_weights
from worldmodel.training.command_line import run_script
from worldmodel.training.datasets import DataConfig, open_clips, trained_on
from worldmodel.training.first_batch import write_first_batch
from worldmodel.training.loop.checkpoints import Checkpoint, export_finished, open_store
from worldmodel.training.loop.distributed import resolve_parallel, start_accelerator
from worldmodel.training.loop.fit import FitConfig, LoadFn, fit
from worldmodel.training.loop.step import StepFn, switch_on
from worldmodel.training.model_data import (
    cache_latents,
    frame_contract,
    on_device,
    shared_index,
    still_projection,
)
from worldmodel.training.predictions import (
    PredictionsConfig,
    RecordedClips,
    augmented_step,
    recorded_clips,
    recorded_step,
)
from worldmodel.training.robot_pictures import fill_references
from worldmodel.training.start_from import continued_model, settings_beneath
from worldmodel.training.validation import Validation, ValidationConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainConfig:
    """One training run of a world model."""

    output: str = "outputs/world_model"  # folder of checkpoints, curves, rollouts and the finished model
    # start_from continues a whole world model: omitted settings of `model` are taken from it, and unsupported
    # changes are refused. For a new model on its backbone alone, set model.pretrained instead.
    start_from: str = ""  # world model folder or hub id to fine-tune; empty: a new model
    head_from: str = ""  # world model folder whose picture head a new one starts from; empty: random weights
    allow_external: bool = False  # also load from other places that the model of start_from names
    model: WorldModelConfig = field(default_factory=WorldModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    predictions: PredictionsConfig = field(default_factory=PredictionsConfig)
    first_batch: int = 4  # clips of the first batch shown in OUTPUT/first_batch.mp4 before step 0; 0 = none

    def __post_init__(self) -> None:
        self.data.check_given()
        if not self.start_from and not self.model.vae:
            raise ValueError("model.vae must name an autoencoder (or start_from a world model that has one)")
        if self.model.head is not None and not (self.model.trains_head or self.start_from):
            raise ValueError("a new picture head needs pictures: set model.objective.pixel_weight above 0")
        if self.model.objective.student_steps and not self.start_from:
            raise ValueError("model.objective.student_steps distills a trained model: name it in start_from")
        if self.predictions.folder and not (self.start_from and self.model.trained == "head"):
            raise ValueError(
                "predictions.folder records a trained model for its picture head: name it in start_from and "
                f"set model.trained=head, got start_from={self.start_from!r} and {self.model.trained!r}"
            )
        mode = None if self.model.mcl is None else self.model.mcl.mode
        if self.fit.compile and mode in ("exact", "hessian_diag"):
            raise ValueError(f"torch.compile has no second derivatives, which mcl.mode={mode} needs")
        self.check_sharding(self.fit.machine.parallel)
        if self.fit.gradient_checkpointing is True and mode == "jvp":
            raise ValueError(
                "gradient checkpointing has no forward-mode derivatives, which mcl.mode=jvp needs"
            )
        given = [pattern for pattern in self.fit.optim.lr_multipliers if pattern.startswith("mcl")]
        if given and self.model.mcl is not None and self.model.mcl.head_lr:
            raise ValueError(
                f"the learning rate of critic and heads is given twice: model.mcl.head_lr="
                f"{self.model.mcl.head_lr:g} and fit.optim.lr_multipliers {given[0]!r}"
            )

    def check_sharding(self, parallel: str) -> None:
        """Refuse a contrast that does not support sharding, which the launch file may also request."""
        mode = None if self.model.mcl is None else self.model.mcl.mode
        if parallel == "fsdp2" and mode in ("exact", "hessian_diag", "jvp"):
            raise ValueError(
                f"mcl.mode={mode} differentiates twice, which sharded weights do not allow: set "
                "mcl.mode=first_order, or launch with a ddp file (machine.parallel=ddp)"
            )

    @property
    def is_validated(self) -> bool:
        """Whether the run validates on held-out clips; their split must then have some."""
        splits = self.data.splits
        return bool(self.validation.num_clips and (splits.val or splits.val_uids))

    @property
    def fit_with_heads(self) -> FitConfig:
        """`fit` with a separate learning rate for critic and heads, if model.mcl.head_lr is set."""
        optim, mcl = self.fit.optim, self.model.mcl
        if mcl is None or not mcl.head_lr:
            return self.fit
        multipliers = {"mcl.*": mcl.head_lr / optim.lr, **optim.lr_multipliers}
        return replace(self.fit, optim=replace(optim, lr_multipliers=multipliers))


def load_train_config(path: str | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """As `load_config`; with start_from, omitted settings of `model` are those of that model."""
    return load_config(TrainConfig, path, overrides, settings_beneath)


@dataclass(frozen=True)
class WorldModelRun:
    """A model with its data, ready for `fit`."""

    config: TrainConfig
    index: EpisodeIndex
    model: WorldModel
    train_clips: ClipDataset
    validation: Validation | None


def build_run(config: TrainConfig, device: torch.device) -> WorldModelRun:
    """Open the data, build or load the model, encode what the latent cache lacks."""
    index = shared_index(config.data)
    log.info("%s", index.summary())
    log.info("%s", index.camera_summary())
    model = build_model(config, index)
    assert model.vae is not None, "a world model in training has an autoencoder"
    latents, reader = None, model.config.reader
    if reader is not None:
        check_extras(index, index.records, reader)
    if config.data.latents:
        is_first = PartialState().is_local_main_process
        latents = cache_latents(
            config.data, index, on_device(model.vae, device), reader=reader, with_progress=is_first
        )
    needs_frames = model.idm is not None or model.compositor is not None or model.config.trains_head
    clips = open_clips(config.data, index, "train", model.normalizer, latents, needs_frames, reader)
    model.contract = replace(model.contract, num_inference_steps=config.validation.num_inference_steps)
    if reader is not None:
        model.contract = replace(model.contract, projection=still_projection(clips))
    if model.hand_references is not None:
        fill_references(model, model.hand_references, clips)
    return WorldModelRun(config, index, model, clips, _validation(config, index, model))


def build_model(config: TrainConfig, index: EpisodeIndex) -> WorldModel:
    """Build the model; random weights depend only on the seed."""
    torch.manual_seed(config.fit.seed)
    if config.start_from:
        model = continued_model(
            config.start_from, config.model, config.data, index, allow_external=config.allow_external
        )
    else:
        vae = load_vae(config.model.vae)
        model = WorldModel.build(
            config.model,
            frame_contract(index, vae),
            index.normalizer(),
            vae=vae,
            allow_external=config.allow_external,
        )
    if config.head_from:
        start_head(model, config)
    model.trained_on = trained_on(config.data, index).after(model.trained_on)
    model.freeze_untrained()
    if model.head is not None and not model.config.trains_head:
        model.head.requires_grad_(False)
    if model.mcl is not None and model.mcl.config.needs_math_attention:
        # The backward pass of a checkpointed block runs it again, outside the context that the step sets.
        model.fdm.backbone.set_attention_backend("_native_math")
    return model


def start_head(model: WorldModel, config: TrainConfig) -> None:
    """Give a new picture head the weights of `head_from`; one that start_from brings is trained further."""
    if model.head is None:
        raise ValueError(f"head_from={config.head_from} is for a picture head: set model.head={{}}")
    if config.start_from and read_description(locate(config.start_from)).config.head is not None:
        log.info("the picture head of %s is trained further, head_from is not read", config.start_from)
        return
    file = find_weights(config.head_from) / "head.safetensors"
    if not file.is_file():
        raise ValueError(f"head_from={config.head_from}: expected a folder with {file.name}, found none")
    try:
        read_into(model.head, file)
    except ValueError as error:
        raise ValueError(f"{error}; a head of another size starts from random weights: head_from=") from error


def step_of(run: WorldModelRun, device: torch.device) -> StepFn:
    """The training step: the model's own objective, or distillation from a frozen copy of the model."""
    if not run.model.config.objective.student_steps:
        return world_model_step
    teacher = deepcopy(run.model).requires_grad_(False).eval().to(device)
    return partial(student_step, teacher)


def examples_of(run: WorldModelRun, accelerator: Accelerator) -> tuple[StepFn, Sized, LoadFn]:
    """What is trained on, how it is read and the step: clips, or recorded predictions of them."""
    config = run.config
    if not config.predictions.folder:
        return step_of(run, accelerator.device), run.train_clips, load_batches
    with accelerator.main_process_first():
        recorded = recorded_clips(config.start_from, run.train_clips, config.predictions)
    step = augmented_step if config.predictions.augment else recorded_step
    return step, recorded, RecordedClips.load


def with_checkpointing_settled(run: WorldModelRun, accelerator: Accelerator) -> WorldModelRun:
    """Replace fit.gradient_checkpointing=auto by what the main process needs, for all processes alike."""
    fit, model = run.config.fit, run.model
    if fit.gradient_checkpointing != "auto":
        return run
    memory, is_on = 0.0, [False]
    if accelerator.device.type == "cuda":
        memory = torch.cuda.get_device_properties(accelerator.device).total_memory / GIB
    shape = RunShape(
        model=model.config,
        contract=model.contract,
        action_dim=model.normalizer.width,
        num_embodiments=len(model.normalizer.embodiments),
        steps=fit.steps,
        global_batch=fit.global_batch,
        micro_batch=fit.micro_batch,
        gradient_checkpointing=False,
        has_ema=fit.optim.ema_decay > 0,
        has_autocast=accelerator.mixed_precision == "bf16",
        parallel=resolve_parallel(fit.machine, accelerator.num_processes),
    )
    device = replace(DEVICES["H100"], name="this GPU", memory=memory)
    if accelerator.is_main_process:
        try:
            is_on = [needs_checkpointing(shape, accelerator.num_processes, device)]
            log.info("gradient checkpointing: %s, by the estimate for %.0f GiB", *is_on, memory)
        except ValueError as error:  # the shapes of named weights may be unknown
            is_on = [True]
            log.warning("gradient checkpointing: on, because nothing could be estimated (%s)", error)
    if accelerator.num_processes > 1:
        broadcast_object_list(is_on)
    return replace(run, config=replace(run.config, fit=replace(fit, gradient_checkpointing=is_on[0])))


def log_mcl_flow(run: WorldModelRun, accelerator: Accelerator) -> None:
    """Log what the contrast will train, from the gradients of two clips; nothing without a contrast."""
    if run.model.mcl is None or not accelerator.is_main_process:
        return
    fit = run.config.fit  # so that the report needs no more memory than a step
    switch_on(run.model, fit.gradient_checkpointing is True, compile_blocks=False)
    clips = [run.train_clips[number] for number in range(min(2, fit.micro_batch, len(run.train_clips)))]
    batch = collate_clips(clips).to(accelerator.device)
    # In evaluation mode: no dropout draws from the global generator, so that the losses stay the same.
    model = run.model.to(accelerator.device).eval()
    with accelerator.autocast():
        log.info("%s", mcl_gradient_flow(model, batch, torch.Generator().manual_seed(0)))


def data_identity(config: TrainConfig, model: WorldModel) -> dict[str, Any]:
    """Start, clips, frame contract and action statistics: a resumed run must have the same ones."""
    return {
        "start_from": _weights_of(config.start_from) if config.start_from else "",
        "clip": {**asdict(config.data.clip), "merge": model.contract.merge},
        # Aspect and merge are settings of the clip; checkpoints of older versions have them only there.
        "frames": {k: v for k, v in asdict(model.contract).items() if k not in ("aspect", "merge")},
        "action_width": model.normalizer.width,
        "embodiments": list(model.normalizer.embodiments),
        "actions": {name: _scale(entry) for name, entry in model.normalizer.stats.items()},
        "action_spaces": {name: entry.action_space for name, entry in model.normalizer.stats.items()},
    }


def _scale(entry: ActionStats) -> dict[str, Any]:
    """Without fields that older versions did not store, so that their runs can be resumed."""
    return {key: value for key, value in asdict(entry).items() if key not in ("action_space", "deltas")}


def _weights_of(source: str) -> str:
    return fingerprint(locate(source), (".safetensors",))


def _validation(config: TrainConfig, index: EpisodeIndex, model: WorldModel) -> Validation | None:
    if not config.is_validated:
        log.info("no validation: validation.num_clips or data.splits.val is 0, and val_uids names no episode")
        return None
    clips = open_clips(config.data, index, "val", model.normalizer, None, True, model.config.reader)
    folder = Path(config.output) / "rollouts"
    return Validation(clips, config.validation, folder, config.fit.micro_batch, config.fit.seed)


def whole_model(run: WorldModelRun) -> WorldModel:
    """The unsharded model in this process: the trained one, or a new one if that is sharded."""
    if any(isinstance(parameter, DTensor) for parameter in run.model.parameters()):
        return build_model(run.config, run.index)
    return run.model


def export_model(model: WorldModel, trained: Checkpoint, folder: Path) -> None:
    """Write a checkpoint as a world model folder, with averaged weights if there are any, through `model`."""
    tensors = {**trained.tensors("weights"), **trained.tensors("ema")}
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    assert not unexpected, unexpected
    model.eval().save_pretrained(folder)


def train(config: TrainConfig, resume: bool) -> bool:
    """Build, fit, export; returns False if a signal stopped it early."""
    accelerator = start_accelerator(config.fit.machine)
    config.check_sharding(resolve_parallel(config.fit.machine, accelerator.num_processes))
    output = Path(config.output)
    check_apart(output, *config.data.paths, find_weights(config.start_from) if config.start_from else "")
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    run = with_checkpointing_settled(build_run(config, accelerator.device), accelerator)
    if accelerator.is_main_process:
        write_first_batch(
            output / "first_batch.mp4", run.model, run.train_clips, config.fit, config.first_batch
        )
    log_mcl_flow(run, accelerator)
    step, examples, load = examples_of(run, accelerator)
    result = fit(
        step,
        run.model,
        examples,
        run.config.fit_with_heads,
        output,
        load=load,
        validate=run.validation,
        resume=resume,
        accelerator=accelerator,
        identity=data_identity(config, run.model),
        on_start=partial(save_config, config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        export_finished(store, result.metrics, partial(export_model, whole_model(run)))
    accelerator.end_training()
    return result.is_finished


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(TrainConfig, train, __doc__ or "", argv, load_train_config)
