#!/bin/sh
# Print the path of an etcd binary for tests: the one on PATH, one fetched before, or Debian's etcd-server package, unpacked (not installed)
# under the given folder. Exits 1 with the reason on standard error when there is none to be had. Several calls at once fetch it once.
#
#   deploy/test-etcd.sh [FOLDER]      FOLDER defaults to .venv/etcd
set -eu

folder=${1:-"$(dirname "$0")/../.venv/etcd"}
binary=$folder/usr/bin/etcd

if command -v etcd >/dev/null 2>&1; then
    command -v etcd
    exit 0
fi
if [ ! -x "$binary" ]; then
    for tool in apt-get dpkg-deb; do
        if ! command -v "$tool" >/dev/null 2>&1; then
            echo "no etcd on PATH, and no $tool to fetch Debian's etcd-server package with" >&2
            exit 1
        fi
    done
    mkdir -p "$(dirname "$folder")"
    exec 9>"$folder.lock"
    flock 9
    if [ ! -x "$binary" ]; then
        fetched=$(mktemp -d "$folder.XXXXXX")
        trap 'rm -rf "$fetched"' EXIT
        log=$fetched/fetch.log
        fetch() { (cd "$fetched" && apt-get download etcd-server >>"$log" 2>&1); }
        if ! { fetch || { apt-get update >>"$log" 2>&1 && fetch; }; }; then
            echo "no etcd on PATH, and Debian's etcd-server package could not be fetched: $(tail -n 1 "$log")" >&2
            exit 1
        fi
        dpkg-deb -x "$fetched"/etcd-server_*.deb "$fetched/root"
        # A call that was cut off leaves no half of it behind: only a whole folder gets the name.
        rm -rf "$folder"
        mv -T "$fetched/root" "$folder"
    fi
fi
cd "$(dirname "$binary")" && echo "$(pwd)/etcd"
