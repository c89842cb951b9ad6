"""The training loop: `fit` runs any `step_fn(model, batch, generator) -> Losses` on one process or many.

All randomness is a function of (seed, step, slot), and the learning rate is one of the step, so a run that
resumes from a checkpoint equals the uninterrupted run to the last bit on the same machine.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from tqdm import tqdm

from worldmodel.cli_errors import CommandError
from worldmodel.data.batches import load_batches
from worldmodel.mcl.rows import RowCache
from worldmodel.signals import StopRequest, stop_on_signals
from worldmodel.training.loop.checkpoints import CheckpointStore, open_store
from worldmodel.training.loop.distributed import (
    MachineConfig,
    agreed,
    clip_gradients,
    describe_launch,
    gradient_sync,
    move,
    shard_group,
    spread,
    start_accelerator,
    whole_weights,
)
from worldmodel.training.loop.optim import OptimConfig, describe_groups, lr_factor, set_lr
from worldmodel.training.loop.order import micro_batches, process_slots, seed_micro_batch
from worldmodel.training.loop.state import RunState
from worldmodel.training.loop.step import StepFn, Stepper, keeps_rows, switch_on
from worldmodel.training.loop.tracking import Tracker, TrackerName, check_trackers

log = logging.getLogger(__name__)


class LoadFn(Protocol):
    """Turns lists of indices into batches; `worldmodel.data.batches.load_batches` for clips."""

    def __call__(
        self, dataset: Any, batches: Iterable[list[int]], num_workers: int, pin_memory: bool
    ) -> Iterator[Any]: ...


class ValidateFn(Protocol):
    """Evaluates the model at a step; called on every process, which must return the same numbers."""

    def __call__(
        self, model: Any, step: int, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, float]: ...


@dataclass(frozen=True)
class FitConfig:
    """Number of steps, batch sizes, validation and checkpoint intervals."""

    steps: int = 1000  # optimizer steps of the whole run
    global_batch: int = 16  # examples per optimizer step, over all processes
    micro_batch: int = 16  # examples per forward pass of one process; the rest is accumulated
    seed: int = 0  # of data order, noise and dropout
    num_workers: int = 0  # data-loading worker processes per training process
    # Recompute block activations in the backward pass: less memory, more time. auto, of world models: where a
    # step would not fit the GPU without it, by the estimate; never on a CPU.
    gradient_checkpointing: bool | Literal["auto"] = False  # true, false or auto
    compile: bool = False  # torch.compile the repeated blocks, or the whole model if it has none
    log_every: int = 10  # steps between log records
    validate_every: int = 0  # steps between validations; 0 = only at the end
    checkpoint_every: int = 500  # steps between checkpoints; one is always written at the end
    keep_checkpoints: int = 3  # newest checkpoints to keep, in addition to the best one
    best_metric: str = "loss"  # validation number whose lowest value marks the best checkpoint
    max_nonfinite: int = 5  # stop after this many steps in a row without a finite loss and gradient
    trackers: tuple[TrackerName, ...] = ("tensorboard",)  # curve writers in addition to log.jsonl
    optim: OptimConfig = field(default_factory=OptimConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    def __post_init__(self) -> None:
        if self.micro_batch < 1 or self.global_batch % self.micro_batch:
            raise ValueError(
                "global_batch must be a multiple of micro_batch, "
                f"got {self.global_batch} and {self.micro_batch}"
            )
        counts = ("steps", "global_batch", "log_every", "checkpoint_every", "keep_checkpoints")
        for name in (*counts, "max_nonfinite"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")

    def refuse_micro_batches(self, why: str) -> None:
        """ValueError if a step is cut, for losses of a whole batch; one micro-batch trains in one process."""
        if self.micro_batch < self.global_batch:
            raise ValueError(
                f"{why}: set fit.micro_batch to fit.global_batch={self.global_batch} and train in one "
                f"process, got fit.micro_batch={self.micro_batch}"
            )


@dataclass(frozen=True)
class FitResult:
    """The state of a run when `fit` returns."""

    step: int  # optimizer steps done
    is_finished: bool  # False when a signal ended it early, after saving
    num_skipped: int  # steps without a finite loss and gradient, over the whole run
    metrics: dict[str, float]  # of the last validation in this process
    cpu_seconds: float = 0.0  # CPU time of the main process over all resumptions


class NonFiniteLossError(CommandError):
    """Too many steps in a row had no finite loss; the message names the data."""


@dataclass
class _Run:
    """The objects of one process during a run."""

    config: FitConfig
    accelerator: Accelerator
    model: nn.Module  # the caller's model, trained in place
    stepper: nn.Module  # a Stepper, bare or wrapped for several processes
    state: RunState
    store: CheckpointStore
    slots: range  # micro-batches of a step assigned to this process
    tracker: Tracker | None = None  # main process only
    writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))  # of checkpoints
    writing: Future[str | None] | None = None  # the checkpoint that is being written


def fit(
    step_fn: StepFn,
    model: nn.Module,
    dataset: Sized,
    config: FitConfig,
    folder: Path,
    *,
    load: LoadFn = load_batches,
    validate: ValidateFn | None = None,
    resume: bool = False,
    accelerator: Accelerator | None = None,
    identity: Mapping[str, Any] | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> FitResult:
    """Train `model` in place; checkpoints, log.jsonl and curves go to `folder`.

    With `resume` the newest intact checkpoint of the folder is continued; without one it starts at step 0.
    The seed and `identity`, JSON values that the weights depend on, must then be those of the checkpoint.
    `on_start` is called on the main process once all checks have passed.
    """
    check_trackers(config.trackers)
    accelerator = accelerator or start_accelerator(config.machine)
    run = _start(step_fn, model, config, folder, accelerator, resume, identity)
    num_slots = config.global_batch // config.micro_batch
    indices = micro_batches(
        len(dataset), config.micro_batch, num_slots, run.slots, config.seed, run.state.step
    )
    pin_memory = accelerator.device.type == "cuda"
    batches = load(dataset, indices, num_workers=config.num_workers, pin_memory=pin_memory)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run.writer)  # waits for the checkpoint that is being written
        stack.callback(getattr(batches, "close", lambda: None))  # lets data-loading processes exit cleanly
        if accelerator.is_main_process:
            run.tracker = Tracker(folder, config.trackers, run.state.step, asdict(config))
            stack.callback(run.tracker.close)
            on_start()
        result = _train(run, batches, validate, stack.enter_context(stop_on_signals()))
    if not result.is_finished:
        accelerator.wait_for_everyone()  # a launcher kills its processes as soon as one has ended
    return result


def _start(
    step_fn: StepFn,
    model: nn.Module,
    config: FitConfig,
    folder: Path,
    accelerator: Accelerator,
    resume: bool,
    identity: Mapping[str, Any] | None,
) -> _Run:
    num_slots = config.global_batch // config.micro_batch
    slots = process_slots(num_slots, accelerator.process_index, accelerator.num_processes)
    if config.gradient_checkpointing == "auto":
        raise ValueError("fit.gradient_checkpointing=auto is for world models: set true or false")
    switch_on(model, config.gradient_checkpointing, config.compile)
    model.train()
    stepper = spread(Stepper(model, step_fn), accelerator, config.machine)
    state = RunState(model, config.optim, {**(identity or {}), "seed": config.seed})
    group = shard_group(config.machine, accelerator)
    store = open_store(folder, accelerator, resume, config.keep_checkpoints, group)
    if resume and (checkpoint := store.last_good()) is not None:
        state.restore(checkpoint)
        if state.step > config.steps:
            raise ValueError(f"{checkpoint.path} is at step {state.step}, beyond fit.steps={config.steps}")
    if accelerator.is_main_process:
        store.mark_best(state.best_step)  # a kill may have come between checkpoint and marking
        log.info("%s", describe_launch(accelerator, config.machine))
        log.info(
            "a step is %d micro-batch(es) of %d, %d a process", num_slots, config.micro_batch, len(slots)
        )
        for line in describe_groups(state.optimizer):
            log.info("%s", line)
        log.info("starting at step %d of %d, seed %d", state.step, config.steps, config.seed)
    return _Run(config, accelerator, model, stepper, state, store, slots)


def _train(run: _Run, batches: Iterator[Any], validate: ValidateFn | None, stop: StopRequest) -> FitResult:
    config, state = run.config, run.state
    is_stopped = False
    progress = tqdm(
        total=config.steps, initial=state.step, desc="train", disable=not run.accelerator.is_main_process
    )
    if _needs_validation(run, validate):  # a signal came in the step that should have been validated
        _save(run, _validate(run, validate), is_needed=True)
    while state.step < config.steps and not is_stopped:
        values, is_stopped = _train_step(run, batches, stop)
        progress.update()
        progress.set_postfix(loss=f"{values['loss']:.4g}", refresh=False)
        is_last = state.step == config.steps
        if run.tracker is not None and (is_last or state.step % config.log_every == 0):
            run.tracker.scalars(state.step, values)
        is_best = not is_stopped and _needs_validation(run, validate) and _validate(run, validate)
        if is_best or is_stopped or _is_due(state.step, config.checkpoint_every, is_last):
            _save(run, is_best, is_needed=is_last or is_stopped)
    progress.close()
    is_finished = state.step == config.steps
    if not is_finished and run.tracker is not None:
        cause = stop.cause or "a signal to another process"
        log.warning(
            "stopped by %s: step %d of %d is saved in %s; the same command with --resume goes on from there",
            *(cause, state.step, config.steps, run.store.folder),
        )
    return FitResult(state.step, is_finished, state.num_skipped, state.metrics, state.cpu_seconds)


def _needs_validation(run: _Run, validate: ValidateFn | None) -> bool:
    state, config = run.state, run.config
    is_due = state.step > 0 and _is_due(state.step, config.validate_every, state.step == config.steps)
    return validate is not None and is_due and state.validated != state.step


def _train_step(run: _Run, batches: Iterator[Any], stop: StopRequest) -> tuple[dict[str, float], bool]:
    """One optimizer step over this process's micro-batches: (values for the log, whether to stop)."""
    config, state, accelerator = run.config, run.state, run.accelerator
    factor = lr_factor(state.step, config.steps, config.optim)
    set_lr(state.optimizer, factor, config.optim)
    started, cpu_started = time.perf_counter(), time.process_time()
    sources: list[str] = []
    all_losses: list[dict[str, Tensor]] = []
    held: Iterator[Any] = (move(next(batches), accelerator.device) for _ in run.slots)
    cache = RowCache() if keeps_rows(run.model) else None
    if cache is not None:
        held = iter(_keep_rows(run, cache, list(held)))
    for index, (slot, batch) in enumerate(zip(run.slots, held, strict=True)):
        sources += getattr(batch, "sources", ())
        generator = seed_micro_batch(config.seed, state.step, slot)
        with gradient_sync(run.stepper, is_last=slot == run.slots[-1]):
            with accelerator.autocast(), cache.read(index) if cache else contextlib.nullcontext():
                losses = run.stepper(batch, generator)
            accelerator.backward(losses.total / len(run.slots))
        all_losses.append({"loss": losses.total.detach(), **losses.parts})
    norm = clip_gradients(list(state.parameters.values()), config.optim.max_grad_norm)
    read = [{**losses, "grad_norm": norm} for losses in all_losses]
    values, is_stopped = _mean_over_processes(read, stop.is_received, accelerator)
    is_finite = math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])
    if is_finite:
        state.optimizer.step()
        if state.ema is not None:
            state.ema.update()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    _count_nonfinite(run, is_finite, sources)
    values |= {
        "lr_factor": factor,
        "num_skipped": state.num_skipped,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
    }
    if accelerator.device.type == "cuda":
        values["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return values, is_stopped


def _keep_rows(run: _Run, cache: RowCache, batches: list[Any]) -> list[Any]:
    """Collect what each micro-batch contributes to a contrast over the whole step."""
    for slot, batch in zip(run.slots, batches, strict=True):
        generator = seed_micro_batch(run.config.seed, run.state.step, slot)
        with run.accelerator.autocast(), cache.fill():
            run.stepper(batch, generator)
    return batches


def _mean_over_processes(
    all_losses: Sequence[Mapping[str, Tensor]], is_stop_asked: bool, accelerator: Accelerator
) -> tuple[dict[str, float], bool]:
    """Mean of every loss over all micro-batches, and whether any process received a stop signal.

    The one place of a step where the host waits for a GPU.
    """
    names = list(all_losses[0])
    stacked = torch.stack([torch.stack([part[name].float() for name in names]) for part in all_losses])
    if accelerator.num_processes == 1:  # mps has no double precision
        stacked = stacked.cpu()
    stacked = stacked.double().mean(0)
    asked = stacked.new_tensor([float(is_stop_asked)])
    reduced = accelerator.reduce(torch.cat([asked, stacked]), reduction="mean").tolist()
    return dict(zip(names, reduced[1:], strict=True)), reduced[0] > 0


def _count_nonfinite(run: _Run, is_finite: bool, sources: list[str]) -> None:
    state = run.state
    if is_finite:
        state.num_nonfinite = 0
        return
    state.num_skipped += 1
    state.num_nonfinite += 1
    if run.accelerator.num_processes > 1:
        sources = gather_object(sources)
    message = (
        f"step {state.step}: loss or gradient is not finite, step skipped ({state.num_nonfinite} in a row)"
    )
    if run.accelerator.is_main_process:
        log.warning("%s", message)
    if state.num_nonfinite >= run.config.max_nonfinite:
        raise NonFiniteLossError(
            f"{message}; the last batch came from: {', '.join(sources) or 'unnamed data'}"
        )


def _validate(run: _Run, validate: ValidateFn | None) -> bool:
    """Validate the averaged weights, or the current ones; returns whether they are the best so far.

    Training state is not changed.
    """
    assert validate is not None
    averaged = run.state.ema.applied() if run.state.ema is not None else contextlib.nullcontext()
    run.model.eval()
    seed_micro_batch(run.config.seed, 0, 0)
    with torch.no_grad(), averaged, whole_weights(run.stepper):
        metrics = validate(run.model, run.state.step, run.accelerator, run.tracker)
    run.model.train()
    if run.tracker is not None:
        run.tracker.scalars(run.state.step, metrics, kind="validation")
        log.info("step %d: %s", run.state.step, ", ".join(f"{k} {v:.5g}" for k, v in metrics.items()))
    run.state.validated, run.state.metrics = run.state.step, metrics
    return _improves(run.state, metrics.get(run.config.best_metric))


def _improves(state: RunState, value: float | None) -> bool:
    if value is None or not math.isfinite(value) or (state.best is not None and value >= state.best):
        return False
    state.best, state.best_step = value, state.step
    return True


def _save(run: _Run, is_best: bool, is_needed: bool) -> None:
    """Copy the state, which a thread then writes, one checkpoint at a time.

    A failure is only reported, except for the checkpoint that ends the run, which is waited for.
    """
    _finish_writing(run)
    step, is_main = run.state.step, run.accelerator.is_main_process
    if is_main or run.store.group is not None:
        files = run.state.files()
        run.writing = run.writer.submit(_write, run.store, step, files, run.state.counters(), is_best)
    if is_needed and (problem := agreed(_finish_writing(run), run.accelerator)):
        raise OSError(problem)


def _write(
    store: CheckpointStore,
    step: int,
    files: Mapping[str, Mapping[str, Tensor]],
    counters: Mapping[str, Any],
    is_best: bool,
) -> str | None:
    """In the thread: save, and return why that failed, if so."""
    is_main = store.group is None or store.group.rank() == 0
    try:
        store.save(step, files, counters)
        if is_best and is_main:
            store.mark_best(step)
    except OSError as error:
        if not is_main:  # the main process says so
            return str(error)
        last = store.last_good()
        kept = f"{last.path.name} is kept" if last else "there is no earlier one"
        problem = f"checkpoint of step {step} could not be written ({error}); {kept}"
        log.error("%s", problem)
        return problem
    return None


def _finish_writing(run: _Run) -> str | None:
    """Wait for the checkpoint that is being written; why it could not be, if so."""
    writing, run.writing = run.writing, None
    return None if writing is None else writing.result()


def _is_due(step: int, every: int, is_last: bool) -> bool:
    return is_last or (every > 0 and step % every == 0)
