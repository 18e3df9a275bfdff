"""The JARs: fetched once, from a real HTTP server by the real Ivy, whatever goes wrong on the way."""

import base64
import hashlib
import http.server
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import pytest

from tests.support.closed_port import closed_port
from tests.support.running_processes import ROOT
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.ports import HOST
from wakeroll_pipeline.spark import jar_paths as jar_paths_module
from wakeroll_pipeline.spark import s3_classes
from wakeroll_pipeline.spark.ivy import IvyFailed, explain, proxy_options
from wakeroll_pipeline.spark.jar_paths import LOCAL, S3, SPARK, JarSet, jar_paths, our_jars
from wakeroll_pipeline.spark.jar_sums import JarsMissing
from wakeroll_pipeline.spark.jars import ensure_jars
from wakeroll_pipeline.spark.made_jars import hadoop_defaults_jar

CONTENTS = {"spark/alpha-1.jar": b"for Spark", "broker/beta-2.jar": b"for the broker"}
ALPHA, BETA = "/org/example/alpha/1/alpha-1.jar", "/org/example/beta/2/beta-2.jar"


class Mirror(http.server.ThreadingHTTPServer):
    """A Maven repository in memory.  It answers 404 to what it has not; what stalls is promised and never sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = {ALPHA: CONTENTS["spark/alpha-1.jar"], BETA: CONTENTS["broker/beta-2.jar"]}
        for path in (ALPHA, BETA):
            artifact, version = path.split("/")[3:5]
            self.files[pom(path)] = (
                "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>"
                f"<artifactId>{artifact}</artifactId><version>{version}</version></project>"
            ).encode()
        self.stalled: set[str] = set()
        self.asked: list[str] = []
        self.login = ""
        """User and password of this server as a proxy."""
        self.refused = 0
        """Number of requests without them."""
        self.closing = threading.Event()

    def downloads(self) -> list[str]:
        """Return the names of the JARs that were asked for, and forget them."""
        names, self.asked = [path.rpartition("/")[2] for path in self.asked if path.endswith(".jar")], []
        return sorted(names)


class Answer(http.server.BaseHTTPRequestHandler):
    """One request of Ivy's: a HEAD for the size, then a GET."""

    server: Mirror

    def do_GET(self) -> None:
        """Send a file."""
        self.server.asked.append(self.path)
        self.do_HEAD()
        if self.path in self.server.stalled:
            self.server.closing.wait()
        self.wfile.write(self.server.files.get(self.path, b""))

    def do_HEAD(self) -> None:
        """Say how large a file is."""
        self.path = urlsplit(self.path).path  # a proxy receives the whole URL
        if self.server.login:
            expected = f"Basic {base64.b64encode(self.server.login.encode()).decode()}"
            if self.headers.get("Proxy-Authorization") != expected:
                self.server.refused += 1
                self.send_response(407)
                self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        if self.path not in self.server.files:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.files[self.path])))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing on the test's output."""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The future folder of two small JARs, with their lists beside it; brackets in its path mean something to Ivy."""
    folder, lists = tmp_path / "a checkout [2] (copy)", tmp_path / "lists"
    lists.mkdir()
    dependency = '<dependency org="org.example" name="{}" rev="{}" conf="{}->default"/>'
    (lists / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="wakeroll" module="jars"/>'
        '<configurations><conf name="spark"/><conf name="broker"/></configurations><dependencies>'
        f"{dependency.format('alpha', 1, 'spark')}{dependency.format('beta', 2, 'broker')}"
        "</dependencies></ivy-module>"
    )
    write_sums(folder, CONTENTS)
    return folder


def test_jars_are_fetched_once(folder, mirror):
    """And nothing of it is left but the JARs: the cache would double what they take."""
    first = fetch(folder, mirror)
    asked_first = mirror.downloads()
    second = fetch(folder, mirror)

    assert found(folder) == CONTENTS
    assert first[1:] == ["  fetched 2 of 2", "all 2 JARs exist, and their hashes are right"]
    assert (asked_first, second, mirror.asked) == (["alpha-1.jar", "beta-2.jar"], [], [])
    assert not (folder / ".ivy").exists()
    assert jar_paths(*LOCAL, jars=set_of(folder)) == [folder / "spark/alpha-1.jar", folder / "broker/beta-2.jar"]


