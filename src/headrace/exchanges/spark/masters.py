"""Spark masters: checks of their URLs, whether they answer, and how many cores they have.

Spark itself takes a minute to give up a master that does not answer, and ends with the stack of Java. So
whoever is named is called before Java starts.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError

_CALL_SECONDS = 5.0
"""How long a master may take to accept a connection."""
ANSWER_SECONDS = 8.0
"""How long it may take in all until its first answer."""
_COMPLAINT_SECONDS = 0.3
"""How long a web server may take to complain about what no browser sends."""
_UNKNOWN_FILE = b"/files/headrace"
_QUESTION = struct.pack(">qbi", 13 + len(_UNKNOWN_FILE), 6, len(_UNKNOWN_FILE)) + _UNKNOWN_FILE
"""A frame of Spark's network protocol: a request for a file that nobody serves.

Masters of all versions answer that there is none, also those that ask for authentication, and log nothing.
"""
_ANSWER = 65536
"""More bytes than an answer to it has."""
_WEB = "a web server does"
_LOCAL = re.compile(r"local(\[([1-9]\d*|\*)(\s*,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([1-9]\d*)\s*,\s*([1-9]\d*)\s*,\s*\d+\s*\]")
_STANDALONE, _KUBERNETES, _CONNECT = "spark://", "k8s://", "sc://"
_FORMS = "use local[*], local[4], spark://host:7077, yarn, k8s://https://host:6443 or sc://host:15002"
_CONNECT_PORT = 15002
_CONNECT_FORM = re.compile(r"sc://([^/;]*)(?:/?(?:;(.*))?)?")
_SECRET_PARAMETER = re.compile(r"(?<=;)([^;=]*(?:token|password|secret)[^;=]*)=[^;]*", re.IGNORECASE)
_CONFIGURATIONS = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")
_RESOURCE_MANAGER = "yarn.resourcemanager"


def is_local(master: str) -> bool:
    """Whether the executors are on this machine, started with the driver."""
    return master.startswith("local")


def is_standalone(master: str) -> bool:
    """Whether this is the address of a master of Spark itself."""
    return master.startswith(_STANDALONE)


def is_kubernetes(master: str) -> bool:
    """Whether the executors are pods of a Kubernetes cluster."""
    return master.startswith("k8s://")


def is_connect(master: str) -> bool:
    """Whether this is the address of a Spark Connect server."""
    return master.strip().lower().startswith(_CONNECT)


def shown_master(master: str) -> str:
    """The URL of a master without the secrets in it.

    >>> shown_master("sc://host:443/;use_ssl=true;token=abc")
    'sc://host:443/;use_ssl=true;token=***'
    """
    return _SECRET_PARAMETER.sub(r"\1=***", master)


def cores_of(master: str) -> int | None:
    """The number of concurrent tasks that a master URL states, if it does."""
    if match := _LOCAL.fullmatch(master):
        return (os.cpu_count() or 1) if match[2] == "*" else int(match[2] or 1)
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match[1]) * int(match[2])
    return None


def address_of(master: str) -> tuple[str, int] | None:
    """The address of a master, if its URL has one: the first address of a standalone master."""
    if is_standalone(master):
        return _parse_address(master.removeprefix(_STANDALONE).split(",")[0])
    return _kubernetes_address(master) if master.startswith(_KUBERNETES) else None


def check_form(master: str) -> None:
    """Raise an error if the URL is of no kind of master, without asking anybody."""
    is_known = (
        _LOCAL.fullmatch(master)
        or _LOCAL_CLUSTER.fullmatch(master)
        or master.startswith((_STANDALONE, _KUBERNETES, _CONNECT))
        or master == "yarn"
    )
    if not is_known:
        raise ConfigurationError(f"`{shown_master(master)}` is not a Spark master", hint=_advice(master))


def check_master(master: str, *, environ: Mapping[str, str]) -> None:
    """Raise an error if the URL is not that of a master, or the master does not answer."""
    check_form(master)
    if is_standalone(master):
        _check_standalone(master)
    elif master.startswith(_KUBERNETES):
        _check_kubernetes(master)
    elif master == "yarn":
        _check_yarn(environ)
    elif master.startswith(_CONNECT):
        _check_connect(master)


def _advice(master: str) -> str:
    """A suggestion for a misspelt master URL."""
    written = master.strip().lower()
    host = re.search(r"([\w.-]+:\d+)$", written)
    for beginning, advice in {
        "sc": f"did you mean `sc://{host[1] if host else 'host:15002'}`?",
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
        _master_problem,
    )


def _check_connect(master: str) -> None:
    match = _CONNECT_FORM.fullmatch(master)
    host = "" if match is None else match[1]
    address = _parse_address(host if re.search(r":\d+$", host) else f"{host}:{_CONNECT_PORT}")
    parameters = "" if match is None else match[2] or ""
    if address is None or not all(
        re.fullmatch("[^=]+=[^=]*", part) for part in parameters.split(";") if part
    ):
        raise ConfigurationError(
            f"`{shown_master(master)}` is not the address of a Spark Connect server",
            hint="write sc://host:15002, and behind it what the server asks for: sc://host:443/;token=…",
        )
    _call(
        [address],
        f"no Spark Connect server answers at `{shown_master(master)}`",
        "check that it runs (start-connect-server.sh; it says where it listens, port 15002 by default), and "
        "that this machine reaches that port",
        _no_problem,
    )


def _check_kubernetes(master: str) -> None:
    address = _kubernetes_address(master)
    if address is None:
        raise ConfigurationError(
            f"`{master}` names no API server of Kubernetes",
            hint="write k8s://https://host:6443; `kubectl cluster-info` shows the address",
        )
    _call(
        [address],
        f"no API server of Kubernetes answers at `{master}`",
        "`kubectl cluster-info` shows the address; check that this machine reaches it",
        _no_problem if master.startswith(f"{_KUBERNETES}http://") else _tls_problem,
    )


def _kubernetes_address(master: str) -> tuple[str, int] | None:
    server = master.removeprefix(_KUBERNETES)
    try:
        url = urlsplit(server if "://" in server else f"https://{server}")
        address = (url.hostname or "", url.port or (80 if url.scheme == "http" else 443))
    except ValueError:
        return None
    return address if address[0] else None


def _check_yarn(environ: Mapping[str, str]) -> None:
    """Check that the resource manager answers at the address in Hadoop's configuration."""
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
            _web_problem,
        )


