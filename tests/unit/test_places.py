"""Places: what a text in `home` or `checkpoints` names, and the same place in the words of each client."""

import pickle
from pathlib import Path

import pytest

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.settings import InvalidSettings
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.s3_access import S3Access

MINIO = S3Access("http://store:9000", "", "path")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/data/a b", "/data/a b"),
        ("/data/", "/data"),
        ("file:///data/a%20b/", "/data/a b"),
        ("file:/data", "/data"),
        ("s3a://bucket/a/b/", "s3a://bucket/a/b"),
        ("s3://bucket//a", "s3a://bucket/a"),
        ("s3a://bucket", "s3a://bucket"),
        ("hdfs:///user/a", "hdfs:///user/a"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
    ],
)
def test_a_place_has_one_name(text, location):
    """Locks, caches and messages compare names: `s3://` and a slash at the end must not make another place."""
    assert Place.of(text).location == location


def test_a_relative_path_is_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert Place.of("home") == Place.of(tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("s3a://key:secret@bucket/a", "the URI of s3a://bucket must not contain a login or a port: credentials come"),
        ("s3a:///a", "'s3a:///a' must be s3a://BUCKET/PATH"),
        ("s3a://bucket/a b", "has the part 'a b'; a remote path has letters, digits and ._=@+~!- between its slashes"),
        ("s3a://bucket/../a", "has the part '..'"),
        ("file://server/a", "must be file:///PATH, with an absolute path of this machine"),
    ],
)
def test_a_uri_that_cannot_be_used_is_rejected_with_the_rule(text, sentence):
    with pytest.raises(InvalidUsage) as error:
        Place.of(text)

    assert sentence in str(error.value)
    assert "secret" not in str(error.value)
    with pytest.raises(InvalidSettings):
        load({"WAKEROLL_HOME": text})


def test_a_local_place_is_a_path(tmp_path):
    """Programs that only know paths (`open`, `shutil`) take it as it is."""
    place = Place.of(tmp_path) / "file"

    Path(place).write_text("x")

    assert (place.name, place.parent.path, place.path.read_text()) == ("file", tmp_path, "x")
    assert place.for_spark() == str(tmp_path / "file")
    assert place.for_deltalake() == (str(tmp_path / "file"), None)


def test_a_remote_place_is_never_a_local_folder(tmp_path, monkeypatch):
    """Otherwise a program would silently create a folder named `s3a:` and lose what it writes there."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidUsage, match=r"s3a://bucket/a is not local; a local folder is needed here"):
        Path(Place.of("s3a://bucket/a"))


def test_a_remote_place_in_the_words_of_each_client():
    place = Place.of("s3://bucket/a", MINIO).child("b", "c")

    assert (place.for_spark(), place.bucket, place.key) == ("s3a://bucket/a/b/c", "bucket", "a/b/c")
    assert place.with_name("d").location == "s3a://bucket/a/b/d"
    assert place.for_deltalake() == (
        "s3a://bucket/a/b/c",
        {
            "aws_conditional_put": "etag",
            "aws_endpoint": "http://store:9000",
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
        },
    )
    assert pickle.loads(pickle.dumps(place)) == place


def test_a_bucket_in_the_name_of_the_host():
    """Some stores accept nothing else."""
    access = S3Access("https://store.example", "eu-1", "virtual")

    assert access.options("bucket")["aws_endpoint"] == "https://bucket.store.example"
    assert access.for_spark()["spark.hadoop.fs.s3a.endpoint"] == "https://store.example"
    assert access.for_spark()["spark.hadoop.fs.s3a.path.style.access"] == "false"


def test_without_an_endpoint_each_client_finds_aws_itself():
    assert S3Access().options("bucket") == {"aws_conditional_put": "etag"}
    assert not [name for name in S3Access().for_spark() if "endpoint" in name or "ssl" in name]


def test_the_endpoint_of_aws_s_own_variables_counts_last():
    """A machine that is set up for the AWS command line needs no setting of ours."""
    aws = {"AWS_ENDPOINT_URL": "http://any:1", "AWS_ENDPOINT_URL_S3": "http://s3:1", "AWS_DEFAULT_REGION": "eu-1"}

    assert load({**aws, "WAKEROLL_HOME": "s3a://b/h"}).warehouse.s3 == S3Access("http://s3:1", "eu-1")
    assert load(
        {**aws, "WAKEROLL_S3_ENDPOINT": "http://ours:1/", "WAKEROLL_HOME": "s3a://b/h"}
    ).warehouse.s3 == S3Access("http://ours:1", "eu-1")


def test_what_belongs_to_processes_stays_on_this_machine(tmp_path, monkeypatch):
    """Two deployments in one folder must not read each other's status, nor wait for each other's lock."""
    monkeypatch.chdir(tmp_path)
    one, other = (load({}, home=f"s3a://b/{name}", checkpoints=f"s3a://b/{name}/c") for name in ("one", "other"))

    assert one.logs == tmp_path / ".wakeroll" / "s3a" / "b" / "one" / "logs"
    assert one.work_folder != other.work_folder
    assert one.lock_file(one.checkpoint("x.lock")) != one.lock_file(other.checkpoint("x.lock"))
    assert load({}, home="s3a://b/one", work="w").logs == tmp_path / "w" / "logs"


def test_with_a_local_home_everything_is_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = load({})

    assert settings.work_folder == tmp_path / ".wakeroll"
    assert settings.warehouse.path == tmp_path / ".wakeroll" / "warehouse"
    assert settings.lock_file(settings.checkpoint("coordinate.groups.lock")) == (
        tmp_path / "checkpoints" / "coordinate.groups.lock"
    )


def test_an_endpoint_is_a_url_without_a_login():
    for endpoint in ("store:9000", "http://key:secret@store:9000", "http://store/bucket"):
        with pytest.raises(InvalidSettings, match="s3_endpoint"):
            load({"WAKEROLL_S3_ENDPOINT": endpoint})