def test_jars_for_s3_are_fetched_on_request_only(folder, mirror):
    """Most users keep their tables in a local folder; the others fetch nothing again."""
    gamma = "/org/example/gamma/3/gamma-3.jar"
    mirror.files[gamma] = b"for S3"
    mirror.files[pom(gamma)] = mirror.files[pom(ALPHA)].replace(b"alpha", b"gamma").replace(b">1<", b">3<")
    ivy_file = set_of(folder).lists / "ivy.xml"
    ivy = ivy_file.read_text()
    ivy = ivy.replace('<conf name="broker"/>', '<conf name="broker"/><conf name="s3"/>')
    gamma_too = '<dependency org="org.example" name="gamma" rev="3" conf="s3->default"/></dependencies>'
    ivy_file.write_text(ivy.replace("</dependencies>", gamma_too))
    write_sums(folder, {**CONTENTS, "s3/gamma-3.jar": b"for S3"})
    fetch(folder, mirror)
    first = mirror.downloads()
    with pytest.raises(JarsMissing, match=r"lacks 1 of 1 JARs of s3 \(gamma-3\.jar\); run `wakeroll jars s3`"):
        jar_paths(SPARK, S3, jars=set_of(folder))
    ensure_jars([SPARK, S3], jars=set_of(folder), maven_url=mirror.url, say=lambda _: None)
    second = mirror.downloads()
    fetch(folder, mirror)

    assert (first, second, mirror.downloads()) == (["alpha-1.jar", "beta-2.jar"], ["gamma-3.jar"], [])
    assert jar_paths(S3, jars=set_of(folder)) == [folder / "s3/gamma-3.jar"]
    assert found(folder) == CONTENTS


def test_the_classes_for_s3_are_compiled_by_spark_s_own_compiler(tmp_path):
    """A Java without a compiler is enough; a change of the sources is compiled again under another name."""
    try:
        fetched = jar_paths(S3)
    except JarsMissing as error:
        pytest.skip(str(error))
    jar = tmp_path / "ours.jar"
    s3_classes._compile(jar, fetched)
    with zipfile.ZipFile(jar) as archive:
        names = archive.namelist()
    s3_classes._compile(tmp_path / "again.jar", fetched)

    assert names == [
        f"wakeroll/{name}.class" for name in ("ConditionalS3A", "ConditionalS3AFileSystem", "ConditionalStream")
    ]
    assert jar.read_bytes() == (tmp_path / "again.jar").read_bytes()


def test_a_folder_that_cannot_be_written_has_no_jar_that_hides_settings(tmp_path, monkeypatch):
    file = tmp_path / "no-folder"
    file.touch()
    monkeypatch.setenv(jar_paths_module.FOLDER_VARIABLE, str(file))

    assert hadoop_defaults_jar() == []


def test_jars_that_somebody_put_there_are_taken(folder, mirror):
    """A machine without a network gets them by copying two folders."""
    for name, content in CONTENTS.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)

    said = fetch(folder, mirror)

    assert (said, mirror.asked) == ([], [])


def test_a_jar_that_was_lost_or_changed_is_fetched_again(folder, mirror):
    """A file removed by hand, or half of it lost by a disk, must not end in Java's ClassNotFoundException."""
    fetch(folder, mirror)
    (folder / "spark/alpha-1.jar").write_bytes(b"for")
    fetch(folder, mirror)
    (folder / "broker/beta-2.jar").unlink()
    fetch(folder, mirror)

    assert found(folder) == CONTENTS


def test_what_was_fetched_before_a_failure_is_kept(folder, mirror):
    """A mirror may lack one of sixty JARs, or a line may drop; nobody wants to fetch the other fifty-nine again."""
    missing = mirror.files.pop(BETA)
    with pytest.raises(JarsMissing, match=r"does not have org\.example#beta;2!beta\.jar; name one that does"):
        fetch(folder, mirror)
    before = mirror.downloads()
    mirror.files[BETA] = missing
    fetch(folder, mirror)

    assert "alpha-1.jar" in before
    assert mirror.downloads() == ["beta-2.jar"]
    assert found(folder) == CONTENTS


