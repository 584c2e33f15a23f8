#!/bin/sh
# Print the path of an etcd binary for tests: the one on PATH, one fetched before, or Debian's etcd-server package, unpacked (not installed)
# under the given folder. Exits 1 with the reason on standard error when there is none to be had.
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
    mkdir -p "$folder"
    cd "$folder"
    if ! { apt-get download etcd-server >fetch.log 2>&1 || { apt-get update >>fetch.log 2>&1 && apt-get download etcd-server >>fetch.log 2>&1; }; }; then
        echo "no etcd on PATH, and Debian's etcd-server package could not be fetched: $(tail -n 1 fetch.log)" >&2
        exit 1
    fi
    dpkg-deb -x ./etcd-server_*.deb .
    cd - >/dev/null
fi
cd "$(dirname "$binary")" && echo "$(pwd)/etcd"
