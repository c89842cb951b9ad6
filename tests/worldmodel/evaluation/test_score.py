import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from tests.worldmodel.evaluation.metrics.test_video import waves
from worldmodel.data.video import write_video
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.metrics.generation import AlexNetDistance
from worldmodel.evaluation.rollouts.results import TRUE, summarize
from worldmodel.evaluation.rollouts.run import RolloutEvaluation, RolloutsConfig
from worldmodel.evaluation.score import main, through_mp4, to_gray
from worldmodel.evaluation.video_pairs import find_pairs, missing_clips, read_frames
from worldmodel.types import to_uint8

SHARED = next(
    (place / "shared" for place in Path(__file__).parents if (place / "shared/data").is_dir()), Path("none")
)
SAMPLE = SHARED / "data/robots/video_language_table_irasim/videos/test/example.mp4"


def arrays(video: torch.Tensor) -> np.ndarray:
    return to_uint8(video).permute(0, 2, 3, 1).contiguous().numpy()


def store(folder: Path, name: str, video: torch.Tensor, kind: str) -> None:
    """As a video file, an array, or a folder of pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "mp4":
        write_video(folder / f"{name}.mp4", iter(arrays(video)), 8)
    elif kind == "npz":
        np.savez(folder / f"{name}.npz", frames=video.permute(0, 2, 3, 1).float().numpy())
    else:
        (folder / name).mkdir()
        for number, picture in enumerate(arrays(video)):
            Image.fromarray(picture).save(folder / name / f"{number:03d}.png")


def run(place: Path, *keys: str, truth: str = "gt") -> dict:
    out = place / "score"
    assert main([str(place / "made"), str(place / truth), f"output={out}", *keys]) == 0
    assert (out / "report.html").stat().st_size > 1000
    results: dict = json.loads((out / "results.json").read_text())
    return results


def test_rollouts_of_ours_get_the_numbers_of_rollout(source, make_model, tmp_path: Path) -> None:
    model = make_model(regime="acg")
    clips = held_out_clips(source, model.contract, model.normalizer, HeldOutConfig(split="all", episodes=3))
    evaluation = RolloutEvaluation(model, clips, RolloutsConfig(num_inference_steps=2, controls=()))
    records = []
    for number in range(len(clips)):
        record, videos = evaluation.evaluate(number)
        records.append(record)
        store(tmp_path / "made", f"clip{number}", videos[TRUE], "npz")
        store(tmp_path / "gt", f"clip{number}", clips[number].frames, "npz")
    found, expected = run(tmp_path), summarize(records)
    assert found["rows"]["true"] == expected["rows"]["true"]
    assert found["rows"]["static"] == expected["rows"]["static"]
    assert found["horizon"]["true"] == expected["horizon"]["true"]
    assert found["above_static"] == expected["above_static"]


# Numbers of WorldArena's own code for these videos: see tests/worldmodel/evaluation/metrics/test_video.py.
@pytest.mark.parametrize("kind", ["npz", "png"])
def test_the_numbers_of_worldarena(kind: str, tmp_path: Path) -> None:
    known = {(0, 5, 64, 64, 4.0): (35.785057, 0.948221), (1, 3, 48, 80, 20.0): (21.992610, 0.562020)}
    for number, video in enumerate(known):
        made, real = waves(*video)
        # The first frame is the given one, and not scored.
        store(tmp_path / "made", str(number), torch.cat([real[:1], made]), kind)
        store(tmp_path / "gt", str(number), torch.cat([real[:1], real]), kind)
    found = run(tmp_path, "videos=0")
    assert found["rows"]["true"]["psnr"]["mean"] == pytest.approx(
        np.mean([v[0] for v in known.values()]), abs=1e-5
    )
    assert found["others"]["true"]["ssim_7x7"]["mean"] == pytest.approx(
        np.mean([v[1] for v in known.values()]), abs=1e-5
    )
    assert found["best_to_worst"] == ["0", "1"]


@pytest.fixture
def language_table() -> torch.Tensor:
    if not SAMPLE.is_file():
        pytest.skip("the Language-Table clip is not here")
    return read_frames(SAMPLE)[..., 100:196, 200:328]


def degraded(video: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(video.shape, generator=torch.Generator().manual_seed(0))
    return (video.roll(2, -1) + 0.02 * noise).clamp(0, 1)


def test_irasim_is_scikit_image_on_gray_8_bit_frames(language_table: torch.Tensor, tmp_path: Path) -> None:
    """17 frames are made, 16 are taken, 15 are scored; both sides are MP4 files already."""
    made = degraded(language_table[:17])
    store(tmp_path / "made", "ep_0_0", made, "mp4")
    store(tmp_path / "gt", "ep_0_0", language_table[:17], "mp4")
    found = run(tmp_path, "--protocol", "irasim")
    pairs = [[to_gray(read_frames(tmp_path / side / "ep_0_0.mp4")[1:16])[:, 0] for side in ("made", "gt")]][0]
    gray = [np.rint(255 * video.numpy()).astype(np.uint8) for video in pairs]
    levels = [peak_signal_noise_ratio(a, b, data_range=255) for a, b in zip(*gray, strict=True)]
    likeness = [structural_similarity(a, b) for a, b in zip(*gray, strict=True)]
    assert found["others"]["true"]["psnr_gray"]["mean"] == pytest.approx(np.mean(levels), abs=1e-6)
    assert found["others"]["true"]["ssim_gray"]["mean"] == pytest.approx(np.mean(likeness), abs=1e-6)
    assert len(found["horizon"]["true"]["psnr"]) == 15
    assert found["rows"]["true"]["psnr"]["mean"] == found["others"]["true"]["psnr_color"]["mean"]


def test_irasim_clips_are_found_in_whole_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coded: dict[bytes, torch.Tensor] = {}

    def once(frames: torch.Tensor) -> torch.Tensor:
        """The encoder does not always repeat itself to the bit: each clip is encoded once."""
        key = (frames * 255).round().byte().numpy().tobytes()
        if key not in coded:
            coded[key] = through_mp4(frames)
        return coded[key]

    monkeypatch.setattr("worldmodel.evaluation.score.through_mp4", once)
    made, real = waves(3, 40, 32, 48, 30.0)
    store(tmp_path / "gt" / "ep7", "rgb", real, "npz")
    store(tmp_path / "made", "ep7_0_16", made[16:32], "npz")
    pairs = find_pairs(tmp_path / "made", tmp_path / "gt", cut_clips=True)
    assert [(pair.episode, pair.start) for pair in pairs] == [("ep7", 16)]
    assert missing_clips(pairs) == ["ep7_0_0"]
    found = run(tmp_path, "protocol=irasim", "videos=0")
    assert found["missing_clips"] == ["ep7_0_0"]
    sides = [to_gray(once(video[16:32].float()))[1:, 0].numpy() for video in (made, real)]
    assert len(coded) == 2
    expected = [peak_signal_noise_ratio(b, a, data_range=1) for a, b in zip(*sides, strict=True)]
    assert found["others"]["true"]["psnr_gray"]["mean"] == pytest.approx(np.mean(expected), abs=1e-4)


def test_gray_is_rounded_as_opencv_rounds_it() -> None:
    # (8, 200, 31) by cv2.cvtColor: 123; pure red, green and blue: 76, 150, 29
    colors = torch.tensor([[8, 200, 31], [255, 0, 0], [0, 255, 0], [0, 0, 255]]).view(4, 3, 1, 1) / 255
    assert (255 * to_gray(colors)[:, 0, 0, 0]).round().tolist() == [123, 76, 150, 29]


def test_a_table_pairs_names_and_episodes(tmp_path: Path) -> None:
    made, real = waves(0, 5, 32, 32, 10.0)
    for name in ("a", "b", "unused"):
        store(tmp_path / "made", name, made, "npz")
    store(tmp_path / "gt", "x", real, "png")
    (tmp_path / "pairs.csv").write_text("predicted,truth,episode\na.npz,x,one\nb,x,one\n")
    found = run(tmp_path, f"pairs={tmp_path / 'pairs.csv'}")
    assert (found["episodes"], found["clips"]) == (1, 2)
    (tmp_path / "pairs.json").write_text('[{"predicted": "a", "truth": "y"}]')
    with pytest.raises(ValueError, match="truth 'y' is not in its folder"):
        find_pairs(tmp_path / "made", tmp_path / "gt", str(tmp_path / "pairs.json"))


def test_lpips_and_latents_carry_the_name_of_their_weights(make_model, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (tmp_path / "alex").mkdir()
    network = AlexNetDistance()
    features = {k: v for k, v in network.state_dict().items() if k.startswith("features.")}
    torch.save(features, tmp_path / "alex" / "alexnet-owt-7be5be79.pth")
    linear = {f"lin{i}.model.1.weight": layer.weight.abs().clone() for i, layer in enumerate(network.linear)}
    save_file(linear, tmp_path / "alex" / "alex.safetensors")
    make_model(regime="acg").save_pretrained(tmp_path / "model")
    made, real = waves(0, 13, 32, 32, 30.0)
    made[0] = real[0]
    store(tmp_path / "made", "a", made, "npz")
    store(tmp_path / "gt", "a", real, "npz")
    keys = [f"lpips={tmp_path / 'alex'}", f"latents={tmp_path / 'model'}"]
    found = run(tmp_path, *keys)
    distance = AlexNetDistance.load(
        tmp_path / "alex/alexnet-owt-7be5be79.pth", tmp_path / "alex/alex.safetensors"
    )
    expected = distance(made[1:].float(), real[1:].float()).mean().item()
    assert found["others"]["true"]["lpips"]["mean"] == pytest.approx(expected, rel=1e-4)
    assert found["others"]["true"]["latent_l2"]["mean"] > 0
    assert found["networks"]["lpips"].startswith("alex (")
    assert "CausalAutoencoder" in found["networks"]["latent_l2"]
    assert found["networks"]["latent_l2"] in (tmp_path / "score/report.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made, real: (made[:4], real), r"has 4 frames, .* 5; .*num_frames=N"),
        (lambda made, real: (made[..., :16], real), r"is 32x16, .* 32x32: set resize=true"),
    ],
)
def test_what_does_not_fit_is_named(change, message: str, tmp_path: Path, capsys) -> None:
    made, real = change(*waves(0, 5, 32, 32, 10.0))
    store(tmp_path / "made", "a", made, "npz")
    store(tmp_path / "gt", "a", real, "npz")
    assert main([str(tmp_path / "made"), str(tmp_path / "gt"), f"output={tmp_path / 'out'}"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_video_without_a_partner_is_named(tmp_path: Path) -> None:
    made, real = waves(0, 5, 32, 32, 10.0)
    store(tmp_path / "made", "a", made, "npz")
    store(tmp_path / "gt", "b", real, "npz")
    with pytest.raises(ValueError, match=r"1 of 1 videos have no video of their name .*'a'.*'b'.*pairs=FILE"):
        find_pairs(tmp_path / "made", tmp_path / "gt")


def test_arrays_of_other_ranges_and_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", frames=np.full((2, 8, 8, 3), 255.0))
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        read_frames(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", frames=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_frames(tmp_path / "b.npz")
