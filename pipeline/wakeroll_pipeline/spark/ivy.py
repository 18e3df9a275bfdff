"""Download of JARs with the Ivy in PySpark: no Maven is needed, and the user's ~/.m2 and ~/.ivy2 are not used."""

import importlib.util
import os
import re
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies
from xml.sax.saxutils import quoteattr

from wakeroll.errors import WakerollError
from wakeroll_pipeline.prerequisites import check_java, java_path

CACHE = ".ivy"
"""Cache folder beside the JARs, with the files that were fetched so far, so that an interrupted download can
continue."""

SILENCE_S = 90.0
"""Time without data after which a download fails (s)."""

_SETTINGS = """<ivysettings>
  <settings defaultResolver="maven"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers><ibiblio name="maven" m2compatible="true" timeoutConstraint="patient"{root}/></resolvers>
</ivysettings>
"""


class IvyFailed(WakerollError):
    """Ivy could not fetch all JARs; the message is a reason and a remedy, without a full stop."""


def retrieve(
    ivy_file: Path,
    folder: Path,
    into: str,
    configurations: Sequence[str],
    *,
    maven_url: str = "",
    fetched: Callable[[str], None],
    keep_open: int,
    silence_s: float,
) -> None:
    """Resolve an ivy.xml and copy its JARs to `folder`/`into`/<configuration>/.

    Args:
        ivy_file: the list of JARs.
        folder: folder of the JARs and of the cache.
        into: subfolder for the JARs.
        configurations: configurations of `ivy_file` to resolve.
        maven_url: Maven repository to use instead of Ivy's default.
        fetched: called with the file name of each downloaded JAR.
        keep_open: open file that Ivy's process inherits, so that a lock on it lasts until that process has ended too.
        silence_s: seconds without output of Ivy after which it fails; Ivy prints a dot every few kilobytes.

    Raises:
        IvyFailed: the download failed, for any reason.
    """
    java = java_path()
    if java is None:
        check = check_java()
        raise IvyFailed(f"{check.found}; {check.fix}")
    cache = folder / CACHE
    cache.mkdir(parents=True, exist_ok=True)
    root = f" root={quoteattr(maven_url.rstrip('/') + '/')}" if maven_url else ""
    (cache / "settings.xml").write_text(_SETTINGS.format(root=root), encoding="utf-8")
    # All paths are relative, because brackets have a meaning in Ivy's patterns, and a folder's path may contain some.
    shutil.copy(ivy_file, cache / "ivy.xml")
    names = ["-settings", f"{CACHE}/settings.xml", "-ivy", f"{CACHE}/ivy.xml", "-cache", CACHE]
    names += ["-types", "jar", "bundle", "-confs", *configurations]
    pattern = f"{into}/[conf]/[artifact]-[revision].[ext]"
    arguments = ["-jar", str(_ivy()), *names, "-retrieve", pattern]
    lines = []
    with _in_a_file(proxy_options(getproxies()), cache / "java.options") as options:
        ivy = subprocess.Popen(
            [java, f"@{CACHE}/{options.name}", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(keep_open,),
            bufsize=0,
        )
        try:
            for line in _lines(ivy, silence_s):
                lines.append(line)
                if success := re.match(r"\s*\[SUCCESSFUL \] [^;]+;([^!]+)!(.+)\.jar", line):
                    fetched(f"{success[2]}-{success[1]}.jar")
            ivy.wait()
        finally:
            # On Ctrl-C, this stops Ivy; after its end, this does nothing.
            ivy.kill()
            ivy.wait()
            (cache / "ivy.log").write_text("\n".join(lines), encoding="utf-8")
    if ivy.returncode != 0:
        raise IvyFailed(explain("\n".join(lines), cache))


def explain(output: str, cache: Path) -> str:
    """Return one sentence with the reason of Ivy's failure, and the remedy, which may be to remove the cache."""
    again = "then start again: what was fetched is kept"
    if "No space left on device" in output:
        return f"the disk is full; free some space, {again}"
    for reason in (
        r"Host \S+ not found",
        r"Server access error at url [^\n]*",
        r"(?:CLIENT|SERVER) ERROR: [^\n]*",
        r"(?<=problem while downloading module descriptor: )[^\n]*",
    ):
        if found := re.search(reason, output):
            return f"cannot reach the Maven repository ({found[0].strip()}); {_CHECK_NETWORK}, {again}"
    lacking = re.findall(r"^\s*:: (\S+#\S+): not found|^\s*:: (\S+#\S+!\S+)$", output, re.MULTILINE)
    if lacking:
        names = ", ".join(resolved or artifact for resolved, artifact in lacking)
        return f"the Maven repository does not have {names}; name one that does in WAKEROLL_MAVEN_URL, {again}"
    last = next((line for line in output.splitlines() if "Exception" in line), output.strip()[-200:])
    return f"Ivy failed ({last.strip()}); remove the folder {cache} and start again"


def proxy_options(proxies: Mapping[str, str]) -> list[str]:
    """Convert the proxies that pip uses (https_proxy and the like) to options of Java, which does not read them.

    Args:
        proxies: URLs by scheme; "all" counts for schemes without one, and "no" lists hosts without a proxy, separated
            by commas: each with its subdomains, as in pip.

    Raises:
        IvyFailed: a URL is not valid; the message does not contain it, because it may have a password.
    """
    options = []
    for scheme, default_port in (("http", 80), ("https", 443)):
        if not (url := proxies.get(scheme) or proxies.get("all") or ""):
            continue
        try:
            proxy = urlsplit(url if "://" in url else f"//{url}")
            host, port = proxy.hostname, proxy.port
        except ValueError:
            host, port = None, None
        if not host:
            raise IvyFailed(f"the address in {scheme}_proxy is not valid; it must be http://HOST:PORT")
        if proxy.scheme.startswith("socks"):
            options += [f"-DsocksProxyHost={host}", f"-DsocksProxyPort={port or 1080}"]
            continue
        options += [f"-D{scheme}.proxyHost={host}", f"-D{scheme}.proxyPort={port or default_port}"]
        if proxy.username:  # Ivy reads these names for either scheme; Java's own list refuses passwords for HTTPS
            options += [
                f"-Dhttp.proxyUser={unquote(proxy.username)}",
                f"-Dhttp.proxyPassword={unquote(proxy.password or '')}",
                "-Djdk.http.auth.tunneling.disabledSchemes=",
            ]
    if options and (direct := _direct_hosts(proxies.get("no", ""))):
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(direct)}")
    return list(dict.fromkeys(options))


