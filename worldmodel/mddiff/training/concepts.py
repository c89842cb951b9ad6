"""Train a concept model, one stage at a time:

worldmodel train-concepts configs/disentanglement/desk/vqvae.yaml      first stage
worldmodel train-concepts configs/disentanglement/desk/encdiff.yaml    stage 1, or mddiff.yaml
worldmodel train-concepts configs/disentanglement/desk/mcl.yaml        stage 2, MCL fine-tuning

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/ and, when finished, metrics.json, cost.json,
OUTPUT/model (last step) and OUTPUT/best (lowest fit.best_metric): a VQ-VAE folder after the first
stage, else one that `MDDiff.from_pretrained` loads.
"""

from collections.abc import Sequence
from functools import partial

from worldmodel.cli_errors import one_way_out
from worldmodel.mddiff.training.concept_run import ConceptTrainConfig, build_run
from worldmodel.mddiff.training.image_run import train_run
from worldmodel.training.command_line import run_script

train = partial(train_run, build_run)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(ConceptTrainConfig, train, __doc__ or "", argv)