def test_a_module_that_the_mirror_lacks_is_named(folder, mirror):
    mirror.files.clear()

    assert failure(folder, mirror) == (
        "the Maven repository does not have org.example#alpha;1, org.example#beta;2; "
        "name one that does in WAKEROLL_MAVEN_URL, then start again: what was fetched is kept."
    )


def test_a_wrong_jar_is_named_and_fetched_anew(folder, mirror):
    """A mirror that was tampered with, or a captive portal's page: it must reach neither a JVM nor the next start."""
    mirror.files[ALPHA] = b"something else"
    sentence = failure(folder, mirror)
    nothing_yet = found(folder)
    mirror.files[ALPHA] = CONTENTS["spark/alpha-1.jar"]
    mirror.downloads()
    fetch(folder, mirror)

    assert sentence == (
        "the fetched JARs do not match sha256sums (with a wrong hash: spark/alpha-1.jar); "
        "start again, which fetches the wrong ones again (from another mirror, if WAKEROLL_MAVEN_URL names one)."
    )
    assert nothing_yet == {}
    assert mirror.downloads() == ["alpha-1.jar"]
    assert found(folder) == CONTENTS


def test_a_list_that_does_not_fit_is_said_to(folder, mirror):
    """Whoever changed ivy.xml and forgot the hashes learns which are missing and which are too many."""
    write_sums(folder, {"spark/alpha-1.jar": CONTENTS["spark/alpha-1.jar"], "broker/gamma-3.jar": b"?"})

    assert failure(folder, mirror) == (
        "the fetched JARs do not match sha256sums (missing: broker/gamma-3.jar; "
        "not in the list: broker/beta-2.jar); "
        "ivy.xml and sha256sums do not fit each other: take both from one version of wakeroll."
    )


def test_no_network_is_one_sentence(folder, mirror):
    with closed_port() as port:
        mirror.url = f"http://{HOST}:{port}"

        assert re.fullmatch(
            r"cannot reach the Maven repository \(.*Connection refused.*\); check the network, or name a mirror in "
            r"WAKEROLL_MAVEN_URL, then start again: what was fetched is kept\.",
            failure(folder, mirror),
        )


def test_a_repository_that_says_nothing_is_given_up(folder, mirror):
    """Ivy itself would wait a minute for each of a hundred files."""
    mirror.stalled.add(pom(ALPHA))

    with pytest.raises(JarsMissing, match=r"the Maven repository has sent nothing for 1 s; check the network"):
        ensure_jars(jars=set_of(folder), maven_url=mirror.url, say=lambda _: None, silence_s=1)


