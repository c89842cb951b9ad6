"""Why a context module fails on two arms: its embedding of both, beside embeddings that training pins down.

    L, R   one arm moves, the other is told to hold: what training shows
    H      both arms at home, one of them told to hold: near the start of every training episode
    B      both arms move, none is told to hold: what the module composes

The sum of two effects is L + R - H. Training shows no frame in which none is told to hold, so nothing makes B
that sum, not even at home. Axes as in ActionConcepts; the rows of a batch are the EDITS of scores.py.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from studies.arms.scores import EDITS, TestClips, arm_pixels, mean_decibels, mean_error, predict
from worldmodel.context_module.models.action_concepts import ActionConcepts
from worldmodel.evaluation.held_out import HeldOutClip
from worldmodel.models.model import WorldModel

PARTS = ("frames", "maps")  # of an embedding: modulation of all places, and what is added to each place
BOTH, LEFT, RIGHT, NONE = (list(EDITS).index(name) for name in ("both", "left", "right", "none"))
Embedding = tuple[Float[Tensor, "b f d"], Float[Tensor, "b f p d"] | None]


class Anchored(nn.Module):
    """Stands in for the concepts of a model: in some parts the embedding of both arms is L + R - H."""

    def __init__(self, concepts: ActionConcepts, parts: tuple[str, ...] = PARTS) -> None:
        super().__init__()
        self.concepts, self.parts = concepts, parts
        self.shifts: list[float] = []  # of every call: B at home from H, over the effect of an arm

    @torch.no_grad()
    def forward(self, groups: Float[Tensor, "b f r a"]) -> Embedding:
        """As the concepts, but for the first row."""
        made, home = self.concepts(groups), self._home(groups[NONE])
        self.shifts.append(self._shift(groups[NONE], made, home))
        found: list[Tensor | None] = []
        for name, part, still in zip(PARTS, made, home, strict=True):
            if part is not None and still is not None and name in self.parts:
                part = torch.cat([(part[LEFT] + part[RIGHT] - still)[None], part[1:]])
            found.append(part)
        assert found[0] is not None, "every latent frame has an embedding"
        return found[0], found[1]

    def _home(self, still: Float[Tensor, "f r a"]) -> tuple[Tensor, Tensor | None]:
        """H, the mean over which arm is told to hold."""
        frames, maps = self._told(still, [[False, True], [True, False]])
        return frames.mean(0), None if maps is None else maps.mean(0)

    def _told(self, still: Float[Tensor, "f r a"], do: list[list[bool]]) -> Embedding:
        told = torch.tensor(do)[:, None].expand(-1, len(still), -1) if self.concepts.config.is_told else None
        embedded: Embedding = self.concepts(still.expand(len(do), *still.shape), told)
        return embedded

    def _shift(self, still: Tensor, made: Embedding, home: tuple[Tensor, Tensor | None]) -> float:
        """In the modulation, or where there is none in the embeddings of places."""
        part = 0 if self.concepts.config.modulates else 1
        embedded, rest, composed = made[part], home[part], self._told(still, [[False, False]])[part]
        assert embedded is not None
        assert rest is not None
        assert composed is not None, "codes have a path"
        effect = (embedded[[LEFT, RIGHT]] - rest).flatten(2).norm(dim=-1).mean()
        return float((composed[0] - rest).flatten(1).norm(dim=-1).mean() / effect)


WAYS = {"anchored": PARTS, "anchored_frames": PARTS[:1], "anchored_maps": PARTS[1:]}


@torch.no_grad()
def score_causes(model: WorldModel, clips: TestClips) -> dict[str, float]:
    """PSNR on moving pixels in dB with parts of the embedding anchored, and the shift of the module's own."""
    concepts = model.interface.concepts
    assert concepts is not None, "only a model with concepts composes them"
    episodes = clips.open(model.eval())
    found: dict[str, float] = {}
    for name, parts in WAYS.items():
        anchored = Anchored(concepts, parts)
        model.interface.concepts = anchored  # type: ignore[assignment]  # it answers as the concepts do
        errors = [{f"{name}/moving": _error(model, truth, seed)} for seed, truth in enumerate(episodes)]
        found |= {**mean_decibels(errors), "shift": sum(anchored.shifts) / len(anchored.shifts)}
    model.interface.concepts = concepts
    return found


def _error(model: WorldModel, truth: Mapping[str, HeldOutClip], seed: int) -> float:
    made, masks = predict(model, truth, seed), arm_pixels(truth)
    return mean_error(made["both"], truth["both"].frames[1:], masks["moving"])
