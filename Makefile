# Everything that a checkout can do; plain `make` lists it.  Nothing is needed beforehand but Python 3.11, Java 17 and
# make itself, and nothing is installed outside this folder.  All paths are relative, so it may be called anything.

.PHONY: help setup run test simulate exhaustive bench lint check clean jars
.DEFAULT_GOAL := help
# Each step needs the one before; with -j, they would still come one at a time.
.NOTPARALLEL:

# The first Python that can make our environment; if there is none, prerequisites.py says what is wrong with the one there is.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ command -v "$$python"; exit; }; done; echo python3)

# What another environment, or another Spark, would have us use instead of ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV __PYVENV_LAUNCHER__ PIP_TARGET PIP_PREFIX
unexport SPARK_HOME SPARK_CONF_DIR SPARK_REMOTE PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

OURS := .venv/bin/python
# Python compiles what it imports; all that there is would take half a minute.
PIP := $(OURS) -m pip install --no-compile
OR_SAY_SO := || { echo "setup: pip could not install all of it (see above); check the network, then start again." >&2; exit 1; }

# Three processes, for much of a test is waiting; which tests stay together, and why, is in conftest.py.
SIDE_BY_SIDE := --numprocesses 3 --dist loadfile --no-loadscope-reorder

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s%s\n", $$1, $$2 }' Makefile

setup: jars ## all that `make run` needs, without running it (about 3 minutes and 1.5 GB, once)
	@echo "ready; next: make run"

run: jars ## the whole system on this machine, and a story on it; options by ARGS="..."
	@exec .venv/bin/wakeroll demo $(ARGS)

test: .venv/.installed-dev jars ## every test, those with Spark and a broker too; a choice by ARGS="tests/unit -k lag"
	@exec $(OURS) -m pytest $(SIDE_BY_SIDE) $(ARGS)

simulate: .venv/.installed-dev ## worlds made from seeds, in which everything goes wrong: SEEDS=1000
	@exec $(OURS) -m tests.simulation.simulate --seeds $(or $(SEEDS),1000)

exhaustive: .venv/.installed-dev ## every interleaving in small worlds, up to a depth: some minutes
	@exec $(OURS) -m tests.exhaustive.explore --long --jobs 2 --heal-every 4 $(ARGS)

bench: .venv/.installed jars ## what things cost on this machine, beside Kafka's own; makes docs/performance.md
	@exec $(OURS) -m bench $(ARGS)

lint: .venv/.installed-dev ## style and types
	$(OURS) -m ruff check .
	$(OURS) -m ruff format --check .
	$(OURS) -m mypy

check: lint ## what must hold before a commit: style, types, quick tests
	$(OURS) -m pytest -q $(SIDE_BY_SIDE) tests/unit tests/scenarios tests/architecture

clean: ## remove the environment, JARs, data and checkpoints of this checkout
	rm -rf .venv .wakeroll .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	rm -rf deploy/jars/spark deploy/jars/broker deploy/jars/.ivy deploy/jars/.new deploy/jars/.lock deploy/jars/.complete* deploy/jars/.classes*
	rm -rf spark-warehouse metastore_db derby.log
	find checkpoints -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

jars: .venv/.installed
	@$(OURS) -m pipeline.spark.jars
	@$(OURS) -m pipeline.spark.class_data_sharing

# An environment knows by heart where it is and which Python made it: one that was moved, or has lost its Python, is made
# anew.  An interrupted pip needs no such care; a package counts from the moment that its last file is there.
ifneq ($(shell test -x $(OURS) && cat .venv/.made 2>/dev/null),$(CURDIR))
.PHONY: .venv/.made
endif

.venv/.made:
	@rm -rf .venv
	@command -v "$(PYTHON)" >/dev/null || { echo "python: there is no $(PYTHON); install Python 3.11 or newer." >&2; exit 1; }
	@"$(PYTHON)" pipeline/prerequisites.py
	@echo "Setting up .venv and the JARs: about 3 minutes and 1.5 GB, once.  Interrupted, it goes on the next time."
	"$(PYTHON)" -m venv .venv
	@# Older ones know no --group.
	@$(PIP) --upgrade 'pip>=25.1' $(OR_SAY_SO)
	@pwd -P > $@

.venv/.installed: .venv/.made pyproject.toml constraints.txt
	@$(PIP) --constraint constraints.txt --editable '.[spark]' $(OR_SAY_SO)
	@touch $@

.venv/.installed-dev: .venv/.installed
	@$(PIP) --constraint constraints.txt --editable '.[quality,sql]' --group dev $(OR_SAY_SO)
	@touch $@
