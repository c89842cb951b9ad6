"""Measures of disentanglement, identifiability and mechanistic independence, on arrays and callables."""

from worldmodel.diagnostics.alignment import check_alignment
from worldmodel.diagnostics.dci import dci
from worldmodel.diagnostics.disentanglement import (
    beta_vae_score,
    factor_vae_score,
    irs,
    mig,
    modularity,
    sap,
)
from worldmodel.diagnostics.infomec import infomec
from worldmodel.diagnostics.mcc import mcc

__all__ = [
    "beta_vae_score",
    "check_alignment",
    "dci",
    "factor_vae_score",
    "infomec",
    "irs",
    "mcc",
    "mig",
    "modularity",
    "sap",
]
