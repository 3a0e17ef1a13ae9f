#!/usr/bin/env bash
# Pretrain on two machines of a Slurm cluster; where the time limit ends the job, it goes on in a new one.
#
#   sbatch examples/slurm.sh photos/ runs/photos
#
#SBATCH --job-name=nearfar
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
set -euo pipefail

data=$1
out=$2
words=("$data" --out "$out" --epochs 200 --batch-size 1024)
if [ -e "$out/checkpoints/last.ckpt" ]; then
    words=(--resume "$out")
fi

# 300 seconds before the end: nearfar writes a checkpoint on SIGTERM, which goes to the steps and not to this script.
go_on_later() {
    scancel --signal=TERM "$SLURM_JOB_ID"
    wait "$step" || true
    scontrol requeue "$SLURM_JOB_ID"
}
trap go_on_later USR1

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --rdzv-backend c10d --rdzv-endpoint "${hosts[0]}:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m nearfar pretrain "${words[@]}" &
step=$!
wait "$step"
