from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import UMT5Config, UMT5EncoderModel

from worldmodel.models.backbone import TEXT_TOKENS
from worldmodel.training.encode_prompt import main


def test_the_prompt_file_holds_one_token_and_padding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    UMT5EncoderModel(config).save_pretrained(tmp_path / "wan/text_encoder")
    assert main([str(tmp_path / "wan"), str(tmp_path / "out/prompt.safetensors")]) == 0
    text = load_file(tmp_path / "out/prompt.safetensors")["text"]
    assert text.shape == (1, TEXT_TOKENS, 16)
    assert text[0, 0].abs().sum() > 0
    assert not text[0, 1:].any()
