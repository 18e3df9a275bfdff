#!/bin/sh
# Build the image wakeroll:VERSION from the files of the last commit; arguments are options of the builder's `build`.
# BUILDER names the program: podman (default), buildah or docker. PLATFORMS names processors, as in
# PLATFORMS=linux/amd64,linux/arm64: then podman and buildah make a list of images, one for each; docker needs --push.
set -eu
cd "$(dirname "$0")/../.."
for builder in "${BUILDER:-podman}" buildah docker; do
	command -v "$builder" >/dev/null && break
done
command -v "$builder" >/dev/null || { echo "image: podman, buildah or docker is needed; install one of them." >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
case "$builder" in
*docker) format="" list=--tag ;;
*) format="--format docker" list=--manifest ;; # health checks are no part of the OCI format
esac
named="--tag wakeroll:$version"
[ -z "${PLATFORMS:-}" ] || named="--platform $PLATFORMS $list wakeroll:$version"
# A tag may name another base tomorrow, its digest cannot. A base that only this machine has needs none.
base=$(sed -n 's/^ARG BASE=//p' deploy/container/Containerfile)
case " $* " in
*" BASE="*) ;;
*)
	"$builder" pull --quiet "$base" >/dev/null
	case "$builder" in
	buildah) digest=$(buildah inspect --type image --format '{{.FromImageDigest}}' "$base") ;;
	*) digest=$("$builder" image inspect --format '{{index .RepoDigests 0}}' "$base" | sed 's/.*@//') ;;
	esac
	set -- --build-arg "BASE=${base%:*}@$digest" "$@"
	;;
esac
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
git archive HEAD | tar -x -C "$context"
# shellcheck disable=SC2086
"$builder" build $format --file "$context/deploy/container/Containerfile" $named \
	--build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD)" "$@" "$context"
echo "built wakeroll:$version"
