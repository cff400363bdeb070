"""Files that privacy rests on, and the tests that their mutants are run through."""

from tests.mutation.mutate import PACKAGE

QUICK, ALL = ("-m", "not slow and not long"), ("-m", "not long")
TORCH = (  # none that starts processes, which would import the file as it is
    "tests/torch/test_privacy_engine.py", "tests/torch/test_private_optimizer.py", "tests/torch/test_fuzz.py",
    "tests/torch/test_checkpoint.py", "tests/torch/test_batch_selection.py",
    "tests/torch/test_clipping.py", "tests/torch/test_coverage.py",
    "tests/torch/test_earlier_runs.py", "tests/torch/test_ghost_clipping.py",
    "tests/torch/test_gradient_check.py", "tests/torch/test_gradient_check_faults.py",
    "tests/torch/test_gradient_terms.py", "tests/torch/test_batched_products.py", "tests/torch/test_recorder.py",
    "tests/torch/test_model_state_check.py", "tests/numerical/test_clipping.py",
    "tests/adversarial", *ALL,
    # shows what the attacks of other tests came to, and makes all of them again if it runs first
    "--deselect=tests/adversarial/test_hazards.py::test_every_row_has_attacks_and_each_ends_as_asked",
)  # fmt: skip
AMPLIFICATION = (
    "tests/test_sampling.py", "tests/accounting/test_balls_in_bins.py", "tests/test_mechanism.py", *ALL,
)  # fmt: skip
KEY = (
    "tests/noise/test_key.py", "tests/ledger/test_ledger.py", "tests/torch/test_earlier_runs.py",
    "tests/adversarial/test_engine_settings.py", "tests/adversarial/test_keys_and_ledgers.py", *ALL,
)  # fmt: skip
FEDERATED = ("tests/federated/test_server.py", "tests/federated/test_storage.py", *ALL)

TESTS = {
    "sensitivity.py": ("tests/test_sensitivity.py", *QUICK),
    "accounting/gaussian.py": ("tests/accounting/test_gaussian.py", *AMPLIFICATION),
    "accounting/poisson.py": ("tests/accounting/test_gaussian.py", *AMPLIFICATION),
    "sampling.py": AMPLIFICATION,
    "accounting/accountant.py": AMPLIFICATION,
    "accounting/cyclic_poisson.py": AMPLIFICATION,
    "accounting/balls_in_bins.py": AMPLIFICATION,
    "band_selection.py": ("tests/test_band_selection.py", *ALL),
    "mechanism.py": ("tests/test_mechanism.py", "tests/test_statement.py", *ALL),
    "statement.py": ("tests/test_mechanism.py", "tests/test_statement.py", *ALL),
    "auditing/bounds.py": ("tests/auditing/test_bounds.py", "tests/auditing/test_one_run.py", *ALL),
    "auditing/canaries.py": ("tests/auditing/test_canaries.py", *ALL),
    "auditing/claims.py": ("tests/auditing/test_claims.py", "tests/auditing/test_result.py", *ALL),
    "auditing/many_trials.py": ("tests/auditing/test_many_trials.py", *ALL),
    "auditing/one_run.py": ("tests/auditing/test_one_run.py", *ALL),
    "auditing/result.py": ("tests/auditing/test_result.py", *ALL),
    "ledger/participation.py": ("tests/ledger/test_ledger.py", *ALL),
    "ledger/write_ahead.py": (
        "tests/ledger/test_ledger.py",
        "tests/adversarial/test_keys_and_ledgers.py",
        *ALL,
    ),
    "federated/server.py": FEDERATED,
    "noise/key.py": KEY,
    "noise/normals.py": ("tests/noise/test_normals.py", *ALL),
    "noise/generators.py": ("tests/noise/test_stream.py", *QUICK),
    "noise/stream.py": ("tests/noise/test_stream.py", *QUICK),
    "torch/checkpoint.py": TORCH,
    "torch/clipping.py": TORCH,
    "torch/coverage.py": TORCH,
    "torch/earlier_runs.py": TORCH,
    "torch/privacy_engine.py": TORCH,
    "torch/frozen_settings.py": TORCH,
    "torch/ghost_clipping.py": TORCH,
    "torch/gradient_terms.py": TORCH,
    "torch/layer_rules.py": TORCH,
    "torch/vjp_rule.py": TORCH,
    "torch/tensor_roles.py": TORCH,
    "torch/recorded_module.py": TORCH,
    "torch/probe_inputs.py": TORCH,
    "torch/indexing_rules.py": TORCH,
    "torch/function_calls.py": TORCH,
    "torch/derived_parameters.py": TORCH,
    "torch/convolution_rules.py": TORCH,
    "torch/batching_rules.py": TORCH,
    "torch/batched_products.py": TORCH,
    "torch/batch_dim.py": TORCH,
    "torch/poisson_sampling.py": TORCH,
    "torch/private_optimizer.py": TORCH,
    "torch/plan.py": TORCH,
    "torch/plan_accountant.py": TORCH,
    "torch/noise_run.py": TORCH,
    "torch/opacus_dp_sgd.py": TORCH,
    "torch/recorder.py": TORCH,
    "torch/recorded_loader.py": TORCH,
    "torch/release.py": TORCH,
    "torch/request.py": TORCH,
    "torch/tensor_packing.py": TORCH,
    "torch/training_warnings.py": TORCH,
    "torch/wrapping.py": TORCH,
    "torch/batch_selection.py": TORCH,
    "torch/model_state_check.py": TORCH,
    "torch/gradient_check.py": TORCH,
    "torch/validation.py": TORCH,
    "torch/example_mixing.py": TORCH,
}
LEFT_OUT = {  # of torch/, and why
    "torch/__init__.py": "imports only",
    "torch/distributed.py": "its tests start processes",
    "torch/sharding.py": "its tests start processes",
    "torch/run_directory.py": "where runs are kept; no guarantee rests on it",
    "torch/huggingface.py": "an extra, with tests of its own environment",
    "torch/lightning.py": "an extra, with tests of its own environment",
    "torch/optimizers.py": "tables only",
    "torch/user_warnings.py": "where warnings point to; no guarantee rests on it",
    "torch/models.py": "models of the demo and the studies",
    "torch/spectrum.py": "used by `recommend`, on data that are public",
    "torch/in_memory.py": "data in memory, for the commands' training loop",
    "torch/recipe.py": "choices of the commands' training loop",
    "torch/secret_generator.py": "for studies and the commands; its test compares whole states",
    "torch/training.py": "the commands' training loop; what it promises is the engine's",
    "torch/training_run.py": "the commands' training loop; what it promises is the engine's",
}


def there(files):
    """Those that are there, and those that are not."""
    found = [file for file in files if (PACKAGE / file).exists()]
    return found, [file for file in files if file not in found]
