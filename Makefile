# Every target sets up what it needs: on a fresh clone, `make demo` or `make test` is all there is to type.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test test-long test-integrations check bench docs reproduce clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, or say make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,federated,data,dev]'
	$(BIN)/pip check
	@touch $@

demo: $(READY)       ## four mechanisms on digits at two privacy budgets; writes demo/report.html
	$(BIN)/antiphase demo --output demo

test: $(READY)       ## everything that takes seconds (under 12 minutes on two cores)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not long" -n 2 --ignore=tests/acceptance --durations=10
	$(BIN)/python -m pytest -m "not long" --durations=5 tests/acceptance  # alone: these measure time, and print

test-long: $(READY)  ## what takes minutes, only
	$(BIN)/python -m pytest -m long -s

test-integrations: $(READY)  ## Lightning, Hugging Face, Flower's simulation engine, which are extras: installs them first
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lightning,huggingface,simulation]'
	$(BIN)/python -m pytest -q tests/torch/test_integrations.py tests/federated/test_simulation.py

check: $(READY)      ## format, lint, types and the fast tests, in under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not long and not slow" -n 2

bench: $(READY)
	$(BIN)/python -m benchmarks.design
	$(BIN)/python -m benchmarks.epochs
	$(BIN)/python -m benchmarks.families
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.noise

docs: $(READY)
	$(BIN)/mkdocs build --strict --site-dir site

reproduce: $(READY)  ## the paper's experiments; what was stopped goes on
	$(BIN)/antiphase reproduce all --output results

clean:
	rm -rf $(VENV) site demo results build .pytest_cache .mypy_cache .ruff_cache
