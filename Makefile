# The tasks of a checkout; `make` without a target lists them.  They need only Python 3.11, Java 17 and make, and install
# nothing outside this folder.  All paths are relative, so the folder may have any name.

.PHONY: help setup run test test-operate test-shards operate-record test-container test-kube image simulate exhaustive bench soak screenshots manifests lint lint-github check coverage audit docs site dist release clean jars
.DEFAULT_GOAL := help
# Each step needs the previous one, so -j has no effect.
.NOTPARALLEL:

# The first Python that can create the environment; if none can, prerequisites.py prints what `python3` lacks.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ command -v "$$python"; exit; }; done; echo python3)

# These variables belong to another environment or another Spark, and would replace parts of ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV __PYVENV_LAUNCHER__ PIP_TARGET PIP_PREFIX
# Without it, Python compiles each module once; with it, each of the commands that tests start, a second or more.
unexport PYTHONDONTWRITEBYTECODE
unexport SPARK_HOME SPARK_CONF_DIR SPARK_REMOTE PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

OURS := .venv/bin/python
# The versions that are tested; with /dev/null, pip installs the newest ones.
CONSTRAINTS ?= constraints.txt
# Python compiles each module at its first import; compiling all of them here would take half a minute.
PIP := $(OURS) -m pip install --no-compile
OR_SAY_SO := || { echo "setup: pip did not install every package (see above); check the network, then repeat the command." >&2; exit 1; }

# Five processes on two cores, because most tests wait most of the time; two for real parts of a platform, which are
# several processes themselves, and three for quick tests, which compute. Each starts one broker, for all of its files
# that need one; one of the five starts a Spark (WITH_SPARK in conftest.py).
SIDE_BY_SIDE := --numprocesses 5 --dist loadfile --no-loadscope-reorder

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s%s\n", $$1, $$2 }' Makefile

setup: jars ## install what `make run` needs (about 3 minutes and 1.5 GB, once)
	@echo "ready; next: make run"

run: jars ## start the whole system on this machine and run the demo; options: ARGS="..."
	@exec .venv/bin/wakeroll demo $(ARGS)

test: .venv/.installed-dev jars ## run all tests, including those with Spark and a broker; selection: ARGS="tests/unit -k lag"
	@exec $(OURS) -m pytest $(SIDE_BY_SIDE) -m "not operate and not container and not kube" $(ARGS)

test-operate: .venv/.installed-dev jars ## test with real parts of a platform: TLS broker, S3 server, clusters (minutes); selection: ARGS="..."
	@.venv/bin/wakeroll jars --quiet spark s3 kafka-3.9.2 kafka-4.0.1 kafka-4.4.0
	@exec $(OURS) -m pytest $(SIDE_BY_SIDE) --numprocesses 2 -m operate $(ARGS)

test-shards: .venv/.installed-dev jars ## run those shards of the operate tests that were green longest ago: SECONDS=1800
	@.venv/bin/wakeroll jars --quiet spark s3 kafka-3.9.2 kafka-4.0.1 kafka-4.4.0
	@exec $(OURS) -m tests.support.operate_shards --seconds $(or $(SECONDS),1800)

operate-record: .venv/.installed-dev ## name the shards of the operate tests that are red, or not green in four runs of CI
	@exec $(OURS) -m tests.support.operate_shards

image: ## build the container image wakeroll:VERSION from the last commit, by podman, buildah or docker; options: ARGS="..."
	@exec deploy/container/build.sh $(ARGS)

test-container: .venv/.installed-dev jars ## build the image and run each role in it; needs podman (some minutes)
	@exec $(OURS) -m pytest -m container $(ARGS)

test-kube: .venv/.installed-dev ## test the manifests on an API server of Kubernetes: deploy/kubernetes/README.md
	@exec $(OURS) -m pytest -m kube tests/deployment $(ARGS)

simulate: .venv/.installed-dev ## run simulations with faults, one per seed; number (default 1000): SEEDS=1000
	@exec $(OURS) -m tests.simulation.simulate --seeds $(or $(SEEDS),1000)

exhaustive: .venv/.installed-dev ## check every interleaving of events in small worlds, up to a depth (some minutes)
	@exec $(OURS) -m tests.exhaustive.explore --long --jobs 2 --heal-every 4 $(ARGS)

bench: .venv/.installed jars ## measure costs on this machine, compared with Kafka's; writes docs/performance.md; another: ARGS="NAME"
	@exec $(OURS) -m bench $(or $(ARGS),core)

soak: .venv/.installed-dev jars ## run the whole system with 100 consumers and a fault every 30 s, for 5 minutes; longer: ARGS="--minutes 120"
	@exec $(OURS) -m bench soak $(ARGS)

screenshots: .venv/.installed-dev ## make the pictures of docs/img from the tables of make run; needs Chromium
	@exec $(OURS) docs/make_screenshots.py

