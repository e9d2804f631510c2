# Commands for developers. On a new machine, `make train` installs segtrain and trains on generated street scenes, and
# `make test` installs it and runs the tests.
PYTHON ?= python3
VENV ?= .venv
# The first Python 3.10 that really runs. A pyenv shim on PATH does not run if its version is not selected.
OLD_PYTHON ?= $(shell \
	for python in python3.10 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.10*/bin/python; do \
		"$$python" -c 'import ensurepip, venv' 2>/dev/null && echo "$$python" && exit; \
	done; \
	echo "no working Python 3.10 found, $(PYTHON) takes its place (or give OLD_PYTHON=...)" >&2; echo $(PYTHON))
OLD_VENV ?= .venv-oldest
# requirements.lock has releases that need Python 3.11. For an older Python, pip chooses releases by pyproject.toml.
LOCK := $(shell $(PYTHON) -c 'import sys; print("-c requirements.lock" if sys.version_info >= (3, 11) else "")')

# Packages that the native decoder needs. Without it, other packages decode images, with more CPU time per image.
NATIVE := $(wildcard segtrain/data/pixels/native/*.cpp segtrain/data/pixels/native/*.h) setup.py
NATIVE_PACKAGES := g++ libjpeg-dev libdeflate-dev
HAS_LIBRARIES := printf '\#include <stdio.h>\n\#include <jpeglib.h>\n\#include <libdeflate.h>\n' | c++ -E -x c++ - >/dev/null 2>&1

# ParallelCluster needs its own environment: its dependencies conflict with those of segtrain.
CLUSTERS_VENV ?= .venv-clusters
CLUSTERS := aws-parallelcluster==3.16.1 cfn-lint>=1

.PHONY: libraries slurm install train gpu test test-core test-oldest test-planted test-long test-slurm test-ray test-clusters lint lock docs

libraries:
	@$(HAS_LIBRARIES) || if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo 'installing $(NATIVE_PACKAGES) for the native decoder'; \
		apt-get install -y -qq $(NATIVE_PACKAGES) >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get install -y -qq $(NATIVE_PACKAGES); } >/dev/null 2>&1 || true; fi
	@$(HAS_LIBRARIES) || echo 'going on without the native decoder (it needs: $(NATIVE_PACKAGES)): images take more CPU'

# The tests start their own Slurm, so the system's daemons need not run.
SLURM_PACKAGES := slurmctld slurmd slurm-client munge
HAS_SLURM := command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v srun >/dev/null && command -v munged >/dev/null
slurm:
	@$(HAS_SLURM) || if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo 'installing $(SLURM_PACKAGES) for the tests on a real Slurm'; \
		apt-get install -y -qq --no-install-recommends $(SLURM_PACKAGES) >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SLURM_PACKAGES); } >/dev/null 2>&1 || true; fi
	@$(HAS_SLURM) || echo 'going on without the tests on a real Slurm (they need root and: $(SLURM_PACKAGES))'

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml requirements.lock $(NATIVE) | libraries
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet $(LOCK) -e '.[dev]'
	touch $@

train: install
	$(VENV)/bin/segtrain train configs/scenes.yaml
	@echo 'for these commands: . $(VENV)/bin/activate'

# Correctness, then speed, on this machine's GPU (docs/gpu-bench.md). Installs nothing and needs no network, because GPU
# machines often have none, and a torch of their own.
GPU_PYTHON ?= $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,$(PYTHON))
gpu:
	$(GPU_PYTHON) bench/gpu.py $(GPU)

test: install slurm
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal

# The tests of the core, in an installation without the platforms and the launcher.
test-core: install
	$(VENV)/bin/python tests/kit/core_alone.py -n 2 --dist worksteal

# Whole runs in buckets that are killed or lose the connection, and a rehearsal of bench/gpu.py.
test-long: install
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal --timeout=1800 -m long

# Jobs on a real Slurm of two nodes that are stopped, preempted, killed, or lose a node. The weights must be the same.
test-slurm: install slurm
	$(VENV)/bin/python -m pytest --timeout=1800 -m slurm

# Whole jobs on a real Ray of two nodes, as network namespaces where the kernel allows that.
RAY := ray[data,train]==2.60.0
test-ray: install
	$(VENV)/bin/pip install --quiet '$(RAY)'
	$(VENV)/bin/python -m pytest -rs --timeout=1800 -m ray

# Real runs with a planted bottleneck. Their diagnosis depends on real time, so they run one at a time.
test-planted: install
	$(VENV)/bin/python -m pytest --timeout=1800 -m planted

# Checks the recipes in configs/clusters with ParallelCluster's own schema.
test-clusters: install $(CLUSTERS_VENV)/.installed
	$(VENV)/bin/python -m pytest -rs -m '' tests/platforms/test_parallelcluster.py
$(CLUSTERS_VENV)/.installed: Makefile
	test -x $(CLUSTERS_VENV)/bin/python || $(PYTHON) -m venv $(CLUSTERS_VENV)
	$(CLUSTERS_VENV)/bin/pip install --quiet $(foreach package,$(CLUSTERS),'$(package)')
	touch $@

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python bench/size.py

# Builds the pages as a site, in site/. A broken link, or a page that is not in the navigation, is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# Runs the quick suite with the oldest supported releases, in a separate environment.
test-oldest: $(OLD_VENV)/.installed
	$(OLD_VENV)/bin/python -m pytest -n 2 --dist worksteal -m 'not slow and not planted and not long and not slurm and not ray'
$(OLD_VENV)/.installed: pyproject.toml requirements-oldest.txt $(NATIVE) | libraries
	test -x $(OLD_VENV)/bin/python || $(OLD_PYTHON) -m venv $(OLD_VENV)
	$(OLD_VENV)/bin/pip install --quiet -r requirements-oldest.txt
	$(OLD_VENV)/bin/pip install --quiet --no-deps -e .
	touch $@

lock: install
	$(VENV)/bin/pip freeze --exclude-editable --exclude segtrain | sort -f > requirements.lock
