# Everything a fresh clone needs. `make demo` shows it, `make test` proves it; both set the environment up once and reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Where there is a GPU, torch is whatever the registry gives for it; elsewhere the pinned CPU build.
CONSTRAINTS := $(if $(shell command -v nvidia-smi),$(VENV)/constraints.txt,constraints.txt)

.PHONY: help demo test lint types check build clean

help:
	@echo "make demo    set up and watch a masked diffusion model correct itself (CPU)"
	@echo "make test    set up, then lint, type-check and run the tests"
	@echo "make lint    ruff          make types   mypy          make check   the tests alone"
	@echo "make build   the wheel     make clean   remove the environment"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/prism demo
	@echo "To go on: source $(VENV)/bin/activate puts prism on your path; prism --help lists its commands."

test: lint types check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: $(READY)
	$(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder

build: $(READY)
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist *.egg-info
