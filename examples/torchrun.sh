#!/usr/bin/env bash
# Pretrain on all GPUs of this machine, or of several; the numbers are those of one process with the same --batch-size.
#
#   examples/torchrun.sh photos/ runs/photos
#   NODES=2 NODE=0 HEAD=node0:29500 examples/torchrun.sh photos/ runs/photos    # and NODE=1 on the other machine
#
# PER_NODE: processes on each machine. Default: one for each GPU, or 1. The run folder must be the same on all machines.
set -euo pipefail

data=$1
out=$2
shift 2

gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || gpus=0
torchrun \
    --nnodes "${NODES:-1}" --node-rank "${NODE:-0}" \
    --rdzv-backend c10d --rdzv-endpoint "${HEAD:-localhost:0}" \
    --nproc-per-node "${PER_NODE:-$((gpus > 0 ? gpus : 1))}" \
    -m nearfar pretrain "$data" --out "$out" "$@"
