# Needs only Python 3.11 or newer, pip and make; everything else goes into .venv.
PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
STAMP := .venv/.installed

# LiteLLM, which DSPy imports, otherwise asks the network for its price list at every import.
export LITELLM_LOCAL_MODEL_COST_MAP := True

EXTRAS := optimizers data isolation notebook test dev

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench soak lock clean

help: ## print this list
	@echo "Targets (make PYTHON=python3.12 TARGET takes another Python):"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1 \2/p' Makefile | awk '{n = $$1; $$1 = ""; printf "  %-8s%s\n", n, $$0}'

demo: $(STAMP) ## optimise a program and plain texts with one metric; needs no key; ARGS="--help" lists options
	@$(BIN)/python -m skynet_adapters demo $(ARGS)

test: $(STAMP) ## run the tests and the package's doctests; ARGS="-k name" selects
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rs $(ARGS)

check: $(STAMP) ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(STAMP) ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure against hand-written metrics
	@cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && \
	DSPY_CACHEDIR="$$cache" $(BIN)/python benchmarks/run.py $(ARGS)

soak: $(STAMP) ## call metrics 100,000 times from 64 threads and check; ARGS="--calls 10000" for less
	@cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && \
	DSPY_CACHEDIR="$$cache" $(BIN)/python benchmarks/soak.py $(ARGS)

lock: .venv-lock/.installed ## write requirements.lock anew from pyproject.toml; ARGS=--upgrade takes newer versions
	CUSTOM_COMPILE_COMMAND="make lock" .venv-lock/bin/pip-compile --quiet --strip-extras \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
	  $(addprefix --extra ,$(EXTRAS)) --output-file requirements.lock $(ARGS) pyproject.toml

clean: ## remove the environments and every cache
	rm -rf .venv .venv-lock .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an install which broke off is done again.
$(STAMP): requirements.lock pyproject.toml
	@$(call need_python)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.venv-lock/.installed:
	@$(call need_python)
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	@touch $@

# Runs on any Python from 2.7 on, since it is there to refuse the old ones.
define need_python
command -v $(firstword $(PYTHON)) >/dev/null || { \
  echo "There is no $(PYTHON) here. Name a Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }; \
$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("skynet-adapters needs Python 3.11 or newer, and $(PYTHON) is %d.%d.%d. Name a newer one: make PYTHON=python3.11 $(MAKECMDGOALS)" % tuple(v[:3]))'
endef
