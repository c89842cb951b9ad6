"""A Wan backbone of test size."""

from worldmodel.models.backbone import WanConfig


def tiny_wan(seed: int = 0) -> WanConfig:
    """2 layers, 2 heads of 24, text width 32."""
    return WanConfig(num_layers=2, num_heads=2, head_dim=24, ffn_dim=96, text_dim=32, freq_dim=32, seed=seed)
