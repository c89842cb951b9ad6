"""Measures of disentanglement, identifiability and mechanistic independence, on arrays and callables."""

from worldmodel.diagnostics.actions.action_channel import action_channel
from worldmodel.diagnostics.contexts.concept_directions import concept_directions
from worldmodel.diagnostics.contexts.concept_mcc import concept_mcc
from worldmodel.diagnostics.contexts.sliced_wasserstein import sliced_wasserstein
from worldmodel.diagnostics.identifiability.ica import IcaAligner
from worldmodel.diagnostics.identifiability.label_probe import label_probe
from worldmodel.diagnostics.identifiability.mcc import mcc
from worldmodel.diagnostics.identifiability.multi_view import multi_view_laws, recover_views
from worldmodel.diagnostics.identifiability.near_identifiability import NearIdentifiability
from worldmodel.diagnostics.identifiability.near_isometry import bi_lipschitz
from worldmodel.diagnostics.identifiability.temporal_diversity import simulate_temporal, temporal_recovery
from worldmodel.diagnostics.mechanisms.capacity_gap import capacity_gap
from worldmodel.diagnostics.mechanisms.contrast_premises import contrast_premises
from worldmodel.diagnostics.mechanisms.higher_order import type_h
from worldmodel.diagnostics.mechanisms.jacobians import jacobian_blocks, local_diffeomorphism
from worldmodel.diagnostics.mechanisms.latent_diversity import latent_diversity
from worldmodel.diagnostics.mechanisms.mechanism_diversity import mechanism_diversity
from worldmodel.diagnostics.mechanisms.mechanistic import (
    compositional_contrast,
    compositional_contrast_loss,
    type_d,
    type_m,
    type_s,
)
from worldmodel.diagnostics.mechanisms.report import mechanistic_report
from worldmodel.diagnostics.mechanisms.sparse_volume import sparse_volume_loss
from worldmodel.diagnostics.mechanisms.sparsity_gap import sparsity_gap
from worldmodel.diagnostics.mechanisms.support_graph import irreducible_components, support_graph
from worldmodel.diagnostics.scores.alignment import check_alignment
from worldmodel.diagnostics.scores.code_dependence import gaussian_total_correlation, wasserstein_correlation
from worldmodel.diagnostics.scores.dci import dci
from worldmodel.diagnostics.scores.disentanglement import (
    beta_vae_score,
    factor_vae_score,
    irs,
    mig,
    modularity,
    sap,
)
from worldmodel.diagnostics.scores.infomec import infomec

__all__ = [
    "IcaAligner",
    "NearIdentifiability",
    "action_channel",
    "beta_vae_score",
    "bi_lipschitz",
    "capacity_gap",
    "check_alignment",
    "compositional_contrast",
    "compositional_contrast_loss",
    "concept_directions",
    "concept_mcc",
    "contrast_premises",
    "dci",
    "factor_vae_score",
    "gaussian_total_correlation",
    "infomec",
    "irreducible_components",
    "irs",
    "jacobian_blocks",
    "label_probe",
    "latent_diversity",
    "local_diffeomorphism",
    "mcc",
    "mechanism_diversity",
    "mechanistic_report",
    "mig",
    "modularity",
    "multi_view_laws",
    "recover_views",
    "sap",
    "simulate_temporal",
    "sliced_wasserstein",
    "sparse_volume_loss",
    "sparsity_gap",
    "support_graph",
    "temporal_recovery",
    "type_d",
    "type_h",
    "type_m",
    "type_s",
    "wasserstein_correlation",
]
