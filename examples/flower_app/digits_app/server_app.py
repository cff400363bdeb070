"""The server: federated averaging with momentum, on handwritten digits."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from antiphase.federated.flower import DifferentialPrivacyCorrelatedNoise
from digits_app.task import evaluate, initial_model, record

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run = context.run_config
    rounds, timeout = run["num-server-rounds"], run["timeout"]
    strategy = FedAvgM(
        fraction_evaluate=0.0, min_available_nodes=run["min-available-nodes"], server_momentum=0.9
    )
    strategy = DifferentialPrivacyCorrelatedNoise(
        strategy, target_epsilon=8.0, target_delta=1e-5, clipping_norm=0.5, folder=run["folder"],
        rounds=rounds, num_sampled_clients=run["clients"], min_separation=run["min-separation"],
    )  # fmt: skip
    strategy.start(grid, record(initial_model()), rounds, timeout, evaluate_fn=evaluate)
    print(strategy.statement())
