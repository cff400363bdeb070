# Every target creates the environment it needs, so `make demo` or `make test` works on a fresh clone.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TWO    := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two processes, one thread each

.PHONY: help setup demo test test-long test-studies test-integrations test-install test-install-all coverage mutants check bench bench-full docs reproduce clean

setup: $(READY)      ## create the environment in .venv (other targets do so too)

help:                ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' Makefile

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, or run make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cli,torch,federated,data,dev]'
	$(BIN)/pip check
	@touch $@

demo: $(READY)       ## compare four mechanisms on digits at two privacy budgets; writes demo/report.html
	$(BIN)/antiphase demo --output demo

test: $(READY)       ## run the tests that take seconds (at most 12 minutes on two cores); prints measurements
	$(TWO) -q -m "not long and not alone" --dist worksteal --durations=10
	$(BIN)/python -m pytest -q -m "not long and alone" --durations=5

test-long: $(READY)  ## run the tests that take minutes (at most 30 minutes on two cores)
	$(TWO) -q -m "long and not study and not alone" --dist loadfile --durations=10
	$(BIN)/python -m pytest -q -m "long and not study and alone" --durations=10

test-studies: $(READY)  ## run the longest tests: the paper's results, benchmarks, Opacus' tests, mutants, coverage
	$(BIN)/python -m pytest -m study -s

test-integrations: $(READY)  ## install the extras and test Lightning, Hugging Face and Flower's simulation engine
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lightning,huggingface,simulation]'
	$(BIN)/python -m pytest -q tests/torch/test_integrations.py tests/federated/test_simulation.py tests/planted

test-install:        ## install wheel and sdist in empty environments, newest and lowest versions (10 minutes)
	$(PYTHON) -m tests.install newest lowest

test-install-all:    ## the same, also with all extras at once and with other Pythons that are installed
	$(PYTHON) -m tests.install

coverage: $(READY)   ## measure the coverage of the core by `make test`; fails below 95 %
	$(TWO) -q -m "not long and not alone" --dist worksteal --cov --cov-report=term

mutants: $(READY)    ## mutate the code that privacy rests on 600 times; fails if tests notice less than 90 %
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.mutation

check: $(READY)      ## check format, lint and types, and run the fast tests (at most a minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(TWO) -q -m "not long and not slow"

bench: $(READY)      ## compare with other libraries, installed in .bench the first time (14 minutes)
	$(BIN)/python -m benchmarks

bench-full: $(READY) ## the same at larger sizes (hours, most of them for the peers)
	$(BIN)/python -m benchmarks --full

docs: $(READY)       ## build the documentation in site
	$(BIN)/mkdocs build --strict --site-dir site

reproduce: $(READY)  ## compute the paper's figures and tables in results; continues where it was stopped
	$(BIN)/python -m experiments all --output results

clean:               ## remove everything that these targets create
	rm -rf $(VENV) .bench site demo results build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
