# Each target sets up what it needs. `make check` is what CI runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# torchvision, which timm and ultralytics need, breaks other packages beside torch's CPU build: an environment of its own
VISION := .venv-vision

.DEFAULT_GOAL := test
.PHONY: test test-kills test-vision check format clean demo
INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) -m venv is not available: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python $(INSTALL) -e '.[dev]'
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

# sweeps whose processes are killed ten times, where the other tests kill one of each kind
test-kills: $(STAMP)
	TEMPBALANCE_KILLS=all $(BIN)/python -m pytest tests/lab/test_pool_kills.py tests/lab/test_cluster_kills.py

$(VISION)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VISION)
	$(VISION)/bin/python $(INSTALL) -e '.[lab]' pytest timm ultralytics
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
