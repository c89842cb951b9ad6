"""The checks of `worldmodel doctor`. They are independent: a failing check never hides the others."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement

from worldmodel.plain_text import unbroken
from worldmodel.shipped import WEIGHTS, preset_names

State = Literal["ok", "broken", "absent"]  # absent: an optional package is missing, or a resource is scarce
OLDEST_PYTHON = (3, 11)
LEAST_DISK, LEAST_MEMORY = 2e9, 2e9  # bytes: a debug run with checkpoints; training the desk model
WAN_DISK = 30e9  # bytes: Wan 1.3B, its autoencoder and its text encoder in float32
DRIVER = Path("/proc/driver/nvidia/version")
# Compiled modules, and what they are for: an installed one may still fail to load.
COMPILED = {
    "torch": "tensors",
    "safetensors": "weights",
    "h5py": "RoboTwin files",
    "pyarrow": "LeRobot tables",
    "av": "videos",
    "scipy": "diagnostics",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    found: str
    remedy: str = ""  # what to do unless the state is ok

    def line(self) -> str:
        """The printed line."""
        text = f"{self.state:<7} {self.name:<18} {self.found}"
        return unbroken(text + (f". {self.remedy}" if self.remedy and self.state != "ok" else ""))


def check_installation(output: Path, model: str | None = None) -> list[Finding]:
    """All findings, the most important first."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", check_python),
        ("packages", check_packages),
        ("imports", check_imports),
        ("video", check_video),
        ("device", check_device),
        ("text encoder", check_text_encoder),
        ("memory", check_memory),
        ("weights", check_weights),
        ("presets", check_presets),
        ("output", lambda: check_folder("output", output)),
        ("hub cache", check_hub_cache),
        ("scratch", lambda: check_folder("scratch", Path(tempfile.gettempdir()))),
    ]
    if model is not None:
        checks.append(("model", lambda: check_model(model)))
    return [finding for name, check in checks for finding in guarded(name, check)]