def _direct_hosts(no_proxy: str) -> list[str]:
    """Return Java's patterns for a list of hosts without a proxy, without ports, which Java does not support."""
    patterns = []
    for entry in no_proxy.split(","):
        host = re.sub(r":\d+$", "", entry.strip().lstrip(".")) if entry.count(":") < 2 else entry.strip()
        if host == "*":
            return ["*"]
        is_address = re.fullmatch(r"[\d.]+|\[?[0-9a-fA-F:]+\]?", host) is not None
        if host:
            patterns += [host] if is_address or host == "localhost" else [host, f"*.{host}"]
    return patterns


def _lines(ivy: "subprocess.Popen[bytes]", silence_s: float) -> Iterator[str]:
    """Yield Ivy's output by lines; the dots of an unfinished line also restart the timeout."""
    assert ivy.stdout is not None
    unfinished = b""
    while select.select([ivy.stdout], [], [], silence_s)[0]:
        received = os.read(ivy.stdout.fileno(), 64 * 1024)
        if not received:
            yield unfinished.decode("utf-8", "replace")
            return
        *lines, unfinished = (unfinished + received).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    raise IvyFailed(f"the Maven repository has sent nothing for {silence_s:g} s; {_CHECK_NETWORK}, then start again")


@contextmanager
def _in_a_file(options: Sequence[str], file: Path) -> Iterator[Path]:
    """Store options of Java in a file of arguments: a proxy's password must not be in the list of processes."""
    escaped = [option.replace("\\", "\\\\").replace('"', '\\"') for option in options]
    try:
        file.touch(mode=0o600)
        file.write_text("\n".join(f'"{option}"' for option in escaped), encoding="utf-8")
        yield file
    finally:
        file.unlink(missing_ok=True)


def _ivy() -> Path:
    # Importing PySpark would take longer than the rest of a start with existing JARs.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise IvyFailed(
            "PySpark, whose Ivy fetches the JARs, is not installed; install it with: pip install 'wakeroll[spark]'"
        )
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))


_CHECK_NETWORK = "check the network, or name a mirror in WAKEROLL_MAVEN_URL"
