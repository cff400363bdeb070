"""The study of amplification in small: its loop on cyclic samples is the engine's, and figures come from the record."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from antiphase.studies import amplified, mnist, running
from antiphase.torch import PrivacyEngine
from antiphase.torch.sampling import CyclicPoisson
from tests.studies.private import linear, run, tensors
from tests.studies.test_mnist import images  # noqa: F401

SMALL = mnist.COMMON | {"steps": 24, "epochs": 4, "batch_size": 60, "trials": 2, "delta": 1e-4, "epsilons": [16.0]}


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_the_loop_on_cyclic_samples_is_the_engine():
    cell = SMALL | {"mechanism": "toeplitz", "cyclic": True}
    made, trial = amplified._banded(cell), 1
    assert made.factorization.bands > 1
    (ours,) = mnist.trained(cell, [made], trial, amplified._batches(cell, made, trial))
    key, name = mnist.key_and_run(cell, trial)
    data, model = tensors(), linear()
    sampler = CyclicPoisson(
        len(data), mnist.sampling_rate(cell), groups=made.factorization.bands, secret=key.subkey("samples", str(trial))
    )
    private = PrivacyEngine(mechanism=made, key=key).make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=cell["learning_rate"]),
        data_loader=DataLoader(data, batch_sampler=sampler), max_grad_norm=cell["clip_norm"],
    )  # fmt: skip
    private[1].release.begin(name)
    theirs, _ = run(*private, cell["steps"])
    assert np.abs(ours).max() > 0.01
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_tables_and_figures_come_from_the_record(tmp_path):
    cells = [{**SMALL, **kind, "epsilons": [e]} for kind in amplified.KINDS.values() for e in amplified.EPSILONS]
    cells = [cell | {"tau": 24} if "tau" in cell else cell for cell in cells]
    results = [amplified.work(cell) for cell in cells]
    for cell, result in zip(cells, results, strict=True):
        assert result["epsilon"] <= cell["epsilons"][0]
        assert min(result["noise"]) > 0
    labelled = [cell | {"tau": mnist.COMMON["steps"]} if "tau" in cell else cell for cell in cells]
    record = {"summary": amplified.summary(list(zip(labelled, results, strict=True)), full=False)}
    tables = amplified.words(record)
    assert [len(table.rows) for table in tables] == [4, 6, 4]
    assert all(isinstance(table, running.Table) for table in tables)
    assert {path.suffix for path in amplified.draw(record, tmp_path)} == {".svg", ".png"}
