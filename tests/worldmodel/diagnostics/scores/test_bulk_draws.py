import numpy as np
import pytest

from worldmodel.diagnostics.scores.bulk_draws import VOTE_CHUNK, grouped_draws


@pytest.mark.parametrize("sizes", [(3, 6, 10, 16, 16), (1, 5), (7,), (300, 2, 1), (4, 8), (183, 4, 24)])
@pytest.mark.parametrize("repeats", [1, 2])
def test_numbers_are_those_of_single_randint_calls(sizes: tuple[int, ...], repeats: int) -> None:
    num_votes, group = VOTE_CHUNK + 100, 9
    chunks = list(grouped_draws(sizes, num_votes, group, np.random.RandomState(3), repeats))
    factor = np.concatenate([chunk[0] for chunk in chunks])
    columns = np.concatenate([np.stack(chunk[1]) for chunk in chunks], axis=1)
    rng = np.random.RandomState(3)
    for vote in range(num_votes):
        assert factor[vote] == rng.randint(len(sizes))
        for call, size in enumerate(sizes * repeats):
            np.testing.assert_array_equal(columns[call, vote], rng.randint(size, size=group))
