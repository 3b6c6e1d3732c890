# The two commands a newcomer runs: `make demo` and `make test`. `make help` lists the rest.
# Everything is installed into .venv and ~/.cache/pagefleet (PAGEFLEET_CACHE); running a target twice is safe.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E)
# The same examples of property tests in every run; `make nightly` draws new ones.
PYTEST := $(BIN)/pytest -q --hypothesis-seed=0
# Parts of the tests side by side (tests/suite/parts.py).
SUITE := env PYTHONPATH=tests $(BIN)/python -m suite.main
# Hundreds of interpreters start: what they compile is stored, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
say = @printf '\033[1m==> %s\033[0m\n' $(1)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints-dev.txt local/bootstrap.sh
	$(call say,"Python environment in $(VENV) (torch comes as the CPU build named in constraints-dev.txt)")
	@bash local/bootstrap.sh $(PYTHON) $(VENV)
	@touch $(STAMP)

.PHONY: venv
venv: $(STAMP) ## make .venv with everything in it

# In `venv` already; here for sources that changed since. Does nothing when the library is newer.
.PHONY: operations
operations: $(STAMP) ## compile the engine's CPU operations and the gateway's filters again where they changed
	@$(BIN)/python -m pagefleet_kernels.compile
	@$(BIN)/python -m pagefleet_gateway.envoy.module.library

# HOGS: so many busy loops run beside the fleet (nightly: HOGS=2 and HOGS=6). Every check and every time limit stays.
.PHONY: demo
demo: $(STAMP) ## a real fleet on this machine doing its main job, then torn down
	$(call say,"make demo: a real one-node Kubernetes; our images; a canary; four rollbacks; a burst (root needed)")
	@$(ROOT) $(BIN)/pagefleet-local demo $(if $(HOGS),--hogs $(HOGS))

.PHONY: up
up: $(STAMP) ## the same fleet, left running for play
	$(call say,"make up: the fleet stays up; make down removes it")
	@$(ROOT) $(BIN)/pagefleet-local fleet

.PHONY: kind
kind: $(STAMP) ## the demo's scenes on a cluster made by kind (needs Docker, kind)
	@$(BIN)/pagefleet-local kind

.PHONY: chart
chart: $(STAMP) ## write charts/pagefleet anew from manifests/ and crds/
	@$(BIN)/python -m pagefleet_local.chart

.PHONY: down
down: $(STAMP) ## remove everything that up or demo made
	@$(ROOT) $(BIN)/pagefleet-local down

.PHONY: images
images: $(STAMP) ## build the production images without Docker
	@$(ROOT) $(BIN)/pagefleet-local images build

.PHONY: format
format: $(STAMP) ## ruff format and fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: check
check: $(STAMP) operations ## ruff, mypy --strict, import-linter, unit, property and contract tests
	$(call say,"ruff")
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	$(call say,"mypy --strict and import-linter; unit and property tests; contract tests: side by side")
	@$(SUITE) static unit contract

.PHONY: test
test: check test-browser cross ## everything: check, browser, kernels, engine parity, the real control plane, the real node
	$(call say,"a real node; two control planes; kernels and engine; Kubernetes' current CRD server: side by side (root needed)")
	@$(ROOT) $(BIN)/pagefleet-local prepare --no-crd-server
	@$(ROOT) $(SUITE) node plane faults engine crd

# Offline: nothing of the site is loaded from elsewhere. `make check` builds it too (tests/unit/docs/test_docs_site.py).
.PHONY: docs
docs: $(STAMP) ## the documentation as a web site in build/site (warnings are errors)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --clean -f docs/site/mkdocs.yml
	$(call say,"build/site/index.html")

.PHONY: test-browser
test-browser: $(STAMP) ## the status page in a real headless Chromium (installs Debian's; screenshots in build/)
	@command -v chromium chromedriver >/dev/null || { $(ROOT) apt-get update -qq && \
	  $(ROOT) apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core; }
	$(call say,"status page in headless Chromium")
	@$(PYTEST) tests/browser

# The tests compile the engine's CPU operations for ARM and run them in an emulated process.
.PHONY: cross
cross: ## install Debian's compiler and emulator for ARM where they are missing
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { $(ROOT) apt-get update -qq && \
	  $(ROOT) apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; }

.PHONY: test-vllm
test-vllm: $(STAMP) ## a real vLLM on the real node: canary to our engine and back, autoscaling (root; minutes, a 4 GB image)
	@$(ROOT) $(BIN)/pytest -q tests/vllm

.PHONY: campaign
campaign: $(STAMP) ## every fault of the reliability table on a real control plane (resumable; root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.campaign --private campaign --report docs/reliability.md

.PHONY: proofs
proofs: $(STAMP) ## the tests of the reliability table's other rows at the campaign's size (hours; root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.proofs

