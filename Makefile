# Everything runs in a virtual environment of its own, made on first use and kept until pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test lint bench clean

help:
	@echo "make demo   run a decode step and a double buffer, write two pictures into out/"
	@echo "make test   run the tests        make lint   ruff and mypy"
	@echo "make bench  measure the engine   make clean  remove the virtual environment and out/"

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "simcore needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@mkdir -p out
	$(BIN)/simcore run double_buffering --gantt out/double_buffering.png
	$(BIN)/simcore run decode_step --chip v5e --ring 4 --gantt out/decode_step.png
	@echo "Open out/double_buffering.png and out/decode_step.png."

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks.engine

clean:
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache
