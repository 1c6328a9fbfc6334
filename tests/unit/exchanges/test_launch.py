"""The settings of a Spark that is started: what is served, and where it listens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.exchanges.spark.launch import DAEMON, bind_pages, check_files, launch_settings
from headrace.exchanges.spark.masters import address_of

PAGES = {"spark.ui.enabled": "true"}


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "")  # so that whatever is set is put back


@pytest.mark.parametrize(
    ("master", "conf", "address"),
    [
        ("local[2]", PAGES, "127.0.0.1"),
        ("spark://127.0.0.1:7077", PAGES, "127.0.0.1"),
        ("spark://127.0.0.1:7077", {**PAGES, "spark.driver.host": "127.0.0.2"}, "127.0.0.2"),
        ("local[2]", {**PAGES, "spark.driver.bindAddress": "127.0.0.3"}, "127.0.0.3"),
        ("local[2]", {}, ""),
        ("local[2]", {"spark.ui.enabled": "false"}, ""),
    ],
)
def test_web_pages_listen_where_the_driver_does(master: str, conf: dict[str, str], address: str) -> None:
    bind_pages(master, conf)
    assert os.environ["SPARK_LOCAL_IP"] == address


def test_an_address_that_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.9")
    bind_pages("local[2]", PAGES)
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.9"


def test_a_cluster_loads_the_packages_once_per_executor_and_the_user_has_the_last_word() -> None:
    settings = launch_settings("spark://host:7077", "3g", {})
    assert settings["spark.python.daemon.module"] == DAEMON
    assert settings["spark.driver.memory"] == "3g"
    assert "spark.driver.host" not in settings
    chosen = launch_settings("spark://host:7077", "3g", {"spark.python.daemon.module": "pyspark.daemon"})
    assert chosen["spark.python.daemon.module"] == "pyspark.daemon"


@pytest.mark.parametrize(
    ("master", "on"),
    [
        ("local[2]", True),
        ("local-cluster[2,1,1024]", True),
        ("k8s://https://host:6443", True),
        ("yarn", False),  # its shuffle service must have the same
        ("spark://host:7077", False),
    ],
)
def test_spark_asks_for_the_secret_of_the_run_wherever_it_can_make_one(master: str, on: bool) -> None:
    assert ("spark.authenticate" in launch_settings(master, "1g", {})) is on
    chosen = launch_settings(master, "1g", {"spark.authenticate": "false"})
    assert chosen["spark.authenticate"] == "false"


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("spark://one:7077,two:7077", ("one", 7077)),
        ("k8s://https://host:6443", ("host", 6443)),
        ("k8s://host", ("host", 443)),
        ("yarn", None),
        ("local[2]", None),
    ],
)
def test_the_address_of_a_master_is_the_one_in_its_url(master: str, address: tuple[str, int] | None) -> None:
    assert address_of(master) == address


@pytest.mark.parametrize("setting", ["spark.archives", "spark.files", "spark.jars"])
def test_a_file_in_a_setting_that_is_not_there_is_told_with_the_setting(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jar").touch()
    check_files(
        {setting: "there.jar#a, *.jar,s3a://bucket/away.jar", "spark.pyspark.python": "./env/bin/python"}
    )
    with pytest.raises(ConfigurationError, match=f"{setting} names env.tar.gz, and there is no such file"):
        check_files({setting: "there.jar,env.tar.gz#env"})
