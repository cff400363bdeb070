"""Flower's simulation engine, in a process of its own, with the extra it needs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

SCRIPT = """
from digits_app.client_app import app as client
from digits_app.task import evaluate, initial_model, record
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvgM
from flwr.simulation import run_simulation

from antiphase.federated import Verdict
from antiphase.federated.flower import DifferentialPrivacyCorrelatedNoise

server = ServerApp()


@server.main()
def main(grid, context):
    strategy = DifferentialPrivacyCorrelatedNoise(
        FedAvgM(fraction_evaluate=0.0, server_momentum=0.9, min_available_nodes=10),
        clipping_norm=0.5,
        num_sampled_clients=5,
        rounds=6,
        min_separation=2,
        target_epsilon=8.0,
        target_delta=1e-5,
    )
    result = strategy.start(grid, record(initial_model()), 6, evaluate_fn=evaluate)
    counts = strategy.server.counts
    summed = counts[Verdict.SUMMED] + counts[Verdict.CLIPPED]
    epsilon = strategy.privacy_spent().epsilon
    accuracy = result.evaluate_metrics_serverapp[6]["accuracy"]
    print(f"{summed} updates, epsilon {epsilon:.4f}, accuracy {accuracy:.2f}", flush=True)


resources = {"client_resources": {"num_cpus": 1}}
run_simulation(server, client, num_supernodes=10, backend_config=resources)
"""


def test_a_training_in_the_simulation_engine():
    path = os.pathsep.join(
        [str(ROOT / "examples" / "flower_app"), os.environ.get("PYTHONPATH", "")]
    )
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | quiet | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    summed, epsilon, accuracy = re.search(
        r"(\d+) updates, epsilon ([\d.]+), accuracy ([\d.]+)", done.stdout
    ).groups()
    assert int(summed) == 30
    assert 7.99 < float(epsilon) <= 8
    assert float(accuracy) > 0.3, "a tenth by chance"
