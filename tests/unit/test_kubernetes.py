"""Manifests are valid by Kubernetes' own schemas, and hold what pods need and no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from support.command_line import Hindcast

from hindcast import kubernetes
from hindcast.errors import BadInputError
from hindcast.kubernetes import Pod
from hindcast.settings import Settings

KUBERNETES = "1.37"
IN_A_STORE = {"tables_url": "s3://lake/tables", "checkpoints_url": "s3://lake/checkpoints"}


def objects(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The manifest's objects by kind, each valid."""
    assert (manifest["apiVersion"], manifest["kind"]) == ("v1", "List")
    for each in manifest["items"]:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    return {each["kind"]: each for each in manifest["items"]}


def in_a_store(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={**IN_A_STORE, **changes})


def test_the_fleet_has_a_pod_for_each_slot(settings: Settings) -> None:
    """Each is allowed little, and no pod is added before another has ended."""
    found = objects(kubernetes.workers(in_a_store(settings, workers=3), Pod("hindcast:1", namespace="lake")))
    assert set(found) == {"ConfigMap", "Deployment"}
    deployment = found["Deployment"]
    assert deployment["metadata"]["namespace"] == "lake"
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["hindcast", "worker"]
    assert pod["containers"][0]["envFrom"] == [{"configMapRef": {"name": "hindcast-settings"}}]
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["volumes"] == [{"name": "home", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    selected = deployment["spec"]["selector"]["matchLabels"].items()
    assert selected <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_pods_get_the_settings_that_differ_and_no_place_of_this_machine(settings: Settings) -> None:
    """A default of the image's own Hindcast is not written over."""
    own = in_a_store(settings, lease_seconds=30.0, bootstrap_servers="kafka:9093")
    data = objects(kubernetes.workers(own, Pod("hindcast:1")))["ConfigMap"]["data"]
    assert data == {
        "HINDCAST_BOOTSTRAP_SERVERS": "kafka:9093",
        "HINDCAST_CHECKPOINTS_URL": "s3://lake/checkpoints",
        "HINDCAST_HOME": "/var/lib/hindcast",
        "HINDCAST_LEASE_SECONDS": "30.0",
        "HINDCAST_TABLES_URL": "s3://lake/tables",
        "HINDCAST_WORKERS": "2",
    }
    assert str(settings.home) not in json.dumps(data)


def test_what_may_be_secret_comes_from_a_secret_alone(settings: Settings) -> None:
    """Without a secret the command says what it would lack."""
    own = in_a_store(settings, kafka_password="hunter2", storage_options={"aws_secret_access_key": "hunter2"})
    with pytest.raises(BadInputError, match=r"HINDCAST_STORAGE_OPTIONS, HINDCAST_KAFKA_PASSWORD .*--secret"):
        kubernetes.workers(own, Pod("hindcast:1"))
    manifest = kubernetes.workers(own, Pod("hindcast:1", secret="lake"))
    assert "hunter2" not in json.dumps(manifest)
    container = objects(manifest)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert {"secretRef": {"name": "lake"}} in container["envFrom"]


def test_the_files_that_settings_name_come_from_a_secret_too(settings: Settings) -> None:
    """A pod reads them where the secret is mounted. Without one the command says how to make it."""
    own = in_a_store(
        settings, kafka_ca_file=Path("/etc/ssl/ca.pem"), kafka_key_file=Path("/etc/kafka/key.pem")
    )
    with pytest.raises(
        BadInputError, match=r"--from-file=/etc/ssl/ca.pem --from-file=/etc/kafka/key.pem.*--files"
    ):
        kubernetes.workers(own, Pod("hindcast:1"))
    found = objects(kubernetes.workers(own, Pod("hindcast:1", files="certificates")))
    data = found["ConfigMap"]["data"]
    assert data["HINDCAST_KAFKA_CA_FILE"] == "/run/hindcast/ca.pem"
    assert data["HINDCAST_KAFKA_KEY_FILE"] == "/run/hindcast/key.pem"
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert {"name": "files", "secret": {"secretName": "certificates"}} in pod["volumes"]
    mounted = {"name": "files", "mountPath": "/run/hindcast", "readOnly": True}
    assert mounted in pod["containers"][0]["volumeMounts"]
    same = in_a_store(settings, kafka_ca_file=Path("/a/x.pem"), kafka_key_file=Path("/b/x.pem"))
    with pytest.raises(BadInputError, match="one file in a pod"):
        kubernetes.workers(same, Pod("hindcast:1", files="certificates"))


def test_tables_of_each_pods_own_are_refused(settings: Settings) -> None:
    """They stand in a store, or on a volume that all pods mount."""
    with pytest.raises(BadInputError, match=r"Without HINDCAST_TABLES_URL .*--claim"):
        kubernetes.workers(settings, Pod("hindcast:1"))
    local = in_a_store(settings, tables_url="/mnt/lake")
    with pytest.raises(BadInputError, match=r"HINDCAST_TABLES_URL=/mnt/lake is a path of this machine"):
        kubernetes.workers(local, Pod("hindcast:1", claim="lake"))
    scratch = in_a_store(settings, scratch_url="/mnt/scratch")
    with pytest.raises(BadInputError, match=r"HINDCAST_SCRATCH_URL=/mnt/scratch is a path of this machine"):
        kubernetes.workers(scratch, Pod("hindcast:1", claim="lake"))
    on_claim = in_a_store(settings, scratch_url="/var/lib/hindcast/scratch")
    kubernetes.workers(on_claim, Pod("hindcast:1", claim="lake"))
    volumes = objects(kubernetes.workers(settings, Pod("hindcast:1", claim="lake")))["Deployment"]["spec"][
        "template"
    ]["spec"]["volumes"]
    assert {"name": "home", "persistentVolumeClaim": {"claimName": "lake"}} in volumes


def test_a_driver_that_starts_executors_may_do_that_and_is_found_by_them(settings: Settings) -> None:
    """It has an account with rights to pods, and tells executors the pod's address."""
    own = in_a_store(settings, spark_master="k8s://https://kubernetes.default.svc")
    found = objects(kubernetes.workers(own, Pod("hindcast:1", namespace="lake")))
    assert set(found) == {"ConfigMap", "ServiceAccount", "Role", "RoleBinding", "Deployment"}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert pod["automountServiceAccountToken"]
    (address,) = pod["containers"][0]["env"]
    assert address["name"] == "SPARK_LOCAL_HOSTNAME"
    assert found["RoleBinding"]["subjects"][0]["namespace"] == "lake"


def test_a_job_runs_one_command_once(settings: Settings) -> None:
    """Kubernetes does not try it again by itself."""
    arguments = ["validate", "stock_stats", "--all"]
    found = objects(kubernetes.job(in_a_store(settings), Pod("hindcast:1"), "nightly", arguments))["Job"]
    assert found["metadata"]["name"] == "hindcast-nightly"
    assert found["spec"]["backoffLimit"] == 0
    pod = found["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["containers"][0]["command"] == ["hindcast", *arguments]
    with pytest.raises(BadInputError, match="There is no command for the job"):
        kubernetes.job(in_a_store(settings), Pod("hindcast:1"), "nightly", [])


def test_the_commands_print_what_kubectl_takes(hindcast: Hindcast, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object, valid, and nothing else on stdout."""
    for name, url in IN_A_STORE.items():
        monkeypatch.setenv(f"HINDCAST_{name.upper()}", url)
    fleet = hindcast("manifest", "workers", "--image", "hindcast:1")
    assert fleet.returncode == 0, fleet.stderr
    assert set(objects(json.loads(fleet.stdout))) == {"ConfigMap", "Deployment"}
    once = hindcast("manifest", "job", "--image", "hindcast:1", "--", "validate", "stock_stats", "--all")
    job = objects(json.loads(once.stdout))["Job"]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][1:] == [
        "validate",
        "stock_stats",
        "--all",
    ]
