# Everything lives in .venv; a second call installs nothing again.
PYTHON ?= python3
BIN := .venv/bin
ENV ?= CartPole-v1
OUT ?=
DURATION ?= 30m
RUNS ?= $$(ls -dt runs/*/config.yaml | head -2 | xargs -n 1 dirname)
WORKERS ?= auto
RANKS ?= auto
JOBS ?= auto
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
out = $(if $(OUT),--output-dir $(OUT))
train_args = --algo $(1) --env-id $(ENV) $(out)
TRAIN := train train-a2c train-impala train-parallel train-a2c-parallel train-impala-parallel \
	train-ranks train-a3c
TIMED := $(addsuffix -timed,$(TRAIN))

CASES ?=
PEERS := .venv-peers/bin
PEERS_PIP := $(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install extras $(TRAIN) $(TIMED) scale bench compare evaluate test test-all check bench-speed \
	bench-peers docs tensorboard clean

install: .venv/.installed

# torch first and pinned: an open range would pull a build with gigabytes of CUDA.
.venv/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once, a few minutes)"
	@$(PIP) $$(grep '^torch==' constraints.txt)
	@$(PIP) -e .
	@touch $@

# Every suite of environments. What Procgen asks for would replace numpy by an old one.
.venv/.installed-extras: .venv/.installed
	@echo "installing the suites of environments (once)"
	@$(PIP) -e '.[suites]'
	@$(PIP) --no-deps procgen-mirror==0.10.7 gym3==0.3.3 || \
		echo "Procgen has no build for this machine, and is left out"
	@touch $@

extras: .venv/.installed-extras

.venv/.installed-dev: .venv/.installed-extras
	@$(PIP) -e '.[dev]'
	@touch $@

# In one process; with as many workers or ranks as there are CPUs, or WORKERS=4, RANKS=2; and each
# of them with -timed for DURATION=30m. A3C's learners are its workers.
train: ARGS = $(call train_args,ppo)
train-a2c: ARGS = $(call train_args,a2c)
train-impala: ARGS = $(call train_args,impala)
train-parallel: ARGS = $(call train_args,ppo) --num-workers $(WORKERS)
train-a2c-parallel: ARGS = $(call train_args,a2c) --num-workers $(WORKERS)
train-impala-parallel: ARGS = $(call train_args,impala) --num-workers $(WORKERS)
train-ranks: ARGS = $(call train_args,ppo) --ranks $(RANKS)
train-a3c: ARGS = $(call train_args,a3c) --num-workers $(WORKERS)

$(TRAIN): install
	$(BIN)/paceline train $(ARGS) $(LIMIT)

$(TIMED): %-timed: install
	@$(MAKE) --no-print-directory $* LIMIT='--duration $(DURATION)'

# What ranks gain on this machine: tables and a plot in OUT.
scale: install
	$(BIN)/paceline scale --ranks 1,2 --env-id $(ENV) --output-dir $(or $(OUT),runs/scale-$(shell date +%Y%m%d-%H%M%S))

# Every algorithm in every way, DURATION each: tables, a plot and a page in OUT.
bench: DURATION = 2m
bench: install
	$(BIN)/paceline bench --env-id $(ENV) --duration $(DURATION) $(out)

# The two newest runs, or those that RUNS names: RUNS="runs/one runs/other".
compare: install
	$(BIN)/paceline compare $(RUNS) $(out)

evaluate: install
	$(BIN)/paceline eval $(or $(OUT),$$(ls -dt runs/*/config.yaml | head -1 | xargs -n 1 dirname)) --episodes 100

# One process of tests per core; JOBS=0 runs them in one.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: .venv/.installed-dev
	$(PYTEST) -m "not slow"

test-all: .venv/.installed-dev
	$(PYTEST)

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What is claimed of speed, measured anew.
bench-speed: .venv/.installed-dev
	$(BIN)/python benchmarks/ppo_speed.py
	$(BIN)/python benchmarks/env_share.py --env-id CartPole-v1 --num-envs 8
	$(BIN)/python benchmarks/env_share.py --env-id LunarLander-v3 --num-envs 16
	$(BIN)/python benchmarks/parallel.py worker
	$(BIN)/python benchmarks/parallel.py async
	$(BIN)/python benchmarks/parallel.py rollout --env-id LunarLander-v3
	$(BIN)/python benchmarks/parallel.py rollout --env-id HalfCheetah-v5
	$(BIN)/python benchmarks/parallel.py train --algo ppo
	$(BIN)/python benchmarks/parallel.py train --algo impala

# Other libraries live in an environment of their own, and never meet the product's dependencies.
.venv-peers/.installed: benchmarks/peers/requirements.txt constraints.txt
	@test -x $(PEERS)/python || $(PYTHON) -m venv .venv-peers
	@echo "installing the peers into .venv-peers (once, a few minutes)"
	@$(PEERS_PIP) $$(grep '^torch==' constraints.txt)
	@$(PEERS_PIP) -r benchmarks/peers/requirements.txt
	@touch $@

bench-peers: .venv/.installed-dev .venv-peers/.installed
	$(BIN)/python benchmarks/peers/run.py $(if $(CASES),--cases $(CASES))
	$(BIN)/python benchmarks/tables.py

.venv/.installed-docs: .venv/.installed
	@$(PIP) -e '.[docs]'
	@touch $@

docs: .venv/.installed-docs
	$(BIN)/python docs/generate.py --check
	$(BIN)/mkdocs build --strict

tensorboard: install
	$(BIN)/tensorboard --logdir runs

clean:
	rm -rf .venv .venv-peers
