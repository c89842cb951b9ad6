"""Tests whether concept directions are linearly independent, a condition of the identifiability theorem.

Axes: m concepts, o dimensions of a concept's code, d dimensions of the space they act in or are read from.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

TOLERANCE = 1e-3  # rows count as dependent if the smallest singular value (unit rows) is below


@dataclass(frozen=True)
class ConceptDirections:
    """Angle of each concept's main direction to the span of the other concepts."""

    main: Float[np.ndarray, "m d"]  # unit vectors
    angles: Float[np.ndarray, " m"]  # degrees between a main direction and the span of the others; 90 is best
    smallest: float  # smallest singular value of the main directions; 1 if they are orthogonal
    rank: int  # rank of all rows of all concepts
    num_rows: int  # number of these rows
    is_independent: bool  # whether the main directions are independent


def concept_directions(
    directions: Float[np.ndarray, "m o d"], covariance: Float[np.ndarray, "m o o"] | None = None
) -> ConceptDirections:
    """The main direction of a concept is the one of largest variance, given its code's covariance.

    Without a covariance all dimensions of a code have the same variance.

    Examples:
        >>> import numpy as np
        >>> from worldmodel.diagnostics import concept_directions
        >>> directions = np.eye(3)[:, None, :]  # three concepts of one dimension, at right angles
        >>> concept_directions(directions).rank
        3

    References:
        "Intervening to Learn and Compose Causally Disentangled Representations", 2025.
    """
    count, width, _ = directions.shape
    if covariance is None:
        covariance = np.broadcast_to(np.eye(width), (count, width, width))
    main = np.stack([_main(rows, moves) for rows, moves in zip(directions, covariance, strict=True)])
    angles = np.array([_angle_to_span(main[j], np.delete(main, j, 0)) for j in range(count)])
    smallest = float(np.linalg.svd(main, compute_uv=False).min()) if count <= main.shape[1] else 0.0
    rows = directions.reshape(count * width, -1)
    rank = int(np.linalg.matrix_rank(rows, tol=TOLERANCE * max(float(np.linalg.norm(rows, 2)), 1e-300)))
    return ConceptDirections(main, angles, smallest, rank, count * width, smallest > TOLERANCE)


def _main(rows: Float[np.ndarray, "o d"], covariance: Float[np.ndarray, "o o"]) -> Float[np.ndarray, " d"]:
    values, vectors = np.linalg.eigh(covariance)
    moved = (vectors * np.sqrt(np.clip(values, 0, None))).T @ rows
    _, sizes, directions = np.linalg.svd(moved, full_matrices=False)
    return directions[0] if sizes[0] > 0 else np.zeros(rows.shape[1])


def _angle_to_span(vector: Float[np.ndarray, " d"], others: Float[np.ndarray, "k d"]) -> float:
    if not vector.any():
        return 0.0
    if not len(others):
        return 90.0
    _, sizes, basis = np.linalg.svd(others, full_matrices=False)
    inside = basis[sizes > TOLERANCE] @ vector
    return float(
        np.degrees(np.arcsin(np.clip(np.linalg.norm(vector - basis[sizes > TOLERANCE].T @ inside), 0, 1)))
    )
