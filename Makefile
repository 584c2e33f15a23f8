# Everything a person runs. Needs Python 3.11+, pip and make; all else comes from pip into .venv.
PYTHON ?= python3
TORCH ?= 2.13.0
PROCESSES ?= $(shell nproc)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := .venv-tools/bin
LOCK = $(TOOLS)/uv pip compile --quiet $(if $(UPGRADE),--upgrade) --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate --no-emit-package wooly --no-emit-package wooly-server

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(STAMP).run: pyproject.toml wooly_server/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@echo "installing torch $(TORCH) and the packages of Wooly into $(VENV): some minutes"
	$(BIN)/pip install torch==$(TORCH)
	PYTHONWARNINGS=ignore $(BIN)/pip install -e '.[client]' -e ./wooly_server scikit-learn
	@touch $@

$(STAMP).dev: $(STAMP).run
	@echo "installing what tests and linters need into $(VENV): some minutes"
	PYTHONWARNINGS=ignore $(BIN)/pip install -e '.[client,dev]' -e ./wooly_server
	-$(BIN)/python -m tests.support.kube.helm
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/npm install --global --prefix $(VENV) --no-fund --no-audit oidc-provider@9.13.3
	@touch $@

setup: $(STAMP).dev ## create .venv with everything that tests and linters need

demo: $(STAMP).run ## two trainings on an embedded stack, then their bill and placement
	bash examples/demo.sh $(BIN)

test: $(STAMP).dev ## the tests, 16 to 35 minutes on 2 cores
	@# bytecode is kept, although the environment may forbid it: hundreds of processes import the same modules
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations 60

test-kube: $(STAMP).dev ## chart and operator on a real Kubernetes API server, built once from Debian's source in a quarter of an hour (docs/how-to/kubernetes.md)
	bash tests/support/kube/build.sh
	$(BIN)/python -m pytest -q -m 'soak or not soak' $(wildcard tests/integration/test_kube*.py tests/integration/test_chart*.py tests/integration/test_operator*.py)

variants: $(STAMP).dev ## more scripts, layouts, back ends, launchers and random programs of what make test tries some of; half an hour
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n 3 --dist loadfile -m variant

mutate: $(STAMP).dev ## sampled faults in the code that must hold, planted one at a time: how many the tests find (docs/mutation.md)
	$(BIN)/python -m tests.mutation --publish

lint: $(STAMP).dev ## ruff, mypy, layers, words of the prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.architecture.prose

census: $(STAMP).dev ## size, import circles, long signatures, private words and repeated code of the tree (docs/census.md)
	$(BIN)/python -m tests.architecture.census

docs: $(STAMP).dev ## the documentation site in site/, from docs/ and the code; fails for a dead link
	$(BIN)/pip install --quiet -e '.[docs]'
	@# not --quiet: it would hide warnings from --strict
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -W ignore -m mkdocs build --strict

bench: $(STAMP).dev ## ratios in one run: torch, NumPy, PoCL, shared devices, memory; results go to docs/*.md
	$(BIN)/pip install --quiet --no-deps rgpu==0.1.1
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.sla
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.allocator --publish
	$(BIN)/python -m benchmarks.recovery --publish
	$(BIN)/python -m benchmarks.dispatch
	$(BIN)/python -m benchmarks.pages --publish
	$(BIN)/python -m benchmarks

bench-against: $(STAMP).dev ## step times beside another revision: make bench-against REV=HEAD~10
	test -n "$(REV)"
	$(BIN)/python -m benchmarks.against $(REV)

bench-cuda: $(STAMP).dev ## step times beside torch on the GPU of this machine; results go to docs/benchmarks-cuda.md
	$(BIN)/python -m benchmarks --backend cuda

models: $(STAMP).dev ## credits of ten language models, scaled, through unmodified scripts; results go to docs/models.md
	$(BIN)/python -m benchmarks.models --publish

kernels: $(STAMP).dev ## the corpus of CUDA kernels on every back end, and for NVIDIA's targets; results go to docs/kernels.md
	$(BIN)/python -m tests.conformance.kernels --report default

cuda-roundtrip: $(STAMP).dev ## what we emit for CUDA, executed without a GPU beside its definition, and faults planted into it; results go to docs/cuda-roundtrip.md
	$(BIN)/python -m tests.conformance.cuda --faults --publish

cuda-gpu: $(STAMP).dev ## the same on the GPU of this machine (needs CuPy: pip install cupy-cuda13x); results go to docs/cuda-gpu.md
	$(BIN)/python -m tests.conformance.cuda --gpu --processes $(PROCESSES) --publish

