#!/bin/sh
# Wooly for Slurm: TaskProlog (installed by `wooly slurm install`). Slurm adds each line `export NAME=VALUE` to the environment of the task.
# A job with a reservation has its variables already. USE_WOOLY=1 switches the device on without one; REQUIRED_VRAM is then the count of the
# GRES woolyai_vram, if the job has it. Ends with 0 always: a failure would end the task.
set -u
[ -z "${WOOLY_TASK_ID:-}" ] && [ "${USE_WOOLY:-}" = 1 ] || exit 0
folder=$(dirname "$0")
[ -n "${SLURM_CONF:-}" ] || [ ! -e "$folder/slurm.conf" ] || export SLURM_CONF="$folder/slurm.conf"
# Lines `NAME = value` with names of capitals are variables of the client. No secret is in this file.
sed -n 's/^[[:space:]]*\([A-Z][A-Z0-9_]*\)[[:space:]]*=[[:space:]]*\(.*[^[:space:]]\)[[:space:]]*$/export \1=\2/p' "$folder/wooly.conf" 2>/dev/null
echo "export WOOLY_QUEUE=${WOOLY_QUEUE:-1}"
if [ -z "${REQUIRED_VRAM:-}" ]; then
    squeue --noheader --jobs="${SLURM_JOB_ID:-0}" --format=%b 2>/dev/null |
        sed -n 's/.*woolyai_vram[:=]\([0-9]\{1,8\}\)\(,.*\)\{0,1\}$/export REQUIRED_VRAM=\1/p' | head -n 1
fi
exit 0
