from dataclasses import replace

import pytest
import torch

from worldmodel.estimate.cost import DEVICES, RunShape, describe, estimate
from worldmodel.estimate.known_shapes import latent_layout, with_known_shapes
from worldmodel.estimate.streaming import StreamCost
from worldmodel.models.backbone import WAN_5B, WanConfig, build_wan
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig

SMALL = WanConfig(num_layers=2, num_heads=2, head_dim=32, ffn_dim=128, text_dim=32, freq_dim=32)
RUN = RunShape(
    model=WorldModelConfig(
        regime="no_action", backbone=SMALL, causal=True, objective=ObjectiveConfig(forcing="prefix")
    ),
    contract=InputSpec(17, 64, 64, 10.0),
    action_dim=14,
    num_embodiments=2,
    steps=3600,
    global_batch=4,
    micro_batch=4,
    gradient_checkpointing=False,
    has_ema=True,
    has_autocast=False,
    parallel="single",
)


@pytest.fixture(scope="module")
def small():
    return estimate(RUN, 1, DEVICES["H100"])


def test_operations_of_a_latent_frame_are_those_of_its_tokens_and_what_they_see(small):
    cost = small.stream
    # 16 tokens a frame; self-attention and feed-forward of each token in 2 blocks of width 64.
    tokens, width, ffn = 16, 64, 128
    linear = 2 * 2 * (4 * width**2 + 2 * width * ffn)
    # One frame sees itself, three others and the first: queries by keys, twice, in 2 blocks.
    attention = 2 * 2 * 2 * tokens * (5 * tokens) * width
    patches = 2 * 2 * (16 * 4) * width  # in and out
    blocks = tokens * (linear + patches) + attention
    # Besides: the modulation of one frame.
    rest = cost.further_flops - blocks
    assert 0 < rest < 0.2 * blocks
    assert 1.9 < cost.first_flops / cost.further_flops < 2.3


def test_seconds_are_the_larger_of_work_and_reading():
    cost = StreamCost(first_flops=20, further_flops=10, decoder_flops=5, weight_bytes=12)
    assert cost.seconds(1, 1.0, 1.0) == 20 + 5
    assert cost.seconds(3, 1.0, 1.0) == 20 + 12 + 12 + 5
    assert cost.frames_per_second(1, 1.0, 1.0) == pytest.approx(4 / 25)


def test_streaming_is_told_of_causal_models_alone(small):
    h100 = DEVICES["H100"]
    told = "streaming    frames per second on one H100"
    assert told in "\n".join(describe(small, 1, h100))
    assert told not in "\n".join(describe(replace(small, stream=None), 1, h100))


def test_the_5b_backbone_is_known_by_its_name():
    shape = with_known_shapes(WorldModelConfig(pretrained=WAN_5B)).backbone
    with torch.device("meta"):
        backbone = build_wan(shape)
    assert backbone.num_parameters() == pytest.approx(5.0e9, rel=0.01)
    assert latent_layout(WAN_5B) == (48, 16)
