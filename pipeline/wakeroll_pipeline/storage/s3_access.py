"""Access to S3: the endpoint and its options, for Spark, deltalake and obstore.

Credentials are not among them: each client reads AWS's usual environment variables, or uses the machine's role.
"""

from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

SCHEMES = ("s3a", "s3")
_DEFAULT_REGION = "us-east-1"


class S3Access(Struct, frozen=True):
    """The address of an S3 store; without an endpoint, AWS's own store."""

    endpoint: str = ""
    """URL of the store, without a bucket; empty: AWS, in the region."""
    region: str = ""
    """Region of the buckets; empty: the default of each client, or us-east-1 with an endpoint."""
    addressing: Literal["path", "virtual"] = "path"
    """Place of the bucket in a URL: in its path, or in front of the host's name."""

    def for_spark(self) -> dict[str, str]:
        """Return the settings of Hadoop's file system for S3, without credentials."""
        confs = {
            # Signs with the key that the environment has, or else asks AWS's chain: profile, web identity, role.
            "fs.s3a.aws.credentials.provider": ",".join(_PROVIDERS),
            "fs.s3a.path.style.access": str(self.addressing == "path").lower(),
            # An upload goes from memory: the largest file of a batch has a few MiB.
            "fs.s3a.fast.upload.buffer": "bytebuffer",
            # A file that must not exist is created by a conditional write: two drivers cannot both plan a batch.
            "fs.s3a.impl": "wakeroll.ConditionalS3AFileSystem",
            "fs.AbstractFileSystem.s3a.impl": "wakeroll.ConditionalS3A",
            "fs.s3a.create.conditional.enabled": "true",
        }
        if self.endpoint:
            confs["fs.s3a.endpoint"] = self.endpoint
            confs["fs.s3a.connection.ssl.enabled"] = str(self._has_tls).lower()
        if region := self._region:
            confs["fs.s3a.endpoint.region"] = region
        return {f"spark.hadoop.{name}": value for name, value in confs.items()}

    def options(self, bucket: str) -> dict[str, str]:
        """Return the options of Rust's object store, for deltalake and obstore, without credentials."""
        found = {"aws_conditional_put": "etag"}
        if self.endpoint:
            found["aws_endpoint"] = self._endpoint_of(bucket)
            found["aws_allow_http"] = str(not self._has_tls).lower()
        if self.addressing == "virtual":
            found["aws_virtual_hosted_style_request"] = "true"
        if region := self._region:
            found["aws_region"] = region
        return found

    @property
    def _region(self) -> str:
        return self.region or (_DEFAULT_REGION if self.endpoint else "")

    @property
    def _has_tls(self) -> bool:
        return urlsplit(self.endpoint).scheme != "http"

    def _endpoint_of(self, bucket: str) -> str:
        if self.addressing == "path":
            return self.endpoint
        url = urlsplit(self.endpoint)
        return f"{url.scheme}://{bucket}.{url.netloc}"


_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)
"""Sources of credentials. On every executor, the first two use the keys from the environment of Spark's driver."""
