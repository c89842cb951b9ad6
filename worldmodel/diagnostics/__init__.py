"""Measures of disentanglement, identifiability and mechanistic independence, on arrays and callables."""

from worldmodel.diagnostics.action_channel import action_channel
from worldmodel.diagnostics.alignment import check_alignment
from worldmodel.diagnostics.code_dependence import gaussian_total_correlation, wasserstein_correlation
from worldmodel.diagnostics.dci import dci
from worldmodel.diagnostics.disentanglement import (
    beta_vae_score,
    factor_vae_score,
    irs,
    mig,
    modularity,
    sap,
)
from worldmodel.diagnostics.higher_order import type_h
from worldmodel.diagnostics.ica import IcaAligner
from worldmodel.diagnostics.infomec import infomec
from worldmodel.diagnostics.jacobians import jacobian_blocks, local_diffeomorphism
from worldmodel.diagnostics.mcc import mcc
from worldmodel.diagnostics.mechanism_diversity import mechanism_diversity
from worldmodel.diagnostics.mechanistic import (
    compositional_contrast,
    compositional_contrast_loss,
    type_d,
    type_m,
    type_s,
)
from worldmodel.diagnostics.mechanistic_report import mechanistic_report
from worldmodel.diagnostics.near_identifiability import NearIdentifiability
from worldmodel.diagnostics.near_isometry import bi_lipschitz
from worldmodel.diagnostics.sparse_volume import sparse_volume_loss
from worldmodel.diagnostics.sparsity_gap import sparsity_gap
from worldmodel.diagnostics.support_graph import irreducible_components, support_graph

__all__ = [
    "IcaAligner",
    "NearIdentifiability",
    "action_channel",
    "beta_vae_score",
    "bi_lipschitz",
    "check_alignment",
    "compositional_contrast",
    "compositional_contrast_loss",
    "dci",
    "factor_vae_score",
    "gaussian_total_correlation",
    "infomec",
    "irreducible_components",
    "irs",
    "jacobian_blocks",
    "local_diffeomorphism",
    "mcc",
    "mechanism_diversity",
    "mechanistic_report",
    "mig",
    "modularity",
    "sap",
    "sparse_volume_loss",
    "sparsity_gap",
    "support_graph",
    "type_d",
    "type_h",
    "type_m",
    "type_s",
    "wasserstein_correlation",
]
