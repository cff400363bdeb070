"""The study of amplification: its loop equals the engine's; figures come from the record."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import antiphase as ap
from antiphase.band_selection import design_for_cyclic_poisson
from antiphase.torch import PrivacyEngine
from antiphase.torch.batch_selection import PoissonBatches
from experiments import amplified, mnist, runner
from tests.experiments.engine_training import linear, run, tensors

CELL = (
    mnist.COMMON
    | {"steps": 24, "epochs": 4, "batch_size": 60, "trials": 2, "delta": 1e-4, "epsilons": [16.0]}
    | {"mechanism": "toeplitz", "cyclic": True}
)


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_the_loop_on_cyclic_samples_equals_the_engine():
    f = design_for_cyclic_poisson("toeplitz", 3, mnist.setting_of(CELL).workload)
    rate, trial = mnist.sampling_rate(CELL), 1
    made = ap.calibrate(
        f, noise_multiplier=1.0, delta=1e-4, sampling=ap.sampling.CyclicPoisson(rate)
    )
    (ours,) = mnist.trained(CELL, [made], trial, amplified._batches(CELL, made, trial))
    key, name = mnist.key_and_run(CELL, trial)
    data, model = tensors(), linear()
    sampler = PoissonBatches(len(data), rate, groups=3)
    sampler.secret = key.subkey("samples", str(trial))  # given to it, the engine would claim no ε
    private = PrivacyEngine(mechanism=made, key=key).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=CELL["learning_rate"]),
        data_loader=DataLoader(data, batch_sampler=sampler),
        max_grad_norm=CELL["clip_norm"],
    )
    private[1].release.begin(name)
    theirs, _ = run(*private, CELL["steps"])
    assert np.abs(ours).max() > 0.01
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("label", amplified.KINDS)
def test_a_cell_keeps_its_promise(label):
    """The bands are searched for, the noise multiplier is found for this ε."""
    kept = {name: value for name, value in CELL.items() if name not in ("mechanism", "cyclic")}
    kind = amplified.KINDS[label]
    found = amplified.work(kept | kind | ({"tau": 24} if "tau" in kind else {}))
    assert 0.99 * 16 < found["epsilon"] <= 16
    assert min(found["noise"]) > 0
    assert (found["bands"] > 1) == (label != amplified.SGD)
    assert len(found["accuracies"]) == 2


def test_tables_and_figures_come_from_the_record(tmp_path):
    results = [
        {"accuracies": [0.5, 0.6 + 0.1 * i], "bands": i + 1, "noise": [0.1, 0.2 * (i + 1)]}
        for i in range(12)
    ]
    record = {
        "summary": amplified.summary(
            list(zip(amplified.cells(full=False), results, strict=True)), full=False
        )
    }
    tables = amplified.tables(record)
    assert [len(table.rows) for table in tables] == [4, 6, 4]
    assert all(isinstance(table, runner.Table) for table in tables)
    assert tables[0].rows[1][1] == "70.0 ± 20.00"  # Toeplitz at the first ε: the fourth cell
    assert tables[1].rows[1][1] == "0.100, 0.800"
    assert {path.suffix for path in amplified.draw(record, tmp_path)} == {".svg", ".png"}