def guarded(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of one check; any exception becomes a finding as well."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        findings.append(Finding(name, "broken", reason, "Install again into a new environment"))
    return findings


def check_python() -> Iterator[Finding]:
    """Check the Python version."""
    found = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info[:2] >= OLDEST_PYTHON
    wanted = ".".join(map(str, OLDEST_PYTHON))
    yield Finding("python", "ok" if is_new else "broken", found, f"Use Python {wanted} or newer")


def check_packages() -> Iterator[Finding]:
    """Check every requirement of the package, and list the optional ones."""
    try:
        requirements = [Requirement(text) for text in metadata.requires("worldmodel") or []]
    except metadata.PackageNotFoundError:
        remedy = "Run `pip install -e .` in the checkout"
        yield Finding("worldmodel", "absent", "a checkout that is not installed", remedy)
        return
    core = [one for one in requirements if "extra" not in str(one.marker or "")]
    wrong = [(one, problem) for one in core if _applies(one) and (problem := _problem(one))]
    for requirement, problem in wrong:
        yield Finding(requirement.name, "broken", problem, f'pip install "{_bare(requirement)}"')
    if not wrong:
        yield Finding("packages", "ok", f"{len(core)} requirements are met")
    yield from _check_extras(requirements)


def _check_extras(requirements: list[Requirement]) -> Iterator[Finding]:
    extras = metadata.metadata("worldmodel").get_all("Provides-Extra") or []
    for extra in extras:
        needed = [one for one in requirements if one.marker and _applies(one, extra) and not _applies(one)]
        missing = [one.name for one in needed if _problem(one)]
        found = "missing " + ", ".join(missing) if missing else ", ".join(one.name for one in needed)
        remedy = f'If you need it: pip install -e ".[{extra}]"'
        yield Finding(f"extra {extra}", "absent" if missing else "ok", found, remedy)


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _bare(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _problem(requirement: Requirement) -> str:
    """What is wrong with an installed package; empty if nothing is."""
    try:
        version = metadata.version(requirement.name)
    except (metadata.PackageNotFoundError, InvalidRequirement):
        return "not installed"
    if version and requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"version {version}, expected {requirement.specifier}"


def check_imports() -> Iterator[Finding]:
    """Import compiled modules, which fails for a wheel of another platform or a missing system library."""
    for name, purpose in COMPILED.items():
        try:
            importlib.import_module(name)
        except Exception as error:
            reason = f"cannot be imported ({type(error).__name__}: {error})"[:200]
            yield Finding(name, "broken", reason, f"Needed for {purpose}: install {name} again")


def check_video() -> Iterator[Finding]:
    """Write a small video and read it back."""
    import numpy as np

    from worldmodel.data import video

    frames = np.zeros((9, 32, 32, 3), np.uint8) + np.arange(0, 90, 10, dtype=np.uint8)[:, None, None, None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check.mp4"
        video.write_video(path, iter(frames), 10)
        reader = video.open_video(path)
        error = int(np.abs(reader.read(range(9)).astype(int) - frames).max())
    if error > 16:
        yield Finding("video", "broken", f"gray levels differ by {error}", "Install av again: pip install av")
    other = " or decord (data.decoder=decord)" if importlib.util.find_spec("decord") else ""
    yield Finding("video", "ok", f"H.264 by PyAV{other}")


def check_device() -> Iterator[Finding]:
    """GPUs with driver, CUDA and a product in bfloat16, or the number of cores."""
    import torch

    driver = DRIVER.read_text() if DRIVER.exists() else ""
    version = re.search(r"Kernel Module\D*?([\d.]{3,})", driver.replace("x86_64", ""))
    found = f"driver {version[1] if version else 'none'}, torch {torch.__version__}, "
    found += f"CUDA {torch.version.cuda or 'none'}"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        ones = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
        works = bool((ones @ ones == 64).all())
        remedy = "Products in bfloat16 are wrong: install torch and the driver again"
        yield Finding("device", "ok" if works else "broken", f"{', '.join(names)}; {found}", remedy)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    remedy = "Enough for the desk model; wan-1.3b needs a GPU and a torch built for it"
    if driver:
        remedy = "There is a driver: take a torch built for its CUDA (CUDA 13 needs driver 580 or newer)"
    yield Finding("device", "absent", f"no GPU that torch can use, {cores} CPU cores; {found}", remedy)


def check_text_encoder() -> Iterator[Finding]:
    """Load a small UMT5 from a file like Wan's: some versions of transformers leave embeddings at zero."""
    import torch
    from safetensors.torch import save_file
    from transformers import UMT5Config, UMT5EncoderModel, __version__

    tiny = UMT5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    tiny.tie_word_embeddings = False
    model = UMT5EncoderModel(tiny)
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        tensors = {k: v for k, v in model.state_dict().items() if k != "encoder.embed_tokens.weight"}
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
        loaded = UMT5EncoderModel.from_pretrained(folder)
    same = torch.equal(loaded.encoder.embed_tokens.weight, model.shared.weight)
    found = f"transformers {__version__} loads UMT5 {'whole' if same else 'with wrong embeddings'}"
    yield Finding(
        "text encoder", "ok" if same else "broken", found, "pip install -c constraints.txt transformers"
    )


def check_memory() -> Iterator[Finding]:
    """Free memory of this machine."""
    available = available_memory()
    if available is None:
        yield Finding("memory", "absent", "cannot be told on this system")
        return
    state: State = "ok" if available >= LEAST_MEMORY else "broken"
    yield Finding("memory", state, f"{available / 1e9:.1f} GB free", "Close other programs: 2 GB are needed")


def available_memory() -> float | None:
    """Free memory in bytes; None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1024.0 * float(fields["MemAvailable"].split()[0]) if "MemAvailable" in fields else None


def check_weights() -> Iterator[Finding]:
    """Check that the files of the shipped models are complete."""
    from worldmodel.checkpoint.folder import read_description
    from worldmodel.hub import weight_files
    from worldmodel.tensors import read_headers

    for name in ("desk", "locator"):
        try:
            folder = WEIGHTS / name
            if name == "desk":
                read_description(folder)
                read_headers(weight_files(folder / "transformer"))
            count = sum(len(read_headers([path])) for path in sorted(folder.glob("*.safetensors")))
            if not count:
                raise ValueError(f"{folder}: no weights")
            yield Finding(f"weights {name}", "ok", f"{count} tensors beside the backbone")
        except (ValueError, OSError) as error:
            remedy = "Install worldmodel again, or `git checkout worldmodel/weights`"
            yield Finding(f"weights {name}", "broken", str(error)[:200], remedy)


def check_presets() -> Iterator[Finding]:
    """Check that the shipped configs are installed."""
    count = len(preset_names())
    yield Finding("presets", "ok" if count else "broken", f"{count} configs", "Install worldmodel again")


def check_folder(name: str, folder: Path) -> Iterator[Finding]:
    """Check that files can be written, locked and renamed there, and that there is enough space."""
    from worldmodel.files import write_text

    existed = folder.exists()
    try:
        probe = folder / ".worldmodel_doctor"
        write_text(probe, "x")
        _lock(probe)
        probe.unlink()
        free = shutil.disk_usage(folder).free
        if not existed:
            folder.rmdir()
    except OSError as error:
        reason = f"{folder}: {error.strerror or error}"
        yield Finding(name, "broken", reason, "Name a folder that you may write to")
        return
    state: State = "ok" if free >= LEAST_DISK else "broken"
    yield Finding(name, state, f"{folder}: {free / 1e9:.1f} GB free", "Free some space: 2 GB are needed")


def check_hub_cache() -> Iterator[Finding]:
    """Space for the downloads that the configs of Wan need."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = next(place for place in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if place.exists())
    free = shutil.disk_usage(folder).free
    remedy = f"Wan 1.3B takes {WAN_DISK / 1e9:.0f} GB here; HF_HOME names another disk"
    found = f"{HF_HUB_CACHE}: {free / 1e9:.1f} GB free"
    yield Finding("hub cache", "ok" if free >= WAN_DISK else "absent", found, remedy)


def _lock(path: Path) -> None:
    """The latent cache needs file locks, which some network file systems lack."""
    import fcntl

    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def check_model(source: str) -> Iterator[Finding]:
    """What loading a model folder would read."""
    from worldmodel.checkpoint.folder import (
        describe_sources,
        external_sources,
        locate,
        read_description,
    )

    folder = locate(source)
    config = read_description(folder).config
    outside = external_sources(folder, config)
    remedy = "Commands need --allow-external to load these places"
    yield Finding("model", "absent" if outside else "ok", describe_sources(folder, config), remedy)
