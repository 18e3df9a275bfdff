#!/bin/sh
# Build etcd and the programs of a Kubernetes control plane into a folder; `make test-kube` needs them.
#
#   tests/deployment/build_cluster.sh FOLDER && WAKEROLL_KUBE_BIN=FOLDER make test-kube
#
# It needs Go 1.26, 15 minutes of CPU and 4 GB of disk for Go's caches.  `go install` refuses modules with replace
# directives, so each build has a module of its own.
set -eu
kubernetes=1.36.3
etcd=3.6.5
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$out/src
export GOTOOLCHAIN=local GOFLAGS=-mod=mod

mkdir -p "$work/etcd"
cd "$work/etcd"
cat > main.go <<'GO'
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
GO
if [ ! -f go.mod ]; then
  go mod init local/etcd
  go get "go.etcd.io/etcd/server/v3@v$etcd"
  go mod tidy -e
fi
go build -ldflags="-s -w" -o "$out/etcd" .

mkdir -p "$work/kubernetes"
cd "$work/kubernetes"
cat > programs.go <<'GO'
//go:build programs

package programs

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
GO
if [ ! -f go.mod ]; then
  theirs=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  {
    printf 'module local/kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v%s\n\n' "$kubernetes"
    sed -n "s|^[[:space:]]*\(k8s.io/[a-z0-9-]*\) => ./staging.*|replace \1 => \1 v0.${kubernetes#1.}|p" "$theirs"
  } > go.mod
  go mod tidy -e
fi
version=k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=36"
for program in kube-apiserver kube-controller-manager kube-scheduler; do
  go build -p 2 -ldflags="$flags" -o "$out/$program" "k8s.io/kubernetes/cmd/$program"
done
