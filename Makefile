# Two commands: `make run` and `make test`. Both set everything up in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# the package index of the torch build that you want (docs/install.md); empty takes pip's default
TORCH_INDEX ?=
# the user's cache folder, as core/caches.py finds it
CACHE := $(or $(LEAKBOARD_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/leakboard)
TORCH_PIN := $(shell sed -n 's/^torch==/torch==/p' requirements.txt)

.PHONY: run test test-ray docs bench lint audit-deps clean clean-cache help

run: $(VENV)/.installed  ## set up and run the suite `quick`: a table and a page
	$(BIN)/python run_benchmark.py

test: $(VENV)/.installed-dev  ## set up and run all tests
	$(BIN)/pytest -n auto

test-ray: $(VENV)/.installed-dev  ## install Ray, which is optional, and run its tests: two workers and two nodes, one killed of each
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-ray.txt
	$(BIN)/pytest -n 0 -s tests/leaderboard/engine/test_ray.py

docs: $(VENV)/.installed  ## write docs/views.md anew: what each party sees under each defense
	PYTHONPATH=src $(BIN)/python -m leakboard.leaderboard.cli.views_doc > docs/views.md

BENCH ?=
bench: $(VENV)/.installed  ## all speeds and sizes against their peers, in one table (BENCH=--quick: a few minutes)
	$(BIN)/python -m benchmarks $(BENCH)

lint: $(VENV)/.installed-dev  ## ruff (check and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit-deps:  ## look for known vulnerabilities of the pinned packages; needs the network (docs/security.md)
	$(PYTHON) -m venv .cache/audit
	.cache/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	.cache/audit/bin/pip-audit --strict --disable-pip --no-deps -r requirements.txt -r requirements-dev.txt -r requirements-ray.txt

clean:  ## remove the environment and caches (runs/ stays)
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info

clean-cache:  ## remove kept shadow models and generators; what is needed is trained again
	rm -rf '$(CACHE)/shadows' '$(CACHE)/generators'

help:  ## this text
	@sed -n 's/^\([a-z-]*\):.*##/\1 \t/p' $(MAKEFILE_LIST)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "LeakBoard needs Python 3.11 or newer; set PYTHON=..., given: $$($(PYTHON) --version)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# the last line gives the command `.venv/bin/leakboard`: an editable install, so nothing is copied
$(VENV)/.installed: $(VENV)/.created requirements.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH_PIN) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@
