#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: names the card, checks what compiles for it, then runs the benchmarks on it.
# Arguments go to `python -m bench`, e.g.  bench/gpu/run.sh --case mlp --json gpu.json
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --query-gpu=name --format=csv,noheader >/dev/null 2>&1; then
    echo "error: no NVIDIA GPU here (nvidia-smi finds none); python -m bench.gpu.check needs none" >&2
    exit 2
fi
echo "== card"
nvidia-smi --query-gpu=index,name,compute_cap,driver_version,memory.total --format=csv

echo "== what MAX finds"
python - <<'PYTHON'
from max.driver import accelerator_api, accelerator_architecture_name, accelerator_count

if not accelerator_count():
    raise SystemExit("error: there is a GPU, but MAX finds none: is the driver too old for it?")
print(accelerator_count(), accelerator_api(), accelerator_architecture_name())
PYTHON

echo "== what compiles"
python -m bench.gpu.check --target nvidia

echo "== benchmarks"
if python -c 'import sys; from noeira.runtime.devices import KERNEL_TARGETS; sys.exit("cuda" not in KERNEL_TARGETS)'; then
    python -m bench --device cuda "$@"
else
    echo "not run on the GPU: this version's kernels are for the CPU only (KERNEL_TARGETS); nothing was timed"
fi
