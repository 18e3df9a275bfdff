"""A place: a folder or a file of a deployment, in a local file system or in an object store."""

import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import Struct, structs

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.storage.s3_access import SCHEMES, S3Access

_URI = re.compile(r"([a-z][a-z0-9+.-]*):(//?)(.*)", re.DOTALL)
_SAFE = re.compile(r"[A-Za-z0-9._=@+~!-]+")
"""Allowed part of a remote path. Spark, deltalake and DuckDB encode other characters in different ways."""


class Place(Struct, frozen=True):
    """A folder or a file, which may be missing. `/` leads from a folder to a place in it.

    A local place can be used as a path (`os.PathLike`); a remote one is rejected there with a sentence.
    """

    location: str
    """Absolute path in a local file system, or URI of a remote place, without a slash at the end."""
    s3: S3Access = S3Access()

    @staticmethod
    def of(where: "str | Folder", s3: S3Access | None = None) -> "Place":
        """Parse a place: a local path, ``file:///path``, or a URI such as ``s3a://bucket/path``.

        A relative path is in the working folder. ``s3://`` is another name of ``s3a://``.

        Raises:
            InvalidUsage: the URI cannot be used; the message names the rule.
        """
        if isinstance(where, Place):
            return where
        text = str(where)
        found = _URI.fullmatch(text)
        if found is None:
            return Place(str(Path(text).absolute()))
        scheme, _, rest = found.groups()
        if scheme == "file":
            return Place(_local_path(text))
        return Place(_remote(text, scheme, rest), s3 or S3Access())

    @property
    def is_local(self) -> bool:
        """Whether the place is in a local file system, which may be mounted from a server."""
        return self.location.startswith("/")

    @property
    def scheme(self) -> str:
        """Scheme of the URI: ``file`` for a local place."""
        return "file" if self.is_local else urlsplit(self.location).scheme

    @property
    def is_s3(self) -> bool:
        """Whether the place is in an S3 store."""
        return self.scheme in SCHEMES

    @property
    def bucket(self) -> str:
        """Bucket, container or server of a remote place; empty for a local one."""
        return urlsplit(self.location).netloc

    @property
    def key(self) -> str:
        """Path inside the bucket, without a slash at the start; for a local place, its path."""
        return self.location if self.is_local else urlsplit(self.location).path.lstrip("/")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.location.rpartition("/")[2]

    @property
    def parent(self) -> "Place":
        """The folder that contains the place."""
        return structs.replace(self, location=self.location.rpartition("/")[0])

    @property
    def path(self) -> Path:
        """The path of a local place.

        Raises:
            InvalidUsage: the place is remote.
        """
        if not self.is_local:
            raise InvalidUsage(f"{self.location} is not local; a local folder is needed here")
        return Path(self.location)

    def child(self, *names: str) -> "Place":
        """Return a place inside this folder."""
        return structs.replace(self, location="/".join((self.location.rstrip("/"), *names)))

    def in_bucket(self, key: str) -> "Place":
        """Return the place with another key in the same bucket."""
        return structs.replace(self, location=f"{self.scheme}://{self.bucket}/{key}")

    def __truediv__(self, name: str) -> "Place":
        return self.child(name)

    def with_name(self, name: str) -> "Place":
        """Return a place in the same folder."""
        return self.parent / name

    def __str__(self) -> str:
        return self.location

    def __fspath__(self) -> str:
        return str(self.path)

    def for_spark(self) -> str:
        """Return the path or the URI for Spark, Delta and Hadoop."""
        return self.location

    def for_deltalake(self) -> tuple[str, dict[str, str] | None]:
        """Return the path or the URI for deltalake, and its storage options; None if there are none."""
        return self.location, self.s3.options(self.bucket) if self.is_s3 else None

    def beneath(self, folder: Path) -> Path:
        """Return the path of this place if it is local; for a remote place, a unique path in a local folder."""
        return self.path if self.is_local else folder / self.scheme / self.bucket / self.key


Folder: TypeAlias = Place | Path
"""A place, or a local path; `Place.of` converts both to a place."""


def _local_path(text: str) -> str:
    """Return the path of a ``file:`` URI.

    Raises:
        InvalidUsage: it names another machine, or its path is not absolute.
    """
    url = urlsplit(text)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise InvalidUsage(f"{text!r} must be file:///PATH, with an absolute path of this machine")
    return unquote(url.path).rstrip("/") or "/"


def _remote(text: str, scheme: str, rest: str) -> str:
    """Return a remote URI in its only form.

    Raises:
        InvalidUsage: it has a login, no bucket, or characters that clients treat differently.
    """
    authority, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    if scheme in SCHEMES:
        scheme = SCHEMES[0]
        if "@" in authority or ":" in authority:
            raise InvalidUsage(
                f"the URI of {scheme}://{authority.rpartition('@')[2]} must not contain a login or a port: credentials "
                "come from AWS_ACCESS_KEY_ID and the like, an endpoint from s3_endpoint"
            )
    if not authority and scheme != "hdfs":
        raise InvalidUsage(f"{text!r} must be {scheme}://BUCKET/PATH")
    if strange := [part for part in parts if not _SAFE.fullmatch(part) or part in (".", "..")]:
        raise InvalidUsage(
            f"{text!r} has the part {strange[0]!r}; a remote path has letters, digits and ._=@+~!- between its slashes"
        )
    return "/".join((f"{scheme}://{authority}", *parts))
