#!/bin/bash
# Builds kube-apiserver 1.20.2 from the source package of Debian 12 (the last with the whole tree) and prints the program's path.
# It is built once: the result is kept in the cache folder, under the checksum of the source.
# Needs Debian 12, root for apt-get install, and a quarter of an hour on one core.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/wooly-kube
source_sha=b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc
server=$cache/${source_sha:0:16}/kube-apiserver
if [ ! -x "$server" ]; then
  mkdir -p "$cache/apt/lists/partial" "$(dirname "$server")"
  for suite in bookworm bookworm-updates; do echo "deb-src http://deb.debian.org/debian $suite main"; done >"$cache/apt/sources.list"
  echo "deb-src http://deb.debian.org/debian-security bookworm-security main" >>"$cache/apt/sources.list"
  # sources are looked up in a list of their own: the machine's stays as it is
  apt="-qq -o Dir::Etc::sourcelist=$cache/apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$cache/apt/lists -o APT::Sandbox::User=root"
  build=$(mktemp -d "$cache/build-XXXXXX")
  trap 'chmod -R u+w "$build"; rm -rf "$build"' EXIT
  {
    command -v apt-get >/dev/null
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-1.19-go rsync jq make \
      golang-github-modern-go-reflect2-dev
    apt-get update $apt
    cd "$build"
    apt-get source $apt --download-only kubernetes
    echo "$source_sha  $(ls kubernetes_*.orig.tar.gz)" | sha256sum --check --quiet
    mkdir tree && tar xzf kubernetes_*.orig.tar.gz --strip-components 1 -C tree && cd tree
    # the vendored reflect2 and Go 1.18 or later crash the server on the first custom resource
    rm -r vendor/github.com/modern-go/reflect2
    cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
    export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$PWD/.go GOCACHE=$build/cache CGO_ENABLED=0
    mkdir -p .go/src/k8s.io && ln -s ../../.. .go/src/k8s.io/kubernetes
    KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_TREE_STATE=clean KUBE_GIT_COMMIT=debian \
      nice make WHAT=cmd/kube-apiserver GOLDFLAGS="-s -w"
    mv _output/local/bin/linux/*/kube-apiserver "$server"
  } >&2
fi
echo "$server"
