#!/bin/sh
# Write requirements.txt and build-requirements.txt beside this file: the Python packages of the image, and those that
# build wheels for it, with the hashes of all their files. Needs uv; repeat it when constraints.txt or the dependencies
# in pyproject.toml change.
set -eu
cd "$(dirname "$0")/../.."
lock() {
	uv pip compile --quiet --constraint constraints.txt --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --output-file "deploy/container/$1" "$2" $3
}
lock requirements.txt pyproject.toml "--extra spark --extra serve --extra oidc --extra s3"
printf 'hatchling\nsetuptools\nwheel\n' | lock build-requirements.txt - ""
