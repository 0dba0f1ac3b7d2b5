# Each target sets up what it needs. `make check` is what CI runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# torchvision, which timm and ultralytics need, breaks other packages beside torch's CPU build: an environment of its own
VISION := .venv-vision

.DEFAULT_GOAL := test
.PHONY: test test-vision check format clean demo

$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) -m venv is not available: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

$(VISION)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VISION)
	$(VISION)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab]' pytest timm ultralytics
	touch $@

test-vision: $(VISION)/.installed
	$(VISION)/bin/python -m pytest tests/vision

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

demo: $(STAMP)
	$(BIN)/tempbalance compare --out runs/demo

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VISION) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