def test_two_at_once_fetch_once(folder, mirror):
    """`make run` in two terminals."""
    said: list[list[str]] = []
    starts = [threading.Thread(target=lambda: said.append(fetch(folder, mirror))) for _ in range(2)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()

    assert mirror.downloads() == ["alpha-1.jar", "beta-2.jar"]
    assert found(folder) == CONTENTS
    assert sorted(map(len, said)) in ([0, 3], [1, 3])


def test_ctrl_c_is_one_sentence_and_leaves_nobody_behind(folder, mirror, monkeypatch):
    mirror.stalled.add(BETA)
    monkeypatch.setenv("WAKEROLL_MAVEN_URL", mirror.url)
    # A shell without job control lets what it starts in the background ignore Ctrl-C, and this test may be below one.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from pathlib import Path; "
        "from wakeroll_pipeline.cli import jars_command; from wakeroll_pipeline.cli.app import run_app; "
        "from wakeroll_pipeline.spark.jar_paths import JarSet; ours = JarSet(*map(Path, sys.argv[1:])); "
        "jars_command.our_jars = lambda: ours; sys.exit(run_app(['jars', 'spark', 'broker']))"
    )
    command = [sys.executable, "-c", program, str(folder), str(set_of(folder).lists)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as start:
        wait_until(lambda: BETA in mirror.asked, "the second JAR is requested")
        start.send_signal(signal.SIGINT)
        _, errors = start.communicate(timeout=30)
    mirror.stalled.clear()
    mirror.downloads()
    fetch(folder, mirror)

    assert mirror.downloads() == ["beta-2.jar"]
    assert start.returncode == 130
    assert errors == "jars: stopped; fetched JARs are kept, and the next start continues from there\n"
    assert found(folder) == CONTENTS


def test_a_broken_java_home_is_one_sentence(folder, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    with pytest.raises(JarsMissing) as error:
        ensure_jars(jars=set_of(folder))

    assert str(error.value) == (
        "JAVA_HOME is /nowhere, but there is no bin/java in it; set JAVA_HOME to a Java 17 or newer, or unset it."
    )


def test_a_program_that_needs_missing_jars_says_how_to_get_them(folder):
    with pytest.raises(JarsMissing) as error:
        jar_paths(*LOCAL, jars=set_of(folder))

    assert str(error.value) == (
        f"{folder} lacks 1 of 1 JARs of spark (alpha-1.jar) and 1 of 1 JARs of broker (beta-2.jar); "
        "run `wakeroll jars spark broker`."
    )


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (
            'Exception in thread "main" java.io.IOException: No space left on device\n\tat java.base/java.io',
            "the disk is full; free some space, then start again: what was fetched is kept",
        ),
        (
            "\tHost repo.example not found. url=https://repo.example/a.pom\n",
            "cannot reach the Maven repository (Host repo.example not found); check the network, or name a mirror in "
            "WAKEROLL_MAVEN_URL, then start again: what was fetched is kept",
        ),
        (
            "\tSERVER ERROR: Service Unavailable url=https://repo.example/a.pom\n",
            "cannot reach the Maven repository (SERVER ERROR: Service Unavailable url=https://repo.example/a.pom); "
            "check the network, or name a mirror in WAKEROLL_MAVEN_URL, then start again: what was fetched is kept",
        ),
        (
            'Exception in thread "main" java.lang.Unexpected: no idea\n\tat org.apache.ivy',
            'Ivy failed (Exception in thread "main" java.lang.Unexpected: no idea); remove the folder /jars/.ivy and '
            "start again",
        ),
    ],
)
def test_what_ivy_says_at_length_becomes_a_sentence(output, sentence):
    assert explain(output, Path("/jars/.ivy")) == sentence


def test_proxies_of_the_environment_are_java_s_too():
    """Pip follows https_proxy, Java does not: the same machine would install PySpark and then fail to fetch JARs."""
    proxies = {"http": "http://proxy:3128", "https": "http://proxy.example:8080/", "no": "localhost, .corp, 10.0.0.7"}

    assert proxy_options(proxies) == [
        "-Dhttp.proxyHost=proxy",
        "-Dhttp.proxyPort=3128",
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=8080",
        "-Dhttp.nonProxyHosts=localhost|corp|*.corp|10.0.0.7",
    ]
    assert proxy_options({}) == []


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://proxy.corp", "proxy.corp", "443"),
        ("proxy.corp:8080", "proxy.corp", "8080"),
        ("http://[fd00::1]:3128", "fd00::1", "3128"),
        ("http://user:word@proxy:3128", "proxy", "3128"),
    ],
)
def test_an_address_of_a_proxy_may_have_every_form_that_pip_takes(url, host, port):
    options = proxy_options({"https": url})

    assert options[:2] == [f"-Dhttps.proxyHost={host}", f"-Dhttps.proxyPort={port}"]