.PHONY: idle
idle: $(STAMP) ## ten quiet minutes: what an idle operator writes (root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.idle

.PHONY: soak
soak: $(STAMP) ## memory of operator, gateway and engine under load (PAGEFLEET_SOAK minutes, 360; root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.soak --minutes $${PAGEFLEET_SOAK:-360}

.PHONY: upgrade
upgrade: $(STAMP) ## an old operator's objects under this one and back (needs git's history; root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.upgrade

.PHONY: flood
flood: $(STAMP) ## a storm of alerts against the operator's webhook, with kills (root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.flood

.PHONY: mutations
mutations: $(STAMP) ## any value in any field of live objects, and put back (root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m faults.mutations

# Resumable; no root and no cluster. MUTATION: options and packages, as in `make mutation MUTATION="rollout --jobs 1"`.
.PHONY: mutation
mutation: $(STAMP) ## which small change of the operator's decisions does no test notice? (an hour)
	@PYTHONPATH=tests $(BIN)/python -m mutation.main $(MUTATION)

# Resumable. NIGHTLY: options, as in `make nightly NIGHTLY="--only soak --only bench --quick"`; `--list` prints the jobs.
.PHONY: nightly
nightly: $(STAMP) operations ## all that `make test` leaves out, with one report (a day; NIGHTLY="--list": what it runs)
	@PYTHONPATH=tests $(BIN)/python -m nightly.main $(NIGHTLY)

.PHONY: reliability
reliability: $(STAMP) ## docs/reliability.md from what the above have kept
	@PYTHONPATH=tests $(BIN)/python -m faults.report

.PHONY: scale
scale: $(STAMP) ## N services (PAGEFLEET_SCALE, 1000) on a real control plane: time, memory, restart, edits (root needed)
	@$(ROOT) env PYTHONPATH=tests $(BIN)/python -m scale.main --services $${PAGEFLEET_SCALE:-1000}

RELEASE := $(VENV)/.release
$(RELEASE): $(STAMP)
	@$(BIN)/python -m pip install -q cyclonedx-bom uv
	@touch $(RELEASE)

.PHONY: lock
lock: $(RELEASE) ## write images/locks anew (TORCH_WHEELS: where torch's CPU build is)
	@UV=$(BIN)/uv bash images/lock.sh

.PHONY: sbom
sbom: $(RELEASE) ## CycloneDX bills of materials of the images, from their locks, in build/sbom
	@mkdir -p build/sbom
	@for lock in images/locks/*.txt; do name=$$(basename $$lock .txt); \
	  $(BIN)/cyclonedx-py requirements $$lock --pyproject pyproject.toml --output-reproducible \
	    -o build/sbom/$$name.cdx.json && echo build/sbom/$$name.cdx.json; done

.PHONY: plugin
plugin: $(STAMP) ## kubectl pagefleet for this machine's platform as krew installs it, in build/plugin (needs a package index)
	@$(BIN)/python -m pagefleet_local.publishing plugin

.PHONY: audit
audit: $(STAMP) ## the locks against advisories on disk (ADVISORIES: a file or folder in the OSV format), offline
	@$(BIN)/python -m pagefleet_local.supplychain $(if $(ADVISORIES),--advisories $(ADVISORIES)) images/locks/*.txt

# Those with kernels; where pytest-xdist is installed, by six processes: most of the time is Triton's compiler's.
KERNEL_TESTS = $(addprefix tests/kernels/test_kernels_,attention.py data.py elementwise.py gemm.py sample.py)
SHARED_OUT = $(shell $(PYTHON) -c 'import importlib.util as util; print("-n 6" * bool(util.find_spec("xdist")))')

.PHONY: test-gpu
test-gpu: ## kernels, engine and their figures on a GPU machine (PYTHON: torch, triton, transformers, pytest; status 2: no GPU)
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or (sys.stderr.write("There is no GPU here: nothing was run.\n"), sys.exit(2))'
	@PYTHONPATH=kernels:tests PAGEFLEET_KERNELS_ON=cuda $(PYTHON) -m pytest -c tests/gpu/pytest.ini $(SHARED_OUT) -q $(KERNEL_TESTS)
	@PYTHONPATH=contract:engine:kernels:tests $(PYTHON) -m pytest -c tests/gpu/pytest.ini $(SHARED_OUT) -q tests/gpu
	@PYTHONPATH=contract:engine:kernels $(PYTHON) bench/kernels_gpu.py --check
	@PYTHONPATH=contract:engine:kernels $(PYTHON) bench/engine_gpu.py --check

.PHONY: clean
clean: ## remove .venv and build products (not the cache)
	rm -rf $(VENV) build dist kernels/pagefleet_kernels/cpu/*.so gateway/pagefleet_gateway/envoy/module/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
