#!/bin/sh
# Build the image wakeroll:VERSION from the files of the last commit; arguments are options of the builder's `build`.
# BUILDER names the program: podman (default), buildah or docker.
set -eu
cd "$(dirname "$0")/../.."
for builder in "${BUILDER:-podman}" buildah docker; do
	command -v "$builder" >/dev/null && break
done
command -v "$builder" >/dev/null || { echo "image: podman, buildah or docker is needed; install one of them." >&2; exit 1; }
case "$builder" in
*docker) format= ;;
*) format="--format docker" ;; # health checks are no part of the OCI format
esac
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
git archive HEAD | tar -x -C "$context"
# shellcheck disable=SC2086
"$builder" build $format --file "$context/deploy/container/Containerfile" --tag "wakeroll:$version" \
	--build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD)" "$@" "$context"
echo "built wakeroll:$version"
