# Needs Python >= 3.11 and make; everything else goes into .venv.
PYTHON ?= python3
# Two test processes: few of the tests need more than a core and some wait. If one dies, the run ends
# and names the test; xdist waits for ever for the tests of a process that it has started anew.
PYTEST ?= --numprocesses 2 --dist loadfile --max-worker-restart 0
VENV := .venv
BIN := $(VENV)/bin
# Python compiles the modules that it imports; pip would compile all, in as long as the rest takes.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
GPU_TESTS := $(addprefix tests/,adversaries defenses engine gradients metrics tasks testing training)
CODE := fedsim adversaries defenses tests benchmarks examples

export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export FLWR_TELEMETRY_ENABLED ?= 0
# Tests start hundreds of processes, each of which would compile its libraries anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs format bench chaos gpu lowest image clean

demo: $(VENV)/.base  ## install, then run the quickstart
	$(BIN)/fedsim run quickstart

test: $(VENV)/.dev  ## install, then run the tests
	$(BIN)/python -m pytest $(PYTEST)

check: $(VENV)/.dev docs  ## formatting, lint, types, length of files, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	find $(CODE) -name '*.py' | xargs awk 'FNR == 351 {print FILENAME ": longer than 350 lines, make it two files"; long = 1} END {exit long}'

docs: $(VENV)/.dev  ## the documentation site, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(VENV)/.dev  ## put formatting and imports right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## tables and plots of docs/performance.md, in half an hour to an hour and a half
	$(BIN)/python benchmarks/performance.py
	$(BIN)/python benchmarks/watching.py
	$(BIN)/python benchmarks/speeds.py

chaos: $(VENV)/.dev  ## faults at random moments and fuzzers, about four hours; stopped, it goes on where it was
	$(BIN)/python benchmarks/chaos.py
	FEDSIM_FUZZ=2000 $(BIN)/python -m pytest --timeout 7200 tests/fuzz
	$(BIN)/python benchmarks/soak.py

gpu: $(VENV)/.dev  ## tests and a benchmark on a GPU; without one, the tests are only found, and the models tiny
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then FEDSIM_TEST_DEVICE=cuda $(BIN)/python -m pytest $(PYTEST) $(GPU_TESTS); \
	else FEDSIM_TEST_DEVICE=cpu $(BIN)/python -m pytest --collect-only -qq $(GPU_TESTS) > /dev/null; fi
	$(BIN)/python benchmarks/gpu.py

lowest: $(VENV)/.dev  ## the tests with the lowest versions that pyproject.toml allows, in build/lowest
	$(BIN)/python -m venv --clear --without-pip build/lowest
	$(BIN)/uv pip install --quiet --python build/lowest --resolution lowest-direct --editable '.[dev]'
	PATH="$(CURDIR)/build/lowest/bin:$$PATH" build/lowest/bin/python -m pytest $(PYTEST) -W ignore::DeprecationWarning

image:  ## a container image, with docker, podman or buildah
	docker/build

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsim needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable .
	$(BIN)/python -m compileall -q fedsim adversaries defenses
	touch $@

$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	$(BIN)/python -m compileall -q fedsim adversaries defenses
	touch $@ $(VENV)/.base