manifests: .venv/.installed-dev ## render the manifests of deploy/kubernetes; needs kubectl
	@exec $(OURS) deploy/kubernetes/render.py

lint: .venv/.installed-dev ## check style and types
	$(OURS) -m ruff check .
	$(OURS) -m ruff format --check .
	$(OURS) -m mypy
	@$(MAKE) --no-print-directory lint-github

# GitHub's schemas are part of the package, so this needs no network.
lint-github: .venv/.installed-dev
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[bf]*.yml

check: lint ## check style and types, and run the quick tests, in two minutes; required before a commit
	$(OURS) -m pytest -q $(SIDE_BY_SIDE) --numprocesses 3 -m "not operate and not slow" tests/unit tests/scenarios tests/architecture

coverage: .venv/.installed-dev ## measure the branch coverage by the quick tests; below the floor of pyproject.toml is an error
	@exec $(OURS) -m pytest -q $(SIDE_BY_SIDE) --numprocesses 3 --cov --cov-report=term -m "not operate" tests/unit tests/scenarios $(ARGS)

audit: .venv/.installed .audit/.installed ## write a bill of materials to dist/, look for known vulnerabilities
	@.audit/bin/python deploy/audit.py $(ARGS)

docs: .venv/.installed-dev ## build the site of the documentation into dist/docs; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(OURS) -m mkdocs build
	@echo "the site: dist/docs/index.html"

site: .venv/.installed-dev ## commit the site of this version to the branch gh-pages, beside those of other versions
	@$(OURS) deploy/release.py site

dist: .venv/.installed-dev ## build wheel and sdist of the last commit into dist/, twice, and compare them
	@$(OURS) deploy/release.py dist $(ARGS)

release: .venv/.installed-dev ## make the commit, files, site and tag of a release; pushes nothing: VERSION=0.2.0
	@$(OURS) deploy/release.py prepare "$(VERSION)"
	@$(OURS) deploy/release.py dist
	@$(MAKE) --no-print-directory audit
	@$(OURS) deploy/release.py site
	@$(OURS) deploy/release.py tag

clean: ## delete the environment, JARs, data and checkpoints of this checkout
	rm -rf .venv .audit .wakeroll .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	rm -rf deploy/jars/spark deploy/jars/broker deploy/jars/s3 deploy/jars/.ivy deploy/jars/.new deploy/jars/.lock deploy/jars/.complete* deploy/jars/.compiled deploy/jars/.classes*
	rm -rf deploy/jars/kafka-*/broker deploy/jars/kafka-*/.[a-z]*
	rm -rf spark-warehouse metastore_db derby.log
	find checkpoints -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# ARGS names choices, such as kafka-3.9.2, if `jars` is the goal; otherwise it belongs to the goal that needs the JARs.
jars: .venv/.installed
	@.venv/bin/wakeroll jars --quiet spark broker $(if $(filter jars,$(MAKECMDGOALS)),$(ARGS))
	@$(OURS) -m wakeroll_pipeline.spark.class_data_sharing
	@$(OURS) -m wakeroll_pipeline.local.broker_classes

# An environment contains its own path and that of its Python.  So it is created again if it was moved or its Python is
# gone.  An interrupted pip needs no such check: a package counts as installed only when its last file has been written.
ifneq ($(shell test -x $(OURS) && cat .venv/.made 2>/dev/null),$(CURDIR))
.PHONY: .venv/.made
endif

.venv/.made:
	@rm -rf .venv
	@command -v "$(PYTHON)" >/dev/null || { echo "python: $(PYTHON) not found; install Python 3.11 or newer." >&2; exit 1; }
	@"$(PYTHON)" pipeline/wakeroll_pipeline/prerequisites.py
	@echo "Setting up .venv and the JARs: about 3 minutes and 1.5 GB, once.  If interrupted, the next run continues."
	"$(PYTHON)" -m venv .venv
	@# Older versions of pip have no option --group.
	@$(PIP) --upgrade 'pip>=25.1' $(OR_SAY_SO)
	@pwd -P > $@

.venv/.installed: .venv/.made pyproject.toml constraints.txt
	@$(PIP) --constraint $(CONSTRAINTS) --editable '.[spark,serve]' $(OR_SAY_SO)
	@touch $@

.venv/.installed-dev: .venv/.installed
	@$(PIP) --constraint $(CONSTRAINTS) --editable '.[quality,sql,sql-spark,s3,oidc]' --group dev --group docs $(OR_SAY_SO)
	@touch $@

# An environment of its own: what looks for vulnerabilities is no part of what is looked at.
.audit/.installed: .venv/.made constraints.txt
	@rm -rf .audit
	@$(OURS) -m venv .audit
	@.audit/bin/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) pip-audit cyclonedx-bom $(OR_SAY_SO)
	@touch $@
