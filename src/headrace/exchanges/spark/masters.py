"""Masters of Spark: whether a URL names one, whether it answers, and how many cores it says it has.

Spark itself takes a minute to give up a master that does not answer, and ends with the stack of Java. So
whoever is named is called before Java starts.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError

_CALL_SECONDS = 5.0
"""How long a master may take to accept a connection."""
_REPLY_SECONDS = 0.3
"""How long a web server may take to complain about what no browser sends."""
_LOCAL = re.compile(r"local(\[([1-9]\d*|\*)(\s*,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([1-9]\d*)\s*,\s*([1-9]\d*)\s*,\s*\d+\s*\]")
_STANDALONE, _KUBERNETES, _CONNECT = "spark://", "k8s://", "sc://"
_FORMS = "use local[*], local[4], spark://host:7077, yarn or k8s://https://host:6443"
_CONFIGURATIONS = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")
_RESOURCE_MANAGER = "yarn.resourcemanager"


def is_local(master: str) -> bool:
    """Whether the executors are on this machine, started with the driver."""
    return master.startswith("local")


def cores_of(master: str) -> int | None:
    """How many tasks a master URL says it runs at once, if it does."""
    if match := _LOCAL.fullmatch(master):
        return (os.cpu_count() or 1) if match[2] == "*" else int(match[2] or 1)
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match[1]) * int(match[2])
    return None


def check_master(master: str, *, environ: Mapping[str, str]) -> None:
    """Raise an error that says what to do if the URL is none of a master, or nobody answers there."""
    if _LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master):
        return
    if master.startswith(_STANDALONE):
        _check_standalone(master)
    elif master.startswith(_KUBERNETES):
        _check_kubernetes(master)
    elif master == "yarn":
        _check_yarn(environ)
    else:
        raise ConfigurationError(f"`{master}` is not a Spark master", hint=_advice(master))


def _advice(master: str) -> str:
    """What whoever wrote this may have meant."""
    written = master.strip().lower()
    host = re.search(r"([\w.-]+:\d+)$", written)
    if written.startswith(_CONNECT):
        return (
            "this is a Spark Connect server, which has no RDDs; name the cluster's own master: "
            "spark://host:7077, yarn or k8s://https://host:6443"
        )
    for beginning, advice in {
        "yarn": "use yarn",
        "mesos": f"Spark no longer runs on Mesos; {_FORMS}",
        "http": f"this is a web page; a standalone master has spark://host:7077; {_FORMS}",
        "local-cluster": "name workers, the cores of each and its memory in MB: local-cluster[2,1,1024]",
        "local": "use local, local[4] with a number of threads from 1 on, or local[*] for all cores",
        "k8s": f"did you mean `k8s://https://{host[1] if host else 'host:6443'}`?",
    }.items():
        if written.startswith(beginning):
            return advice
    if host and (written.startswith("spark") or host[1] == written):
        return f"did you mean `spark://{host[1]}`?"
    return _FORMS


def _check_standalone(master: str) -> None:
    addresses = [_parse_address(part) for part in master.removeprefix(_STANDALONE).split(",")]
    if None in addresses:
        raise ConfigurationError(
            f"`{master}` is not the address of a standalone master",
            hint="write spark://host:7077, or spark://host1:7077,host2:7077 if there are standby masters",
        )
    _call(
        [address for address in addresses if address is not None],
        f"no Spark master answers at `{master}`",
        "check that the master runs (its web page, port 8080 by default, shows its URL), and that this "
        "machine reaches that port",
        expects_web=False,
    )


def _check_kubernetes(master: str) -> None:
    server = master.removeprefix(_KUBERNETES)
    try:
        url = urlsplit(server if "://" in server else f"https://{server}")
        address = (url.hostname or "", url.port or (80 if url.scheme == "http" else 443))
    except ValueError:
        address = ("", 0)
    if not address[0]:
        raise ConfigurationError(
            f"`{master}` names no API server of Kubernetes",
            hint="write k8s://https://host:6443; `kubectl cluster-info` shows the address",
        )
    _call(
        [address],
        f"no API server of Kubernetes answers at `{master}`",
        "`kubectl cluster-info` shows the address; check that this machine reaches it",
        expects_web=True,
    )


def _check_yarn(environ: Mapping[str, str]) -> None:
    """Look for the resource manager where Hadoop's files say it is."""
    directory = next((environ[name] for name in _CONFIGURATIONS if environ.get(name)), None)
    if directory is None:
        raise ConfigurationError(
            "`yarn` needs to know the cluster, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
            hint="export HADOOP_CONF_DIR=/the/directory/with/yarn-site.xml of the cluster",
        )
    if not Path(directory).is_dir():
        raise ConfigurationError(
            f"the directory of Hadoop's configuration does not exist: {directory}",
            hint="export HADOOP_CONF_DIR=/the/directory/with/yarn-site.xml of the cluster",
        )
    addresses = _resource_managers(Path(directory, "yarn-site.xml"))
    if addresses:
        _call(
            addresses,
            "no resource manager of YARN answers at "
            + " or ".join(f"{host}:{port}" for host, port in addresses),
            f"{directory}/yarn-site.xml names it; check that it runs and that this machine reaches it",
            expects_web=False,
        )


