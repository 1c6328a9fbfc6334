"""Spark on this machine is closed to other users."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.exchanges.spark.session import SparkRequest, using_spark

pytestmark = pytest.mark.spark


def test_spark_lets_nobody_in_without_the_secret_of_the_run() -> None:
    request = SparkRequest(None, "1g", {})
    with using_spark(request) as runtime:
        conf = dict(runtime.spark.getConf().getAll())
        assert conf["spark.authenticate"] == "true"
        assert len(conf["spark.authenticate.secret"]) == 64
        assert conf["spark.driver.host"] == "127.0.0.1"
        assert conf["spark.ui.enabled"] == "false"
        java = Path(f"/proc/{runtime.spark._gateway.proc.pid}/cmdline").read_bytes()
        assert b"spark.authenticate=true" in java
        assert b"spark.authenticate.secret" not in java
        assert conf["spark.authenticate.secret"].encode() not in java
