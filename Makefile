# Everything lives in .venv; a second call installs nothing again. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
ENV ?= CartPole-v1
OUT ?=
DURATION ?= 30m
RUNS ?= $$(ls -dt runs/*/config.yaml | head -2 | xargs -n 1 dirname)
WORKERS ?=
RANKS ?= auto
JOBS ?= auto
ARGS ?=
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
out = $(if $(OUT),--output-dir $(OUT))
best = $(if $(WORKERS),--num-workers $(WORKERS),--parallel auto)
newest = $$(ls -dt runs/*/config.yaml | head -1 | xargs -n 1 dirname)
TRAIN := train train-a2c train-impala train-parallel train-a2c-parallel train-impala-parallel \
	train-ranks train-a3c
TIMED := $(addsuffix -timed,$(TRAIN))

CASES ?=
PEERS := .venv-peers/bin
PEERS_PIP := $(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install help extras $(TRAIN) $(TIMED) scale bench compare evaluate tensorboard test test-all \
	check bench-speed bench-peers docs clean

install: .venv/.installed ## make .venv and install into it; a second call does nothing

# Each target's line is the comment behind it.
help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):[^#]* ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf '  %-29s%s\n' "$$name" "$$text"; done
	@printf '  %-29s%s\n' $(foreach name,$(TRAIN),$(name)-timed 'as $(name), for DURATION')
	@echo
	@echo 'ENV=CartPole-v1       environment of the train targets, scale and bench'
	@echo 'OUT=DIR               output directory; of evaluate, the run [the newest one in runs/]'
	@echo 'DURATION=30m          of the -timed targets; of each run of bench [2m]'
	@echo 'WORKERS=2, RANKS=2    processes of the parallel targets [what suits the CPUs]'
	@echo 'RUNS="runs/a runs/b"  what compare compares [the two newest]'
	@echo 'JOBS=0                processes of test and test-all [one per CPU]; 0: none beside'
	@echo 'ARGS="--seed 3"       more flags, for whatever the target runs: paceline, tensorboard,'
	@echo '                      pytest, mypy, mkdocs, the benchmark of peers'

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

extras: .venv/.installed-extras ## install every suite of environments

.venv/.installed-dev: .venv/.installed-extras
	@$(PIP) -e '.[dev]'
	@touch $@

train: install ## train PPO in one process, and evaluate
train-a2c: install ## train A2C in one process
train-impala: install ## train IMPALA in one process
train-parallel: install ## train PPO with the processes that suit it best, or WORKERS
train-a2c-parallel: install ## train A2C with the processes that suit it best, or WORKERS
train-impala-parallel: install ## train IMPALA with the processes that suit it best, or WORKERS
train-ranks: install ## train PPO with data-parallel ranks (DD-PPO)
train-a3c: install ## train A3C; its learners are its workers

train train-parallel train-ranks: algo = ppo
train-a2c train-a2c-parallel: algo = a2c
train-impala train-impala-parallel: algo = impala
train-a3c: algo = a3c
train-parallel train-a2c-parallel train-impala-parallel: way = $(best)
train-a3c: way = --num-workers $(or $(WORKERS),auto)
train-ranks: way = --ranks $(RANKS)

$(TRAIN):
	$(BIN)/paceline train --algo $(algo) --env-id $(ENV) $(out) $(way) $(LIMIT) $(ARGS)

$(TIMED): %-timed: install
	@$(MAKE) --no-print-directory $* LIMIT='--duration $(DURATION)'

scale: install ## measure what ranks gain on this machine: tables and a plot
	$(BIN)/paceline scale --ranks 1,2 --env-id $(ENV) \
		--output-dir $(or $(OUT),runs/scale-$(shell date +%Y%m%d-%H%M%S)) $(ARGS)

bench: DURATION = 2m
bench: install ## every algorithm in every way, DURATION each: tables, a plot and a page
	$(BIN)/paceline bench --env-id $(ENV) --duration $(DURATION) $(out) $(ARGS)

compare: install ## compare the two newest runs, or RUNS
	$(BIN)/paceline compare $(RUNS) $(out) $(ARGS)

evaluate: install ## evaluate the newest run over 100 episodes, or the one in OUT
	$(BIN)/paceline eval $(or $(OUT),$(newest)) --episodes 100 $(ARGS)

tensorboard: install ## show the curves of all runs
	$(BIN)/tensorboard --logdir runs $(ARGS)

PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: .venv/.installed-dev ## the tests, without the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

test-all: .venv/.installed-dev ## all tests
	$(PYTEST) $(ARGS)

check: .venv/.installed-dev ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(ARGS)

bench-speed: .venv/.installed-dev ## what is claimed of speed, measured anew
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

bench-peers: .venv/.installed-dev .venv-peers/.installed ## speed against other libraries
	$(BIN)/python benchmarks/peers/run.py $(if $(CASES),--cases $(CASES)) $(ARGS)
	$(BIN)/python benchmarks/tables.py

.venv/.installed-docs: .venv/.installed
	@$(PIP) -e '.[docs]'
	@touch $@

docs: .venv/.installed-docs ## the documentation as pages, in site/
	$(BIN)/python docs/generate.py --check
	$(BIN)/mkdocs build --strict $(ARGS)

clean: ## remove .venv and .venv-peers
	rm -rf .venv .venv-peers
