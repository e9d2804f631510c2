# make train: a fresh machine trains on generated street scenes. make test: a fresh machine passes the tests.
PYTHON ?= python3
VENV ?= .venv
# The first Python 3.10 that really runs: a shim of pyenv on the path may name one that is not selected.
OLD_PYTHON ?= $(shell \
	for python in python3.10 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.10*/bin/python; do \
		"$$python" -c 'import ensurepip, venv' 2>/dev/null && echo "$$python" && exit; \
	done; \
	echo "no working Python 3.10 found, $(PYTHON) takes its place (or give OLD_PYTHON=...)" >&2; echo $(PYTHON))
OLD_VENV ?= .venv-oldest
# The lock names today's newest releases, which need Python 3.11; an older Python resolves by pyproject.toml alone.
LOCK := $(shell $(PYTHON) -c 'import sys; print("-c requirements.lock" if sys.version_info >= (3, 11) else "")')

# The native decoder is built where these are; without them the package works through others, with more CPU for each image.
NATIVE := $(wildcard segtrain/data/pixels/native/*.cpp segtrain/data/pixels/native/*.h) setup.py
NATIVE_PACKAGES := g++ libjpeg-dev libdeflate-dev
HAS_LIBRARIES := printf '\#include <stdio.h>\n\#include <jpeglib.h>\n\#include <libdeflate.h>\n' | c++ -E -x c++ - >/dev/null 2>&1

.PHONY: libraries install train test test-oldest test-planted lint lock docs

libraries:
	@$(HAS_LIBRARIES) || if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo 'installing $(NATIVE_PACKAGES) for the native decoder'; \
		apt-get install -y -qq $(NATIVE_PACKAGES) >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get install -y -qq $(NATIVE_PACKAGES); } >/dev/null 2>&1 || true; fi
	@$(HAS_LIBRARIES) || echo 'going on without the native decoder (it needs: $(NATIVE_PACKAGES)): images take more CPU'

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml requirements.lock $(NATIVE) | libraries
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet $(LOCK) -e '.[dev]'
	touch $@

train: install
	$(VENV)/bin/segtrain train configs/scenes.yaml
	@echo 'for these commands: . $(VENV)/bin/activate'

test: install
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal

# Real runs with a planted bottleneck: what the diagnosis says of them depends on real time, so one run at a time.
test-planted: install
	$(VENV)/bin/python -m pytest -m planted

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The pages as a site, in site/. A link that leads nowhere or a page without a place in the navigation is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The quick suite on the oldest releases that are supported, in an environment of their own.
test-oldest: $(OLD_VENV)/.installed
	$(OLD_VENV)/bin/python -m pytest -n 2 --dist worksteal -m 'not slow and not planted'
$(OLD_VENV)/.installed: pyproject.toml requirements-oldest.txt $(NATIVE) | libraries
	test -x $(OLD_VENV)/bin/python || $(OLD_PYTHON) -m venv $(OLD_VENV)
	$(OLD_VENV)/bin/pip install --quiet -r requirements-oldest.txt
	$(OLD_VENV)/bin/pip install --quiet --no-deps -e .
	touch $@

lock: install
	$(VENV)/bin/pip freeze --exclude-editable --exclude segtrain | sort -f > requirements.lock
