#!/usr/bin/env bash
# Start an embedded stack, run the two example trainings on it, print who ran where and what it cost, stop everything.
set -euo pipefail
bin=$(cd "${1:?usage: demo.sh BIN_FOLDER}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
state=$(mktemp -d)
"$bin/wooly" up --dir "$state" >"$state/up.out" &
stack=$!
trap 'kill -TERM $stack 2>/dev/null; wait $stack 2>/dev/null || true; rm -rf "$state"' EXIT

for _ in $(seq 300); do # 60 s
    grep -q '^export WOOLY_NATS_URL=' "$state/up.out" && break
    kill -0 $stack 2>/dev/null || { echo "the embedded stack did not start; run: $bin/wooly up" >&2; exit 1; }
    sleep 0.2
done
cat "$state/up.out"
eval "$(grep '^export ' "$state/up.out")"

# The examples stand in a folder of their own and know nothing of us.
cp "$here/digits.py" "$here/char_gpt.py" "$state/"
for script in digits char_gpt; do
    echo
    echo "== $script.py"
    REQUIRED_VRAM=1024 "$bin/wooly" run "$state/$script.py"
done
echo
echo "== placement"
"$bin/wooly" tasks
echo
echo "== bill"
"$bin/wooly" credits --by task
"$bin/wooly" billing verify
