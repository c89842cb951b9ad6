"""The fixtures of the library's evaluation tests serve the studies too."""

from tests.worldmodel.evaluation.conftest import *  # noqa: F403
