import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.tree import _estimator, _node_matrix, tree_nodes


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 16])
@pytest.mark.parametrize("honaker", [False, True])
def test_an_estimator_reads_prefix_sums_off_the_nodes(steps, honaker):
    nodes = tree_nodes(steps)
    B = _estimator(nodes, steps, honaker=honaker)
    np.testing.assert_allclose(
        B @ _node_matrix(nodes, steps), np.tril(np.ones((steps, steps))), atol=1e-13
    )


def test_the_online_variance_is_known_in_closed_form():
    """Σ over the set bits j of t of 2^j/(2^(j+1) − 1)."""
    B = _estimator(tree_nodes(16), 16, honaker=True)
    for t in range(1, 17):
        bits = [j for j in range(5) if t >> j & 1]
        assert np.square(B[t - 1]).sum() == pytest.approx(
            sum(2**j / (2 ** (j + 1) - 1) for j in bits)
        )


@pytest.mark.parametrize("estimator", ["full", "online", "plain"])
@pytest.mark.parametrize("steps", [5, 8, 11])
def test_the_square_form_has_the_same_noise_and_costs_no_more(estimator, steps):
    f = ap.design("tree", steps=steps, estimator=estimator)
    nodes = ap.design("tree", steps=steps, estimator=estimator, sensitivity="nodes")
    assert f.sensitivity <= nodes.sensitivity * (1 + 1e-12)
    if estimator != "full":
        B = _estimator(tree_nodes(steps), steps, honaker=estimator == "online")
        np.testing.assert_allclose(f.decoder() @ f.decoder().T, B @ B.T, atol=1e-12)


@pytest.mark.parametrize("estimator", ["full", "online", "plain"])
@pytest.mark.parametrize("steps", [8, 11, 13])
def test_nodes_never_cost_less_than_the_encoder(estimator, steps):
    """Also past the largest power of two, which the worst single step does not show."""
    for every in (3, 5):
        participation = ap.epochs(-(-steps // every), every)
        f = ap.design(
            "tree",
            steps=steps,
            estimator=estimator,
            sensitivity="nodes",
            participation=participation,
        )
        assert f.sensitivity >= ap.sensitivity(f.encoder(), participation) * (1 - 1e-12)
