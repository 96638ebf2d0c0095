# The environments are made here, from setup.cfg, with nothing but Python and pip's package index:
# `make demo` and `make test` work in a fresh clone.

# $(call find_python,commands,first minor version,minor version too new): the first that runs, is a
# supported Python 3 and can create environments. Running it is the only sure test: pyenv leaves
# shims for versions that are not active.
find_python = $(shell for python in $(1); do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, $(2)) <= sys.version_info < (3, $(3)))' \
		2>/dev/null && echo "$$python" && break; done)

PYTHON ?= $(call find_python,python3.12 python3.11 python3.13 python3.10 python3,10,14)
# TensorFlow 2.18 has no wheel for Python 3.13.
OLDEST_PYTHON ?= $(call find_python,python3.10 python3.11 python3.12 python3,10,13)

VENV := .venv
OLDEST_VENV := .venv-oldest
NEXT_VENV := .venv-next
CLIENTS_VENV := .venv-clients
DOCS_VENV := .venv-docs
# They pin nothing that conflicts, but name much that is not needed.
CLIENTS := deepctr==0.9.4 tensorflow-recommenders==0.7.7 keras-rs==0.4.0
BIN := $(VENV)/bin
# The lower bounds of setup.cfg, and the Keras of TensorFlow 2.18's days.
OLDEST := tensorflow==2.18.0 tf_keras==2.18.0 keras==3.6.0 numba==0.62.0 numpy==1.26.0 \
	networkx==3.2 click==8.1.0 rich==13.0.0 matplotlib==3.8.0 \
	pyarrow==17.0.0 tensorboard==2.18.0 redis==5.0.0 rocksdict==0.3.24 fsspec==2023.1.0

# What comes after the newest versions supported.
NEXT_TENSORFLOW := tensorflow==2.22.0rc0
NEXT_KERAS := keras-nightly

# Tests run side by side, one process per core; each needs about a gigabyte.
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: bench-smoke clients docs help demo test test-all test-rest test-oldest test-next fuzz soak parity release lint clean

help: ## Show this help
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '%-12s %s\n' "$$target" "$$text"; done

demo: $(VENV)/.installed ## Train, export, rewrite and compare the wide-and-deep model of the zoo
	$(BIN)/python -m modelzoo.demo

# Compiled kernels are kept for other clones of the same sources, which need not compile them again.
test test-rest test-oldest test-next release: export FUSION_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusion/kernels

# The tests start some hundred processes, each of which would compile this project's modules again.
unexport PYTHONDONTWRITEBYTECODE

# Side by side; the output of the linters is printed last, after the progress of the tests.
test: $(VENV)/.installed ## Run the linters and the tests of each change, some minutes
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(MAKE) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	FUSION_TESTS=fast FUSION_TEST_COSTS=$(FUSION_CACHE_DIR)/../test-costs-fast.json \
	$(BIN)/python -m pytest $(PARALLEL); tests_status=$$?; \
	wait $$lint; lint_status=$$?; cat "$$log"; \
	exit $$((tests_status ? tests_status : lint_status))

test-all: test test-rest ## Run all tests, with many cases of each, forty minutes on two cores

test-rest: $(VENV)/.installed ## Run the tests of test-all that test leaves out
	FUSION_TESTS=rest FUSION_TEST_COSTS=$(FUSION_CACHE_DIR)/../test-costs.json \
		$(BIN)/python -m pytest $(PARALLEL)

test-oldest: $(OLDEST_VENV)/.installed ## Run all tests with the oldest dependencies supported
	FUSION_TESTS=all $(OLDEST_VENV)/bin/python -m pytest $(PARALLEL)

test-next: $(NEXT_VENV)/.installed ## Run all tests with TensorFlow's release candidate and Keras's nightly build
	FUSION_TESTS=all $(NEXT_VENV)/bin/python -m pytest $(PARALLEL)

