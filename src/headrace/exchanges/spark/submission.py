"""Hands a program to a cluster by `spark-submit`: the command, and what is refused before it is run."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.base.errors import ConfigurationError
from headrace.exchanges.spark.launch import authentication, is_secret
from headrace.exchanges.spark.masters import is_kubernetes, is_local

DeployMode = Literal["client", "cluster"]
_ARCHIVED_PYTHON = "./env/bin/python"
_PYTHON = "spark.pyspark.python"
_DRIVER_PYTHON = "spark.pyspark.driver.python"
_IMAGE = "spark.kubernetes.container.image"
_UPLOAD = "spark.kubernetes.file.upload.path"


@dataclass(frozen=True)
class Submission:
    """A program for `spark-submit`.

    `environment` is an archive of `headrace ship-env`; `conf` are the user's settings of Spark.
    """

    name: str
    master: str
    deploy_mode: DeployMode
    memory: str
    state_dir: str | None = None
    environment: str | None = None
    py_files: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)

    def check(self, *, script_only: bool = False) -> None:
        """Raise a ConfigurationError for what Spark would refuse much later, or not at all.

        `script_only` is for a script that somebody else hands to the driver, in an image for example.
        """
        if self.master.startswith("sc://"):
            raise ConfigurationError(
                "a Spark Connect server takes no applications", hint=f"headrace run --master {self.master}"
            )
        if self.deploy_mode == "cluster":
            self._check_cluster_mode(script_only=script_only)
        if self.master.startswith("k8s://") and not self._has_image():
            raise ConfigurationError(
                "Kubernetes needs an image for the pods of Spark, and none is named",
                hint=f"--conf {_IMAGE}=registry/name:tag, an image with Spark, Python and Headrace",
            )
        if secret := next(filter(is_secret, self.conf), None):
            raise ConfigurationError(
                f"everybody on this machine could read `{secret}` among the arguments of spark-submit",
                hint="write it into conf/spark-defaults.conf of the Spark that has spark-submit",
            )
        for file in (*self.py_files, *filter(None, [self.environment])):
            if "://" not in file and not Path(file).is_file():
                option = "--env" if file == self.environment else "--py-files"
                raise ConfigurationError(f"{option}: there is no file {file}")

    def _check_cluster_mode(self, *, script_only: bool) -> None:
        if is_local(self.master):
            raise ConfigurationError(
                f"`{self.master}` has no cluster that a driver could run in",
                hint="--deploy-mode client, or the master of a cluster: yarn, k8s://https://host:6443",
            )
        if self.master.startswith("spark://"):
            raise ConfigurationError(
                "a standalone master runs no Python drivers in cluster mode: Spark does not support it",
                hint="--deploy-mode client on a machine that the workers reach, or `headrace run --master "
                f"{self.master}` under a supervisor such as systemd",
            )
        if self.state_dir is not None and "://" not in self.state_dir and not self.state_dir.startswith("/"):
            raise ConfigurationError(
                f"the state directory `{self.state_dir}` is relative, and the driver runs on another machine",
                hint="name an object store (s3://…), HDFS, or the absolute path of a mount that all have",
            )
        if self.master.startswith("k8s://") and _UPLOAD not in self.conf and not script_only:
            raise ConfigurationError(
                "Kubernetes needs a place by which the program reaches the driver's pod",
                hint=f"--conf {_UPLOAD}=s3a://bucket/path; or write the program into the image: --entry "
                "main.py --dry-run, and give Spark local:///…/main.py",
            )

    def _has_image(self) -> bool:
        driver, executor = (f"spark.kubernetes.{role}.container.image" for role in ("driver", "executor"))
        return _IMAGE in self.conf or (driver in self.conf and executor in self.conf)

    def command(self, spark_submit: str, entry: str) -> list[str]:
        """The whole command; `entry` is the script that Spark runs as the driver."""
        settings = {**self._defaults(), **self.conf}
        arguments = ["--master", self.master, "--deploy-mode", self.deploy_mode, "--name", self.name]
        if self.environment is not None:
            arguments += ["--archives", f"{self.environment}#env"]
        if self.py_files:
            arguments += ["--py-files", ",".join(self.py_files)]
        for name, value in settings.items():
            arguments += ["--conf", f"{name}={value}"]
        return [spark_submit, *arguments, entry]

    def _defaults(self) -> dict[str, str]:
        settings = {"spark.driver.memory": self.memory}
        is_yarn_cluster = self.master == "yarn" and self.deploy_mode == "cluster"
        if self.environment is not None:
            settings[_PYTHON] = _ARCHIVED_PYTHON
            if is_yarn_cluster:
                settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = _ARCHIVED_PYTHON
        elif is_local(self.master):
            settings[_PYTHON] = sys.executable
        if is_kubernetes(self.master):
            settings |= authentication(self.master)
        if self.deploy_mode == "client":
            settings[_DRIVER_PYTHON] = sys.executable
        if is_yarn_cluster and self.state_dir is None:
            # A second attempt would begin anew, and write what the first one has written.
            settings["spark.yarn.maxAppAttempts"] = "1"
        elif is_yarn_cluster:
            # A job that runs for months may fail now and then: only failures of the last hour count.
            settings["spark.yarn.am.attemptFailuresValidityInterval"] = "1h"
        return settings


def find_spark_submit(environ: Mapping[str, str]) -> str:
    """The `spark-submit` of SPARK_HOME if that is set, else of the installed PySpark."""
    home = environ.get("SPARK_HOME")
    if not home:
        spec = importlib.util.find_spec("pyspark")
        home = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    if home is None:
        raise ConfigurationError(
            "there is no spark-submit: PySpark is not installed", hint="pip install pyspark"
        )
    program = Path(home, "bin", "spark-submit")
    if not os.access(program, os.X_OK):
        raise ConfigurationError(
            f"there is no {program}",
            hint="unset SPARK_HOME to use the installed PySpark"
            if environ.get("SPARK_HOME")
            else "pip install pyspark; pyspark-client has no spark-submit",
        )
    return str(program)