def _resource_managers(file: Path) -> list[tuple[str, int]]:
    """The addresses in yarn-site.xml; none if it has variables in them that only Hadoop knows."""
    try:
        root = ET.fromstring(file.read_bytes())  # noqa: S314 - the user's own configuration
    except OSError:
        return []
    except ET.ParseError as error:
        raise ConfigurationError(f"{file} is not valid XML: {error}") from None
    values = {
        item.findtext("name", "").strip(): item.findtext("value", "").strip()
        for item in root.iter("property")
    }
    ids = [
        name.strip() for name in values.get(f"{_RESOURCE_MANAGER}.ha.rm-ids", "").split(",") if name.strip()
    ]
    addresses = []
    for suffix in [f".{name}" for name in ids] or [""]:
        host = values.get(f"{_RESOURCE_MANAGER}.hostname{suffix}", "")
        written = values.get(f"{_RESOURCE_MANAGER}.address{suffix}") or (f"{host}:8032" if host else "")
        address = _parse_address(written)
        if address is None:
            return []
        addresses.append(address)
    return addresses


def _parse_address(text: str) -> tuple[str, int] | None:
    match = re.fullmatch(r"\[?([\w.:%-]+?)\]?:(\d{1,5})", text.strip())
    if match is None or not 0 < int(match[2]) < 65536:
        return None
    return match[1], int(match[2])


def _call(addresses: list[tuple[str, int]], problem: str, hint: str, *, expects_web: bool) -> None:
    """Raise an error if no address accepts a connection, or a web server does where none is expected."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        outcomes = list(pool.map(_connect, addresses))
    if all(isinstance(outcome, str) for outcome in outcomes):
        raise ExternalError(f"{problem}: {'; '.join(filter(None, map(str, outcomes)))}", hint=hint)
    if not expects_web and all(outcome is not False for outcome in outcomes):
        raise RefusedError(f"{problem}: a web server does", hint=hint)


def _connect(address: tuple[str, int]) -> str | bool:
    """Why an address cannot be connected to, or whether a web server answers there.

    Four zeros begin the length of a message for Spark, which waits for the rest; they are an error in a
    request to a web server, which says so at once.
    """
    try:
        with socket.create_connection(address, timeout=_CALL_SECONDS) as connection:
            connection.settimeout(_REPLY_SECONDS)
            try:
                connection.sendall(bytes(4))
                return connection.recv(5) == b"HTTP/"
            except OSError:
                return False
    except socket.gaierror:
        return f"there is no host `{address[0]}`"
    except TimeoutError:
        return f"no answer within {_CALL_SECONDS:.0f} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