# A mismatch ends with a program that shows it. FUZZ_SECONDS=600 stops after about that time of all
# processes together; other examples are drawn each time.
fuzz: $(VENV)/.installed ## Compare 100,000 random lookups with stock TensorFlow, which takes an hour or two
	HYPOTHESIS_PROFILE=nightly FUSION_TESTS=every $(BIN)/python -m pytest $(PARALLEL) -rP \
		-o faulthandler_timeout=0 tests/differential/test_lookups.py \
		tests/differential/test_layer_lookups.py tests/differential/test_products.py \
		tests/differential/test_updates.py tests/differential/test_sessions.py \
		tests/differential/test_examples.py tests/differential/test_parsed_graphs.py \
		tests/differential/test_requests.py tests/passes/test_near_misses.py

parity: $(VENV)/.installed ## Write docs/parity.md: what the tests compare with stock TensorFlow
	$(BIN)/python -m tests.parity > docs/parity.new && mv docs/parity.new docs/parity.md

bench-smoke: $(VENV)/.installed ## Measure the README's first numbers again, beside stock TensorFlow, three minutes
	$(BIN)/python -m benchmarks smoke

clients: $(CLIENTS_VENV)/.installed ## Run models of DeepCTR, TFRS and keras-rs, and write a table of them
	@mkdir -p build
	$(CLIENTS_VENV)/bin/fusion build-ops --cpu native -o build/libclients_ops.so
	@out=benchmarks/results/clients; \
	$(CLIENTS_VENV)/bin/python -m benchmarks run clients clients-keras3 clients-fit clients-requests clients-requests-keras3 --out $$out --library build/libclients_ops.so; status=$$?; \
	$(CLIENTS_VENV)/bin/python -m benchmarks report $$out; exit $$status

soak: $(VENV)/.installed ## Run the long checks: many threads, a million calls, every kernel's memory, hostile models, killed trainings, all cases of the tests
	$(BIN)/python -m tests.soak

docs: $(DOCS_VENV)/.installed ## Build the site of the documentation, build/site
	$(DOCS_VENV)/bin/python docs/pages.py build/pages
	$(DOCS_VENV)/bin/mkdocs build --quiet --strict --config-file docs/mkdocs.yml

# URL is where the files of the repository are to be seen, for links of the page on an index.
release: $(VENV)/.installed ## Build and try what is published, with TensorFlow old and new; upload nothing
	$(BIN)/python -m tests.release $(if $(URL),--url $(URL))

lint: $(VENV)/.installed ## Run ruff, the check of words in prose, and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.words
	$(BIN)/mypy

clean: ## Remove the environments and everything generated
	rm -rf $(VENV) $(OLDEST_VENV) $(NEXT_VENV) $(CLIENTS_VENV) $(DOCS_VENV) .demo .zoo build dist *.egg-info examples/native/build
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks fusion modelzoo tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call install,environment,python,requirements): an environment that works is updated in place.
define install
	@test -n "$(2)" || { echo "No suitable Python with venv found; name one: make PYTHON=..." >&2; exit 1; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(2) -m venv --clear $(1)
	@echo "Installing into $(1) (TensorFlow is large: one to five minutes)"
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(3)
	@touch $@
endef

$(VENV)/.installed: setup.cfg pyproject.toml
	$(call install,$(VENV),$(PYTHON),)

$(CLIENTS_VENV)/.installed: setup.cfg pyproject.toml Makefile
	$(call install,$(CLIENTS_VENV),$(PYTHON),requests)
	@$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(CLIENTS)

# Without the package: its pages are files.
$(DOCS_VENV)/.installed: Makefile
	@test -n "$(PYTHON)" || { echo "No suitable Python with venv found; name one: make docs PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10' 'mkdocs<2'
	@touch $@

# Keras and its nightly build are two packages of the same files.
$(NEXT_VENV)/.installed: setup.cfg pyproject.toml Makefile
	$(call install,$(NEXT_VENV),$(PYTHON),)
	@rm $@
	@$(NEXT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(NEXT_TENSORFLOW)
	@$(NEXT_VENV)/bin/python -m pip uninstall --quiet --yes keras
	@$(NEXT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --pre --no-deps --force-reinstall $(NEXT_KERAS)
	@touch $@

$(OLDEST_VENV)/.installed: setup.cfg pyproject.toml Makefile
	$(call install,$(OLDEST_VENV),$(OLDEST_PYTHON),$(OLDEST))
