#!/bin/sh
# Wooly for Slurm: Epilog (installed by `wooly slurm install`; optional, needs the key on each node). Releases the reservation of a job
# when its node ends it, some moments before slurmctld does. Its id comes from AdminComment, which users cannot write.
# Ends with 0 always: another code drains the node.
folder=$(dirname "$0")
[ -n "${SLURM_CONF:-}" ] || [ ! -e "$folder/slurm.conf" ] || export SLURM_CONF="$folder/slurm.conf"
value() {
    sed -n "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*\(.*[^[:space:]]\)[[:space:]]*\$/\1/p" "$folder/wooly.conf" 2>/dev/null | head -n 1
}
# Of the id of an array squeue shows all elements.
task=$(squeue --noheader --states=all --jobs="${SLURM_JOB_ID:-0}" --Format=jobid:20,admin_comment:200 2>/dev/null |
    sed -n "s/^${SLURM_JOB_ID:-0}  *wooly: reservation \([A-Za-z0-9_-]\{1,64\}\) *\$/\1/p" | head -n 1)
if [ -n "$task" ]; then
    key=$(value key_file)
    [ -z "$key" ] || WOOLY_API_KEY=$(cat "$key" 2>/dev/null)
    export HOME=/nonexistent WOOLY_API_KEY="${WOOLY_API_KEY:-}" CONTROLLER_URL="$(value CONTROLLER_URL)" WOOLY_TLS_CA="$(value WOOLY_TLS_CA)"
    timeout 10 "$(value wooly)" release "$task" --reason "Slurm job $SLURM_JOB_ID" >/dev/null 2>&1
fi
exit 0