def _resource_managers(file: Path) -> list[tuple[str, int]]:
    """The addresses in yarn-site.xml; none if they contain variables that only Hadoop can resolve."""
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


Listen = Callable[[socket.socket], str | None]
"""Finds out what is wrong with who accepts a connection; its timeout is all the time that is left."""


def _call(addresses: list[tuple[str, int]], problem: str, hint: str, listen: Listen) -> None:
    """Raise an error if at no address somebody answers as he must."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        reasons = list(pool.map(partial(_reason_against, listen=listen), addresses))
    told = [reason for reason in reasons if reason is not None]
    if len(told) < len(reasons):
        return
    if _WEB in told:
        raise RefusedError(f"{problem}: {_WEB}", hint=hint)
    raise ExternalError(f"{problem}: {'; '.join(told)}", hint=hint)


def _reason_against(address: tuple[str, int], *, listen: Listen) -> str | None:
    """Why an address is of no use, if it is not."""
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        connection = socket.create_connection(address, timeout=min(_CALL_SECONDS, ANSWER_SECONDS))
    except socket.gaierror:
        return f"there is no host `{address[0]}`"
    except TimeoutError:
        return f"no answer within {_CALL_SECONDS:.0f} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with connection:
        connection.settimeout(max(deadline - time.monotonic(), 0.1))
        try:
            return listen(connection)
        except TimeoutError:
            return f"who accepts connections there says nothing for {ANSWER_SECONDS:.0f} s"
        except OSError as error:
            return (error.strerror or str(error)).lower()


def _no_problem(_connection: socket.socket) -> None:
    """Whoever accepts connections will do."""


def _master_problem(connection: socket.socket) -> str | None:
    """A master answers a question of Spark's protocol; behind TLS only who speaks TLS can ask it."""
    address = connection.getpeername()[:2]
    try:
        connection.sendall(_QUESTION)
        answer = connection.recv(_ANSWER)  # all of it: a master logs a connection that is closed before
    except ConnectionError:
        answer = b""
    if answer.startswith(b"HTTP/"):
        return _WEB
    if answer:
        return None
    try:
        with socket.create_connection(address, timeout=connection.gettimeout()) as again:
            _greet_with_tls(again)
    except TimeoutError:
        raise
    except OSError:
        return "who accepts connections there closes them"
    return None


def _tls_problem(connection: socket.socket) -> None:
    """A web server answers a greeting of TLS, if only with a complaint."""
    try:
        _greet_with_tls(connection)
    except TimeoutError:
        raise
    except OSError:
        return


def _greet_with_tls(connection: socket.socket) -> None:
    """Raise an OSError unless the other side speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is said to the other side: Spark itself checks who it is.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.wrap_socket(connection).close()


def _web_problem(connection: socket.socket) -> str | None:
    """A web server says at once that four zeros are no request; a resource manager waits for more."""
    connection.settimeout(_COMPLAINT_SECONDS)
    try:
        connection.sendall(bytes(4))
        return _WEB if connection.recv(5) == b"HTTP/" else None
    except OSError:
        return None
