# Everything that can be done with a fresh clone. Only python3 (3.11+), make and git are needed.
#
#   make demo             a training loop that logs, and what there is to see of it
#   make examples         a network, molecular dynamics, an Ising model, fits of spectra, and five seeds at once
#   make test             the whole test suite
#   make lint             format, lint and type checks
#   make test-trackers    wandb, TensorBoard, MLflow and Trackio, which are installed for that
#   make test-ecosystem   flax, equinox, diffrax, blackjax, numpyro and others, on the newest JAX
#   make test-browser     the page of `spoolax view`, in Chromium, which is installed for that
#   make test-accelerators  what programs are compiled to for GPUs and TPUs, without having any
#   make test-jax-newest  the suite on the newest JAX, which needs a newer python
#   make test-jax-oldest  the suite on the oldest supported JAX
#   make test-crash       stores that are killed and disks that fill up, many times over
#   make fuzz             thousands of random programs (N=2000)
#   make bench            the benchmarks, with goals; make bench-tap and others for one part
#
# PYTEST_ARGS go to pytest, as in `make test PYTEST_ARGS="-k vmap"`.

PYTHON ?= python3
OLDEST_JAX := 0.10.0
PYTEST_ARGS ?=
N ?= 2000

# Each worker begins with a part of the suite in order, so that references which are computed once
# per process are of use, and takes over from the other when it is done.
PARALLEL := -n auto --dist worksteal

# The newest python that works, for the newest JAX: on the path, or under pyenv.
NEWEST_PYTHON := $(shell for v in 3.13 3.12; do \
	for python in python$$v $$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$v*/bin/python 2>/dev/null); do \
	$$python -c 'import venv' 2>/dev/null && echo $$python && break 2; done; done)

.PHONY: demo examples test test-trackers test-ecosystem test-browser test-accelerators lint format \
	screenshots \
	test-jax-newest test-jax-oldest \
	test-crash bench fuzz constraints clean

# An environment is made once, and again when what goes into it has changed.
define environment
$(1)/.done: pyproject.toml constraints.txt
	@echo "Installing what this needs into $(1), which takes up to a minute ..."
	$(2) -m venv --clear $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(1)/bin/uv pip install --quiet --python $(1)/bin/python $(3)
	@touch $$@
endef

PINNED := --constraint constraints.txt --group dev -e '.[all]'
COMPILERS := --constraint constraints.txt --group tests --group accelerators -e '.[progress]'
TRACKERS := --constraint constraints.txt --group dev -e '.[all,trackers]'
$(eval $(call environment,.venv,$(PYTHON),$(PINNED)))
$(eval $(call environment,.venv-newest,$(NEWEST_PYTHON),$(PINNED)))
$(eval $(call environment,.venv-oldest,$(PYTHON),-e '.[all]' --group dev 'jax==$(OLDEST_JAX)' 'jaxlib==$(OLDEST_JAX)'))
$(eval $(call environment,.venv-trackers,$(PYTHON),$(TRACKERS)))
$(eval $(call environment,.venv-browser,$(PYTHON),$(PINNED) --group browser))
$(eval $(call environment,.venv-ecosystem,$(or $(NEWEST_PYTHON),$(PYTHON)),$(PINNED) --group ecosystem))
$(eval $(call environment,.venv-accelerators,$(or $(NEWEST_PYTHON),$(PYTHON)),$(COMPILERS)))
$(eval $(call environment,.venv-bench,$(or $(NEWEST_PYTHON),$(PYTHON)),$(TRACKERS) --group bench))

demo: .venv/.done
	.venv/bin/spoolax demo

examples: .venv/.done .venv-trackers/.done
	.venv/bin/python examples/train.py
	.venv/bin/python examples/lennard_jones.py
	.venv/bin/python examples/ising.py
	.venv/bin/python examples/spectrum.py
	.venv-trackers/bin/python examples/seeds.py

test: .venv/.done
	.venv/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-trackers: .venv-trackers/.done
	.venv-trackers/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS) tests/trackers docs/trackers

test-ecosystem: .venv-ecosystem/.done
	.venv-ecosystem/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS) tests/ecosystem

# Debian's packages, if we may install them; anybody else has to have it.
chromium:
	@command -v chromium chromium-browser > /dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } \
		|| { echo "There is no Chromium, and it could not be installed: the page was NOT tested."; exit 1; }

test-browser: .venv-browser/.done chromium
	.venv-browser/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS) tests/page

screenshots: .venv-browser/.done chromium
	.venv-browser/bin/python tests/page/screenshots.py

test-accelerators: .venv-accelerators/.done
	.venv-accelerators/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS) tests/platforms

lint: .venv/.done
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

format: .venv/.done
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

ifeq ($(NEWEST_PYTHON),)
test-jax-newest:
	@echo "No python 3.12 or 3.13 was found on the path or under pyenv:"
	@echo "the newest JAX needs one, so it was NOT tested."
else
test-jax-newest: .venv-newest/.done
	.venv-newest/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)
endif

test-jax-oldest: .venv-oldest/.done
	.venv-oldest/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

bench: .venv-bench/.done
	.venv-bench/bin/python -m benchmarks

bench-%: .venv-bench/.done
	.venv-bench/bin/python -m benchmarks $*

test-crash: .venv/.done
	SPOOLAX_CRASH=1 .venv/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS) tests/storage

fuzz: .venv/.done
	SPOOLAX_FUZZ=$(N) .venv/bin/python -m pytest $(PARALLEL) -q $(PYTEST_ARGS) tests/fuzz

# Pins for all supported pythons at once, the newest with UPGRADE=--upgrade; without the hosts that a lock file would record.
constraints: .venv/.done
	.venv/bin/uv pip compile --quiet --universal $(UPGRADE) --no-header --no-annotate \
		--no-emit-index-url --python-version 3.11 --all-extras --group dev --group bench --group ecosystem --group accelerators --group browser \
		pyproject.toml -o constraints.txt

clean:
	rm -rf .venv .venv-browser .venv-newest .venv-oldest .venv-trackers .venv-ecosystem .venv-accelerators .venv-bench
