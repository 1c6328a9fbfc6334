"""The TLS settings of a connection to PostgreSQL, if the user gives none."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from headrace.connectors.http.client import is_loopback


def default_tls(parameters: Mapping[str, object]) -> dict[str, str]:
    """Return the settings to add to those of a connection, so that a server elsewhere is verified.

    The client of PostgreSQL would use TLS only if the server offers it, and check no certificate. Whatever
    the user says stays: `sslmode` in the address, PGSSLMODE, or a service file.

    >>> default_tls({"host": "localhost"}), default_tls({"host": "db.example", "sslmode": "require"})
    ({}, {})
    >>> default_tls({"host": "db.example", "sslrootcert": "ca.pem"})
    {'sslmode': 'verify-full'}
    """
    is_chosen = {"sslmode", "service"} & {*parameters} or {"PGSSLMODE", "PGSERVICE"} & {*os.environ}
    if is_chosen or is_local(parameters):
        return {}
    has_roots = "sslrootcert" in parameters or "PGSSLROOTCERT" in os.environ
    if has_roots or (Path.home() / ".postgresql" / "root.crt").exists():
        return {"sslmode": "verify-full"}
    return {"sslmode": "verify-full", "sslrootcert": _system_roots()}


def is_local(parameters: Mapping[str, object]) -> bool:
    """Whether a connection stays on this machine: over a loopback address or a Unix socket."""
    hosts = (
        parameters.get("hostaddr")
        or os.environ.get("PGHOSTADDR")
        or parameters.get("host")
        or os.environ.get("PGHOST")
        or ""
    )
    return all(host.startswith(("/", "@")) or not host or is_loopback(host) for host in str(hosts).split(","))


def _system_roots() -> str:
    """Return a file with the certificates that this system trusts.

    The client has the name `system` for them, and does not find them if it was built for another system.
    """
    roots = ssl.get_default_verify_paths().cafile
    if roots is not None:
        return roots
    try:
        import certifi
    except ImportError:
        return "system"
    return certifi.where()


NO_TLS_HINT = (
    "let the server offer TLS, or write `sslmode=disable` in `url` if nobody else can read the network; "
    "without `sslmode` a server on another machine has to prove who it is"
)
UNTRUSTED_HINT = (
    "name the file of the certificate to trust with `sslrootcert=` in `url`; "
    "`sslmode=require` there encrypts and checks no certificate"
)
