# Two commands: `make run` and `make test`. Both set everything up in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# the package index of the torch build that you want (docs/install.md); empty takes pip's default
TORCH_INDEX ?=
# the user's cache folder, as core/caches.py finds it
CACHE := $(or $(LEAKBOARD_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/leakboard)
TORCH_PIN := $(shell sed -n 's/^torch==/torch==/p' requirements.txt)

.PHONY: run test test-slow test-ray test-flower lpips docs site verify-published bench lint audit-deps clean clean-cache help

run: $(VENV)/.installed  ## set up and run the suite `quick`: a table and a page
	$(BIN)/python run_benchmark.py

# Each worker starts with a run of neighbours, so what a file shares is made once; who is done first takes from others.
# Compiled tests are kept also where the environment says otherwise: else each worker of each call rewrites all asserts.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n auto --dist worksteal

test: $(VENV)/.installed-dev  ## set up and run the tests, but for the slow ones
	$(PYTEST) -m 'not slow'

test-slow: $(VENV)/.installed-dev  ## run the slow tests, as CI does: a wheel, a browser, LaTeX, a notebook, kills, real keys
	$(PYTEST) -m slow tests

test-ray: $(VENV)/.installed-dev  ## install Ray, which is optional, and run its tests: two workers and two nodes, one killed of each
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-ray.txt
	$(BIN)/pytest -n 0 -s tests/leaderboard/engine/test_ray.py

lpips: $(VENV)/.installed  ## fetch AlexNet's weights for the metric LPIPS once, for all runs (64 MB)
	$(BIN)/python run_benchmark.py lpips --download

# Flower pins versions that differ from ours, so it has an environment of its own
FLOWER := .cache/flower
test-flower: $(FLOWER)/.installed  ## Flower and Hugging Face's `datasets`, in an environment of their own: a recorded run of two clients, attacked
	$(FLOWER)/bin/pytest -s tests/flower tests/datasets/test_hf.py tests/datasets/test_hf_download.py

$(FLOWER)/.installed: requirements-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_PIN) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-flower.txt
	touch $@

docs: $(VENV)/.installed  ## write docs/views.md (what each party sees) and docs/suites-reference.md (keys of suites) anew
	PYTHONPATH=src $(BIN)/python -m leakboard.leaderboard.cli.views_doc > docs/views.md
	PYTHONPATH=src $(BIN)/python -m leakboard.leaderboard.cli.suites_doc > docs/suites-reference.md

site: $(VENV)/.installed  ## build one static site from everything published, with the documents: site/index.html
	$(BIN)/python run_benchmark.py site

verify-published: $(VENV)/.installed  ## replay every published training that has a snapshot, with one attack each
	@for replays in leaderboard/published/*/replays; do \
	  [ ! -d "$$replays" ] || $(BIN)/python run_benchmark.py verify "$${replays%/replays}" --depth attack || exit 1; \
	done

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
	.cache/audit/bin/pip-audit --strict --disable-pip --no-deps -r requirements-flower.txt

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
