#!/bin/bash
# Train on several machines of a SLURM cluster, through time limits and preemption:
#
#   sbatch --nodes 2 training/slurm.sh configs/accelerate/2x8xh100_fsdp2.yaml configs/wan/full_mcl.yaml key=value ...
#
# Five minutes before the time limit (SIGUSR1), and when the job is preempted (SIGTERM, to all processes at once), the
# training processes save a checkpoint and end, and the job goes back into the queue. It then goes on from there.
# Fill the latent cache first; each machine takes its part:
#   srun --nodes 2 --ntasks-per-node 1 bash -c \
#       'worldmodel encode-latents configs/wan/full_mcl.yaml --processes 8 --part $SLURM_NODEID/$SLURM_NNODES'
#SBATCH --job-name=worldmodel
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -uo pipefail
launch=$1
shift
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=270  # seconds for saving, after which a launcher kills; its default is 30
export MASTER_ADDR=$head MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

# One task a machine: it starts the processes of its GPUs, and hands the signal on to them. A launcher that gets the
# signal itself would end them before they have saved.
machine='
accelerate launch --config_file "$0" --machine_rank "$SLURM_NODEID" --main_process_ip "$MASTER_ADDR" \
    --main_process_port "$MASTER_PORT" -m worldmodel train "$@" --resume &
launcher=$!
trap "pkill -USR1 --parent $launcher" USR1 TERM
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; code=$?; done
exit "$code"
'
is_stopped=no
srun --kill-on-bad-exit=0 bash -c "$machine" "$launch" "$@" &
step=$!
trap 'is_stopped=yes; scancel --signal=USR1 "$SLURM_JOB_ID.0"' USR1 TERM
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
if [ "$is_stopped" = yes ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
