"""`worldmodel diagnose`: one page about a generator or about a world model's action channel."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from worldmodel.data.dataset import build_clip_dataset, collate_clips, record_transitions
from worldmodel.diagnostics.actions.action_channel import action_channel, diversity_section
from worldmodel.diagnostics.actions.action_groups import ActionGroups, group_actions, parse_groups
from worldmodel.diagnostics.actions.world_model_channel import ClipView, world_model_channel
from worldmodel.diagnostics.actions.world_model_diversity import (
    first_order_estimate,
    is_too_large,
    nearby_actions,
    world_model_diversity,
)
from worldmodel.diagnostics.mechanisms.contrast_premises import contrast_premises
from worldmodel.diagnostics.mechanisms.jacobians import Generator
from worldmodel.diagnostics.mechanisms.report import mechanistic_report
from worldmodel.mcl.info_nce import is_learned
from worldmodel.models.model import WorldModel
from worldmodel.models.parts import contrast_widths
from worldmodel.objectives.training_step import world_model_step
from worldmodel.report.page import Page, Section, Table, Text, write_page
from worldmodel.types import ClipBatch, EpisodeSource


def diagnose_generator(
    source: str, page: Path, *, block_sizes: Sequence[int], num_points: int = 16, seed: int = 0
) -> list[Path]:
    """Types D, M, S, H, graphs and rank of a generator at standard normal latents.

    Args:
        source: "package.module:name" or "path/file.py:name" of a callable or module z[n d] -> x[n ...], or of
            a function without arguments that returns one.
        page: *.html or *.md to write.
        block_sizes: coordinates of each factor, in order; all ones for single coordinates.
        num_points: number of latents to evaluate.
        seed: of the latents.
    """
    if not block_sizes or min(block_sizes) < 1:
        raise ValueError(f"block sizes are positive, one per factor, got {list(block_sizes)}")
    ends = [sum(block_sizes[: i + 1]) for i in range(len(block_sizes))]
    blocks = [range(end - size, end) for end, size in zip(ends, block_sizes, strict=True)]
    z = torch.randn(num_points, sum(block_sizes), generator=torch.Generator().manual_seed(seed))
    report = mechanistic_report(load_generator(source), z, blocks, seed=seed)
    return write_page(Page(f"Diagnostics of {source}", "", tuple(report.sections())), page)


def diagnose_world_model(
    model: WorldModel,
    batch: ClipBatch,
    page: Path,
    *,
    view: ClipView | None = None,
    groups: str = "",
    seed: int = 0,
) -> list[Path]:
    """Which group of action dimensions moves which pixels, and the GMD contrasts of one clip.

    Args:
        model: with an action channel.
        batch: clips of one embodiment, with frames.
        page: *.html or *.md to write.
        view: of the clips, for a model whose action paths read more than actions.
        groups: "arm=0-5,gripper=6"; empty: grouped by the action names.
        seed: of the noise.
    """
    batch = batch.to(model.device)
    if batch.frames is None:
        raise ValueError(f"clips with frames are needed, got only latents: {batch.sources[0]}")
    given = batch.frames[:, : model.config.num_given]
    generator = world_model_channel(model.eval(), given, view=view)
    embodiment = model.normalizer.embodiments[int(batch.embodiment[0])]
    names = model.normalizer.stats[embodiment].names
    found = parse_groups(groups, names) if groups else group_actions(names)
    shape = (len(given), model.contract.latent_channels, *model.contract.latent_grid)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(model.device)
    report = action_channel(generator, noise, batch.robot_actions, found.dimensions, derivative="difference")
    grouped = [index for indices in found.dimensions.values() for index in indices]
    first = view and replace(view, transitions=view.transitions[:1])
    contrasts, rank = _contrasts(model, given[:1], noise[:1], batch.robot_actions[:1], grouped, seed, first)
    sections = (
        _group_section(found, names),
        *report.sections(),
        contrasts,
        *premises_section(model, batch, seed, rank),
    )
    return write_page(Page(f"Action channel of a world model, {embodiment}", "", sections), page)


def premises_section(model: WorldModel, batch: ClipBatch, seed: int, rank: str = "") -> list[Section]:
    """How close the contrast of a model with MCL is to the premises of Theorem 2.

    `rank` is what the page says of the generator's own contrasts.
    """
    contrast = model.mcl
    if contrast is None or contrast.config.variant not in ("infonce", "jacobian_vjp"):
        return []
    seen: dict[str, list[Tensor]] = {}
    heads = {"query": contrast.gradient_head, "key": contrast.condition_head}
    hooks = [
        head.register_forward_hook(
            lambda _, __, rows, name=name: seen.setdefault(name, []).append(rows.detach())
        )
        for name, head in heads.items()
    ]
    with torch.no_grad():
        losses = world_model_step(model, batch, torch.Generator().manual_seed(seed))
    for hook in hooks:
        hook.remove()
    query, key = (seen[name][-1] for name in heads)  # those of the paths come first
    kept = query.abs().sum(-1) > 0
    latent_dim, *_ = contrast_widths(model.config, model.contract, model.normalizer, model.fdm.width)
    found = contrast_premises(query[kept], key[kept], latent_dim)
    part = {name: float(value) for name, value in losses.parts.items() if name.startswith("mcl")}
    learned = is_learned(part["mcl_generator"], part["mcl_chance"], part["mcl_chance_high"])
    text = (
        f"Theorem 2, on {int(kept.sum())} rows of these clips: {found.verdict()}. The contrast finds "
        f"{part['mcl_accuracy']:.0%} of the rows, {part['mcl_direct']:.0%} with the network's output held "
        f"constant and {part['mcl_generator']:.0%} by the network alone (guessing: below "
        f"{part['mcl_chance_high']:.0%}), so the network has {'' if learned else 'not '}learned it. {rank}"
    )
    return [Section("Premises of the contrast", (Text(text.strip()),))]


def _group_section(groups: ActionGroups, names: Sequence[str]) -> Section:
    """Which dimensions are in which group, and why."""
    rows = tuple(
        (group, ", ".join(map(str, columns)), ", ".join(names[column] for column in columns))
        for group, columns in groups.dimensions.items()
    )
    left_out = set(range(len(names))) - {index for columns in groups.dimensions.values() for index in columns}
    text = f"Chosen this way: {groups.reason}."
    if left_out:
        text += f" Left out: {', '.join(names[index] for index in sorted(left_out))}."
    return Section("Action groups", (Text(text), Table(("group", "columns", "names"), rows)))


def _contrasts(
    model: WorldModel,
    given: UInt8[Tensor, "1 t 3 H W"] | Float[Tensor, "1 t 3 H W"],
    noise: Float[Tensor, "1 c f h w"],
    actions: Float[Tensor, "1 n a"],
    dimensions: Sequence[int],
    seed: int,
    view: ClipView | None = None,
) -> tuple[Section, str]:
    """GMD contrasts of the first clip, or the first-order estimate, or why there are none; and their rank."""
    title = "Mechanism diversity of the actions"
    count = 2 * NUM_DIRECTIONS
    try:
        if is_too_large(model):
            sequences = nearby_actions(actions, dimensions, 2 * count, seed=seed)
            verdict = first_order_estimate(
                model, given, noise, sequences, num_directions=count, seed=seed, view=view
            ).verdict()
            return Section(title, (Text(f"{FIRST_ORDER} {verdict}."),)), f"First order: {verdict}."
        sequences = nearby_actions(actions, dimensions, count, seed=seed)
        found = world_model_diversity(
            model, given, noise, sequences, num_directions=NUM_DIRECTIONS, seed=seed, view=view
        )
    except ValueError as error:
        return Section(title, (Text(f"Left out: {error}."),)), ""
    return diversity_section(found, CONTRASTS), f"The generator's own contrasts V: {found.verdict()}."


NUM_DIRECTIONS = 2  # of the noise, for the GMD contrasts
CONTRASTS = (
    f"GMD contrasts of one network call, noise latents to clean latents at sigma 1 behind the clean history "
    f"of the first clip, along {NUM_DIRECTIONS} random directions of the noise. Conditions: the actions of "
    f"the clip, and the same with a random offset of all grouped dimensions held throughout."
)


FIRST_ORDER = (
    "This backbone is too large for third derivatives. Estimated from first ones, by differences of one "
    "network call: how the response to a move of the noise, J(z, u) v, changes with the actions u."
)


def first_clips(
    model: WorldModel, source: EpisodeSource, num_clips: int, *, camera: str | None = None
) -> tuple[ClipBatch, ClipView]:
    """Clips of one embodiment in the model's format (`camera` overrides the contract's), and their view."""
    contract = model.contract
    config = contract.clip_config()
    config = replace(config, camera=camera) if camera else config
    on_bad = model.trained_on.on_bad if model.trained_on else "stop"
    clips = build_clip_dataset([source], config=config, normalizer=model.normalizer, on_bad=on_bad)
    found = [clips[i] for i in range(min(len(clips), num_clips))]
    if not found:
        raise ValueError(f"{source.name}: no clip of {contract.num_frames} frames")
    numbers = [i for i, clip in enumerate(found) if clip.embodiment == found[0].embodiment]
    places = [clips.locate(i) for i in numbers]
    own = tuple(record_transitions(clips.index, record, record.starts[clip]) for record, clip in places)
    name = model.normalizer.embodiments[found[0].embodiment]
    return collate_clips([found[i] for i in numbers]), ClipView(name, own)


def load_generator(source: str) -> Generator:
    """Import the callable given as "module:name" or "file.py:name"."""
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise ValueError(f"expected package.module:name or path/file.py:name, got {source!r}")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    if not hasattr(module, name):
        raise ValueError(f"{place} has no {name!r}")
    found = getattr(module, name)
    # A function without arguments builds the generator; classes are built without arguments.
    if isinstance(found, type) or (not isinstance(found, nn.Module) and _takes_nothing(found)):
        found = found()
    if not callable(found):
        raise ValueError(f"{source} is a {type(found).__name__}, expected a callable z[n d] -> x[n ...]")
    return found.eval() if isinstance(found, nn.Module) else found


def _takes_nothing(found: Any) -> bool:
    code = getattr(found, "__code__", None)
    return code is not None and code.co_argcount == 0


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {name}: {error}") from error


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"diagnosed_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