attacks: $(STAMP).dev ## hostile kernels beside a canary on every back end (docs/attacks.md), then every attack on a secure stack
	$(BIN)/python -m tests.adversarial --report default
	$(BIN)/python -m pytest -q -m 'soak or not soak' tests/adversarial/stack

crowd: $(STAMP).dev ## 200 hostile tenants on one node for ten minutes, beside three that compute; results go to docs/security.md
	$(BIN)/python -m tests.adversarial.stack.crowd --publish

chaos: $(STAMP).dev ## trainings and sampling under each of 48 faults of bus, services, node, client, network and disks; results go to docs/durability.md
	$(BIN)/python -m tests.chaos --rounds 3 --processes $(PROCESSES) --publish

test-cluster: $(STAMP).dev ## two trainings on a bus of three servers, one or all of which are lost meanwhile; results go to docs/how-to/cluster.md
	$(BIN)/python -m pytest -q -m soak tests/integration/test_cluster.py
	$(BIN)/python -m tests.chaos.cluster --publish

test-slurm: $(STAMP).dev ## real jobs of a real Slurm cluster hold reservations (as root; needs slurmctld, slurmd, slurm-client, munge, slurm-wlm-basic-plugins)
	$(BIN)/python -m tests.slurm --publish

strict-ulp: $(STAMP).dev ## how far strict functions are from the truth, all f32 values; about an hour (docs/strict-math.md)
	$(BIN)/python -m tests.property.strict_ulp
	$(BIN)/python -m tests.property.strict_ulp --type f64

conformance: $(STAMP).dev ## torch's own operator database through client, bus and node, in all types; results go to docs/conformance.md
	$(BIN)/python -m tests.conformance --backend host --publish

conformance-opencl: $(STAMP).dev ## the same on OpenCL (PoCL), two samples an operator, then the model scripts; results go to docs/conformance-opencl.md
	$(BIN)/python -m tests.conformance --backend opencl --publish
	$(BIN)/python -m tests.conformance.models --backend opencl --publish

conformance-cuda: $(STAMP).dev ## the same on the GPU of this machine in four types; results go to docs/conformance-cuda.md
	$(BIN)/python -m tests.conformance --backend cuda --processes $(PROCESSES) --publish
	$(BIN)/python -m tests.conformance.models --backend cuda --processes $(PROCESSES) --publish

simulate: $(STAMP).dev ## 10,000 random nodes and 10,000 whole systems in virtual time, judged from outside; results go to docs/simulation.md
	$(BIN)/python -m tests.simulation.node --seeds 10000
	$(BIN)/python -m tests.simulation.system --seeds 10000 --publish
	$(BIN)/pytest -q -m soak tests/simulation

replay-runs: $(STAMP).dev ## 20 recorded runs of real nodes with several tenants, decided again; results go to docs/replay.md
	$(BIN)/python -m tests.replay --report default

what-if: $(STAMP).dev ## predictions of other policies beside real runs under them; wants a quiet machine for half an hour (docs/what-if.md)
	$(BIN)/python -m benchmarks.sla --what-if --rounds 10

controllers: $(STAMP).dev ## 20 rounds of two controllers, 500 submissions, one controller killed midway
	$(BIN)/python -m tests.controllers --rounds 20

simulate-placement: $(STAMP).dev ## 1,000 nodes of 8 devices: 100,000 tasks decided twice, 40,000 with a queue and an auditor; results go to docs/placement.md
	$(BIN)/python -m tests.simulation.placement.stream --publish
	$(BIN)/python -m tests.simulation.placement --tasks 40000 --publish

openapi: $(STAMP).dev ## both REST interfaces held against their descriptions by schemathesis, many examples
	$(BIN)/python -m pytest -q -m soak tests/integration/test_openapi.py

browser: $(STAMP).dev ## every page and flow in headless Chromium, with axe (needs chromium and chromium-driver)
	$(BIN)/python -m pytest -q -m 'soak or not soak' tests/browser

budgets: $(STAMP).dev ## two trainings on a secure stack, one tenant out of credits midway, stopped and resumed bit for bit
	$(BIN)/python -m pytest -q -m 'soak or not soak' tests/integration/test_budget_training.py tests/integration/test_budgets.py

screenshots: $(STAMP).dev ## every page, light and dark, wide and narrow, into docs/screenshots
	$(BIN)/python -m tests.browser.screenshots

conformance-cut: $(STAMP).dev ## the operator database with every run cut into pieces and its buffers moved between them
	$(BIN)/python -m tests.conformance --backend host --cut --forward 2 --backward 1

stops: $(STAMP).dev ## another process stops runs thousands of times; wants a quiet machine (docs/slices.md)
	$(BIN)/python -m benchmarks.stops

