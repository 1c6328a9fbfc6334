"""What Spark's own classes make of the arguments of spark-submit, without a cluster: run as a program.

    python -m tests.spark.rendered ARGUMENT…

Prints JSON: the class that Spark would run, its arguments and settings; for Kubernetes also the pod of the
driver.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.java_gateway import launch_gateway

DEPLOY = "org.apache.spark.deploy"


def main() -> None:
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    arguments = gateway.new_array(jvm.java.lang.String, len(sys.argv) - 1)
    for at, text in enumerate(sys.argv[1:]):
        arguments[at] = text
    submit = jvm.org.apache.spark.deploy.SparkSubmit()
    parsed = submit.parseArguments(arguments)
    child, _, conf, main_class = (
        getattr(submit.prepareSubmitEnvironment(parsed, jvm.scala.Option.empty()), f"_{n}")()
        for n in range(1, 5)
    )
    told = {
        "class": main_class,
        "arguments": list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(child)),
        "conf": {pair._1(): pair._2() for pair in conf.getAll()},
    }
    if parsed.master().startswith("k8s"):
        pod, container = driver_pod(jvm, gateway, conf, parsed.primaryResource())
        told |= {"pod": json.loads(pod), "container": json.loads(container)}
    print(json.dumps(told))  # noqa: T201 - read by the test
    gateway.shutdown()


def driver_pod(jvm: Any, gateway: Any, conf: Any, script: str) -> list[str]:
    """The pod of the driver and its container, as Spark would send them to Kubernetes."""
    kubernetes = jvm.org.apache.spark.deploy.k8s
    described = kubernetes.KubernetesConf.createDriverConf(
        conf,
        "app-1",
        kubernetes.submit.PythonMainAppResource(script),
        f"{DEPLOY}.PythonRunner",
        gateway.new_array(jvm.java.lang.String, 0),
        jvm.scala.Option.empty(),
    )
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    spec = kubernetes.submit.KubernetesDriverBuilder().buildFromFeatures(described, client)
    as_json = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson
    return [str(as_json(part)) for part in (spec.pod().pod(), spec.pod().container())]


if __name__ == "__main__":
    main()
