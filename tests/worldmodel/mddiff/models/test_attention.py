import torch

from tests.support.tiny_mddiff import some_images, tiny_mddiff
from worldmodel.mddiff.models.attention import concept_attention, recorded_attention


def test_every_place_divides_its_attention_among_the_concepts() -> None:
    model = tiny_mddiff().eval()
    maps = concept_attention(model, some_images(), steps=(100, 400))
    assert {side: tuple(values.shape) for side, values in maps.items()} == {
        4: (6, 5, 4, 4),
        2: (6, 5, 2, 2),  # the middle of the network
    }
    for values in maps.values():
        torch.testing.assert_close(values.sum(1), torch.ones_like(values[:, 0]))
        assert values.std() > 0


def test_records_are_the_softmax_of_each_layer_and_leave_no_trace() -> None:
    unet = tiny_mddiff().unet.eval()
    noisy, steps, tokens = torch.randn(2, 3, 4, 4), torch.tensor([5, 5]), torch.randn(2, 5, 4)
    layer = next(module for name, module in unet.named_modules() if name.endswith("attn2"))
    inputs: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, args, out: inputs.append(args[0]))
    with torch.no_grad(), recorded_attention(unet) as records:
        unet(noisy, steps, tokens)
        queries, keys = (
            side.unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            for side in (layer.to_q(inputs[0]), layer.to_k(tokens))
        )
        weights = (queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5).softmax(-1)
    hook.remove()
    torch.testing.assert_close(records[0], weights.mean(1))
    assert not any(module._forward_pre_hooks for module in unet.modules())