def test_no_password_is_left_if_ivy_cannot_be_started(folder, mirror, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://user:secretword@127.0.0.1:1")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("wakeroll_pipeline.spark.ivy.subprocess.Popen", fail)
    assert "no more processes" in failure(folder, mirror)

    assert [file for file in folder.rglob("*") if file.is_file() and b"secretword" in file.read_bytes()] == []


def test_further_rules_of_proxies():
    assert proxy_options({"all": "socks5://gate"}) == ["-DsocksProxyHost=gate", "-DsocksProxyPort=1080"]
    assert proxy_options({"http": "a:1", "no": "b.example:80,*"})[-1] == "-Dhttp.nonProxyHosts=*"
    assert proxy_options({"http": "a:1", "no": "b.example:80"})[-1] == "-Dhttp.nonProxyHosts=b.example|*.b.example"
    with pytest.raises(IvyFailed, match="the address in https_proxy is not valid; it must be http://HOST:PORT") as bad:
        proxy_options({"https": "http://u:secret@proxy:port"})
    assert "secret" not in str(bad.value)


def test_jars_are_fetched_through_a_proxy_with_a_password(folder, mirror, monkeypatch):
    """The password has characters that a URL and a file of arguments escape; it is not left in a file."""
    mirror.login = 'us er:p"w\\d'
    monkeypatch.setenv("http_proxy", f"http://us%20er:p%22w%5Cd@127.0.0.1:{mirror.server_port}")
    monkeypatch.setenv("no_proxy", "elsewhere.example")

    fetch(folder, mirror, url="http://maven.example")

    assert mirror.downloads() == ["alpha-1.jar", "beta-2.jar"]
    assert mirror.refused > 0
    assert [file for file in folder.rglob("*") if file.is_file() and b"w\\d" in file.read_bytes()] == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WAKEROLL_JARS": "/opt/jars", "XDG_CACHE_HOME": "/cache", "HOME": "/users/ann"}, "/opt/jars"),
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/users/ann"}, "/cache/wakeroll/jars-<list>"),
        ({"HOME": "/users/ann"}, "/users/ann/.cache/wakeroll/jars-<list>"),
        ({"XDG_CACHE_HOME": "cache", "HOME": "/users/ann"}, "/users/ann/.cache/wakeroll/jars-<list>"),
    ],
    ids=["named", "platform's cache", "home", "a relative cache is none"],
)
def test_an_installed_package_keeps_its_jars_where_the_user_may_write(tmp_path, monkeypatch, environment, expected):
    """The package itself may be read-only, or belong to root; and another list of JARs has a folder of its own."""
    monkeypatch.setattr(jar_paths_module, "_CHECKOUT", tmp_path)  # has no pyproject.toml, like site-packages
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("WAKEROLL_JARS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256((our_jars().lists / "sha256sums").read_bytes()).hexdigest()[:12]

    assert str(our_jars().folder) == expected.replace("<list>", digest)


def test_a_checkout_keeps_its_jars_in_itself(monkeypatch):
    monkeypatch.delenv("WAKEROLL_JARS", raising=False)

    assert our_jars().folder == ROOT / "deploy" / "jars"


def test_no_jar_of_ours_is_in_spark_already():
    """Two versions of one library on Spark's class path: whichever is found first breaks the other's users."""
    listed = [line.split()[1] for line in (our_jars().lists / "sha256sums").read_text().splitlines()]
    ours = {library(name) for name in listed if name.startswith(("spark/", "s3/"))}
    of_spark = {library(path.name) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}

    assert len(ours) == 14 + 37
    assert ours & of_spark == set()


def fetch(folder: Path, mirror: Mirror, url: str = "") -> list[str]:
    """Fetch from the mirror, or from the URL of another one; return what was said."""
    said: list[str] = []
    ensure_jars(jars=set_of(folder), maven_url=url or mirror.url, say=said.append)
    return said


def failure(folder: Path, mirror: Mirror) -> str:
    """Fetch in vain; return the sentence."""
    with pytest.raises(JarsMissing) as error:
        fetch(folder, mirror)
    return str(error.value)


def found(folder: Path) -> dict[str, bytes]:
    """Return the JARs in place, by name."""
    paths = [*folder.glob("spark/*"), *folder.glob("broker/*")]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}


def set_of(folder: Path) -> JarSet:
    """Return the JARs of a test: the folder, and its lists."""
    return JarSet(folder, folder.parent / "lists")


def write_sums(folder: Path, contents: dict[str, bytes]) -> None:
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()]
    (set_of(folder).lists / "sha256sums").write_text("".join(lines))


def library(jar: str) -> str:
    """Return a JAR's name without folder and version."""
    return re.sub(r"-\d[^/]*\.jar$", "", jar.rpartition("/")[2])


def pom(jar: str) -> str:
    """Return the path of the description of a JAR."""
    return jar.replace(".jar", ".pom")
