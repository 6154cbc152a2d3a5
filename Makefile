# Needs only Python 3.11 or newer (with pip and venv) and make. Each target makes what it runs in: one virtual
# environment, `.venv`, to which each kind of target adds its own extra of pyproject.toml, once.
PYTHON ?= python3
VENV ?= .venv

# What each target runs; pixi.toml's tasks run the same (tests/repo/test_manifests.py compares them).
CMD_mnist := python examples/nn/mlp/mnist.py
CMD_mnist-conv := python examples/nn/conv/mnist.py
CMD_fashion-conv := python examples/nn/conv/mnist.py --fashion
CMD_fashion-resnet := python examples/nn/resnet/fashion_mnist.py
CMD_cifar10-conv := python examples/nn/conv/cifar10.py
CMD_cifar10-resnet := python examples/nn/resnet/cifar10.py
CMD_cifar10-vit := python examples/nn/vit/cifar10.py
CMD_fashion-vit := python examples/nn/vit/fashion_mnist.py
CMD_gpt := python examples/nn/gpt/tinyshakespeare.py
CMD_lstm := python examples/nn/lstm/tinyshakespeare.py
CMD_test := python -m pytest -n auto --maxprocesses 4 --dist loadfile
CMD_bench := python -m bench --quick
CMD_lint := ruff check . && ruff format --check . && pyright && mblack --check --fast --preview -l 120 -t mojo mojo_kernels
CMD_gpu-check := python -m bench.gpu.check

ACTIVATE := . $(VENV)/bin/activate
EXAMPLES := mnist mnist-conv fashion-conv fashion-resnet cifar10-conv cifar10-resnet cifar10-vit fashion-vit gpt lstm
COMMANDS := $(EXAMPLES) test bench lint gpu-check

.PHONY: $(COMMANDS) format wheel clean
.DEFAULT_GOAL := test

$(EXAMPLES): $(VENV)/stamp-examples
test: $(VENV)/stamp-test
bench gpu-check: $(VENV)/stamp-bench
lint format: $(VENV)/stamp-lint

$(COMMANDS):
	@$(ACTIVATE) && $(CMD_$@)

format:
	@$(ACTIVATE) && ruff check --fix . && ruff format . && mojo format -l 120 mojo_kernels

wheel: $(VENV)/stamp-test
	@$(ACTIVATE) && python -m build --no-isolation

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# stamp-X is the package with its extra X.
$(VENV)/stamp-%: pyproject.toml $(VENV)/stamp-venv
	@echo "installing noeira[$*] into $(VENV)"
	@$(ACTIVATE) && python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

$(VENV)/stamp-venv:
	@command -v $(PYTHON) >/dev/null || { echo "error: no '$(PYTHON)' here; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; (3, 11) <= v < (3, 15) or sys.exit("error: noeira needs Python 3.11 to 3.14, but $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@
