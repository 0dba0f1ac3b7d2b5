# Each target installs what it needs. `make test` is the fast tier; `make check`, which CI runs, is everything.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# torchvision, which timm and ultralytics need, breaks other packages beside torch's CPU build: a second environment
VISION := .venv-vision

.DEFAULT_GOAL := test
.PHONY: test test-kills campaign test-vision check coverage docs results pictures gallery notebooks gpu-check dist format clean demo
.PRECIOUS: $(VENV)/.installed-%
INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST  := $(BIN)/python -m pytest -n auto

$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) -m venv is not available: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# .installed-lab, .installed-test and .installed-dev: the extras of pyproject.toml
$(VENV)/.installed-%: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python $(INSTALL) -e '.[$*]'
	touch $@

test: $(VENV)/.installed-test
	$(PYTEST) -m 'not slow'

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	$(PYTEST)

# branch coverage of src/, processes that tests start included; the fast tier alone: make coverage TIER='-m "not slow"'
coverage: $(VENV)/.installed-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto $(TIER)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=miss

# kill the processes of sweeps ten times; the other tests kill one of each kind
test-kills: $(VENV)/.installed-dev
	TEMPBALANCE_KILLS=all $(BIN)/python -m pytest tests/lab/test_pool_kills.py tests/lab/test_cluster_kills.py

# an hour or more: each campaign prints its counts and the seed that repeats it; make campaign SEED=7 COUNT=1000 CAMPAIGNS=files
SEED  ?= 0
COUNT ?= 10000
CAMPAIGNS ?= files kills
campaign: $(VENV)/.installed-dev $(addprefix campaign-,$(CAMPAIGNS))

campaign-files:
	$(BIN)/python -m benchmarks.campaigns.files --count $(COUNT) --seed $(SEED)
	$(BIN)/python benchmarks/damaged_files.py --count 2000 --seed $(SEED)

campaign-kills:
	$(BIN)/python -m tests.lab.kills --seed $(SEED) --rounds 300 --parts train
	$(BIN)/python -m tests.lab.kills --seed $(SEED) --rounds 40 --parts compare,pool
	$(BIN)/python -m tests.lab.kills --seed $(SEED) --rounds 20 --parts ray
	$(BIN)/python -m tests.lab.kills --seed $(SEED) --rounds 100 --parts disk,damage

$(VISION)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VISION)
	$(VISION)/bin/python $(INSTALL) -e '.[lab]' pytest timm ultralytics
	touch $@

test-vision: $(VISION)/.installed
	$(VISION)/bin/python -m pytest tests/vision

# the site, in build/docs/index.html
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# the page and the chart of docs/does-it-help.md, from docs/results/*.json
results: $(VENV)/.installed-lab
	$(BIN)/python -m benchmarks.results

# the pictures of README and site, drawn again; needs Chromium
pictures: $(VENV)/.installed-dev
	$(BIN)/python docs/pictures.py

# the notebooks, executed with their outputs
notebooks: $(VENV)/.installed-dev
	$(BIN)/python docs/notebooks.py

# pages of the gallery from runs of the lab; needs Chromium
gallery: $(VENV)/.installed-dev
	$(BIN)/python docs/gallery.py

# ten minutes on one GPU; writes gpu-report.md; without a GPU: make gpu-check GPU_CHECK='--device cpu'
gpu-check: $(VENV)/.installed-lab
	$(BIN)/python benchmarks/gpu_check.py $(GPU_CHECK)

# wheel and sdist in dist/, checked, installed into an empty environment and used there; the sdist's fast tests
dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.dist dist --tests

demo: $(VENV)/.installed-lab
	$(BIN)/tempbalance compare --out runs/demo

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VISION) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* .import_linter_cache