fuzz: $(STAMP).dev ## hostile bytes against decoder and verifier, back ends against the definition; 50 minutes (docs/fuzzing.md)
	$(BIN)/python -m tests.property.fuzz_wis --seconds 600
	$(BIN)/python -m tests.property.fuzz_backends --seconds 300
	$(BIN)/python -m tests.property.fuzz_backends --chains --seconds 300
	$(BIN)/python -m tests.property.fuzz_kernels --seconds 1500 --inputs 1000000
	$(BIN)/python -m tests.property.fuzz_kernels --seconds 300 --backends host
	$(BIN)/python -m pytest -q -n 2 --hypothesis-profile=search tests/property tests/unit
	$(BIN)/python -m pytest -q -n 2 --timeout 3600 --hypothesis-profile=fuzz tests/property/test_hostile_input.py tests/integration/test_hostile_requests.py

fuzz-programs: $(STAMP).dev ## 100,000 random torch programs through bus and node beside the CPU; about 2 hours; results go to docs/fuzz-programs.md
	$(BIN)/python -m tests.programs --programs 100000 --seed 0 --workers 2 --publish

verify-programs: $(STAMP).dev ## a million programs of the client's lowerings through what a node checks; half an hour; results go to docs/fuzz-programs.md
	$(BIN)/python -m tests.programs --verify --programs 1000000 --seed 0 --publish

test-torch: ## the model tests on another torch: make test-torch VERSION=2.15.0
	test -n "$(VERSION)"
	test -x .venv-torch-$(VERSION)/bin/python || $(PYTHON) -m venv .venv-torch-$(VERSION)
	.venv-torch-$(VERSION)/bin/pip install --quiet --upgrade pip
	.venv-torch-$(VERSION)/bin/pip install --quiet torch==$(VERSION)
	.venv-torch-$(VERSION)/bin/pip install --quiet -e '.[client,dev]' -e ./wooly_server
	.venv-torch-$(VERSION)/bin/pytest -q -n 2 --dist loadfile tests/integration/test_models.py tests/unit/test_face tests/unit/test_device

ecosystem: ## 169 scripts with other people's libraries on CPU and device (5.5 GB of libraries, about an hour); results go to docs/ecosystem.md
	test -x .venv-ecosystem/bin/python || $(PYTHON) -m venv .venv-ecosystem
	.venv-ecosystem/bin/pip install --quiet --upgrade pip
	.venv-ecosystem/bin/pip install --quiet -e '.[client,kernels]' -e ./wooly_server
	.venv-ecosystem/bin/pip install --quiet -r tests/ecosystem/requirements.txt
	.venv-ecosystem/bin/python -m tests.ecosystem --publish

readme: $(STAMP).dev ## README followed to the letter in a bare environment and a fresh clone
	$(BIN)/python -m pytest -q -m soak tests/integration/test_readme.py

$(TOOLS)/uv:
	$(PYTHON) -m venv .venv-tools
	$(TOOLS)/pip install --quiet uv cyclonedx-bom pip-audit

wheels: sbom ## the wheels of client and platform, the same bytes for the same commit, their bills of materials and SHA256SUMS, into dist/
	rm -f dist/*.whl
	for source in . wooly_server; do SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  $(TOOLS)/uv build --quiet --wheel --build-constraints deploy/requirements/build.txt --require-hashes --out-dir dist $$source; done
	cd dist && sha256sum *.whl *.json >SHA256SUMS

lock: $(TOOLS)/uv ## pin what images, clients and builds install, with hashes, into deploy/requirements (needs network); UPGRADE=1: to the newest versions
	echo 'hatchling>=1.27' | $(LOCK) -o deploy/requirements/build.txt -
	printf '.\n./wooly_server[kubernetes]\n' | $(LOCK) -o deploy/requirements/platform.txt -
	printf '.\n./wooly_server[cuda]\n' | $(LOCK) -o deploy/requirements/platform-cuda.txt -
	echo . | $(LOCK) -c deploy/requirements/platform.txt -o deploy/requirements/client.txt -

sbom: $(TOOLS)/uv ## the bills of materials (CycloneDX) of client and images, from the pinned versions, into dist/
	mkdir -p dist
	for name in client platform platform-cuda; do $(TOOLS)/cyclonedx-py requirements --output-reproducible -o dist/sbom-$$name.json \
	  --pyproject $$(test $$name = client || echo wooly_server/)pyproject.toml deploy/requirements/$$name.txt || exit 1; done

audit: $(TOOLS)/uv ## known vulnerabilities of the pinned versions (asks a vulnerability service: fails without network)
	$(TOOLS)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off $(patsubst %,-r %,$(wildcard deploy/requirements/*.txt))

clean: ## remove what setup made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
