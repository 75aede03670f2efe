"""Manifests for Kubernetes: a Deployment of the workers, and a Job that runs one command.

A manifest is made from the settings of the process that renders it. It is an object of the kinds that
``kubectl apply`` takes, a ``List`` of them. Nothing of this machine gets into it, and no secret.

A pod is allowed what a container of ``docker-compose.yaml`` is: a user without rights, no capabilities, a
root that it cannot write, and ``/tmp`` and ``HINDCAST_HOME`` to write to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hindcast.errors import BadInputError
from hindcast.settings import SECRET, Settings

#: Where pods have ``HINDCAST_HOME``.
HOME = "/var/lib/hindcast"
#: Where pods have the files that settings name, such as certificates.
FILES = "/run/hindcast"
#: Places on the machine that renders a manifest.
_OF_THIS_MACHINE = frozenset({"home", "jars_dir", "pipelines_dir"})
_USER = 10001
#: A worker ends its batch, checkpoints, and gives its leases back.
_GRACE_SECONDS = 60
_ON_KUBERNETES = "k8s://"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """What the pods of a manifest have.

    ``secret``: the name of a secret whose keys are variables, such as ``HINDCAST_KAFKA_PASSWORD``; empty for
    none. ``files``: the name of a secret whose keys are the names of the files that settings such as
    ``HINDCAST_KAFKA_CA_FILE`` name; empty for none. ``claim``: the name of a volume claim that all pods may
    mount at once, for tables that stand in no store; empty for none. ``memory`` and ``cpus`` are Kubernetes'
    quantities.
    """

    image: str
    name: str = "hindcast"
    namespace: str = ""
    secret: str = ""
    files: str = ""
    claim: str = ""
    memory: str = "3Gi"
    cpus: str = "2"


def workers(settings: Settings, pod: Pod) -> Manifest:
    """The fleet: as many workers as it has slots.

    A worker that finds no free slot ends, so no pod is added before another has ended.

    :raises BadInputError: if pods would not find the tables or a file, or would lack a secret
    """
    labels = {"app.kubernetes.io/name": pod.name, "app.kubernetes.io/component": "worker"}
    template = _template(settings, pod, ["hindcast", "worker"], labels)
    template["spec"]["terminationGracePeriodSeconds"] = _GRACE_SECONDS
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pod, f"{pod.name}-worker", labels),
        "spec": {
            "replicas": settings.workers,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": template,
        },
    }
    return _list([*_shared(settings, pod), deployment])


def job(settings: Settings, pod: Pod, run: str, arguments: Sequence[str]) -> Manifest:
    """A Job that runs one command of Hindcast's once, e.g. ``validate stock_stats --all``.

    :param run: ends the Job's name: a name is used once
    :raises BadInputError: as :func:`workers`, or if no command is given
    """
    if not arguments:
        cure = "Name it after two dashes: `hindcast manifest job --image IMAGE -- validate NAME --all`."
        raise BadInputError(problem="There is no command for the job", cure=cure)
    labels = {"app.kubernetes.io/name": pod.name, "app.kubernetes.io/component": "job"}
    template = _template(settings, pod, ["hindcast", *arguments], labels)
    template["spec"]["restartPolicy"] = "Never"
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(pod, f"{pod.name}-{run}", labels),
        # A command that is run again goes on where it was; how often is for a person, or Airflow, to say.
        "spec": {"backoffLimit": 0, "template": template},
    }
    return _list([*_shared(settings, pod), made])


def _list(items: Sequence[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def _metadata(pod: Pod, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name}
    if pod.namespace:
        found["namespace"] = pod.namespace
    if labels:
        found["labels"] = dict(labels)
    return found


def _shared(settings: Settings, pod: Pod) -> list[Manifest]:
    """What the pods of all manifests use: the settings, and the account that starts executors."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(pod, f"{pod.name}-settings"),
        "data": variables(settings, pod),
    }
    if not _starts_executors(settings):
        return [config]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(pod, f"{pod.name}-driver")}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _metadata(pod, f"{pod.name}-driver"),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
                "verbs": ["create", "get", "list", "watch", "update", "patch", "delete", "deletecollection"],
            }
        ],
    }
    subject = {"kind": "ServiceAccount", "name": f"{pod.name}-driver"}
    if pod.namespace:
        subject["namespace"] = pod.namespace
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(pod, f"{pod.name}-driver"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{pod.name}-driver"},
        "subjects": [subject],
    }
    return [config, account, role, binding]


def variables(settings: Settings, pod: Pod) -> dict[str, str]:
    """The settings that pods get, as variables: those that differ from the defaults.

    :raises BadInputError: if pods would not find the tables or a file, or would lack a secret
    """
    secrets = []
    found = {}
    files = {}
    given = settings.environment()
    for name, field in Settings.model_fields.items():
        variable = f"HINDCAST_{name.upper()}"
        is_default = getattr(settings, name) == field.get_default(call_default_factory=True)
        if is_default or name in _OF_THIS_MACHINE:
            continue
        if name in SECRET:
            secrets.append(variable)
        elif isinstance(getattr(settings, name), Path):
            files[variable] = getattr(settings, name)
        else:
            found[variable] = given[variable]
    if secrets and not pod.secret:
        names = ", ".join(secrets)
        cure = "Make a secret with it (`kubectl create secret generic`), and name that: `--secret NAME`."
        raise BadInputError(problem=f"{names} may be secret, so no manifest has it", cure=cure)
    _check_places(settings, pod)
    _check_files(files, pod)
    for variable, path in files.items():
        found[variable] = f"{FILES}/{path.name}"
    found["HINDCAST_HOME"] = HOME
    found["HINDCAST_WORKERS"] = str(settings.workers)
    return dict(sorted(found.items()))


def _check_places(settings: Settings, pod: Pod) -> None:
    for name in ("tables_url", "checkpoints_url", "scratch_url"):
        url = getattr(settings, name)
        variable = f"HINDCAST_{name.upper()}"
        if "://" in url or (pod.claim and url.startswith(f"{HOME}/")):
            continue
        if url:
            problem = f"{variable}={url} is a path of this machine"
            cure = "Name a folder of a store that all pods reach, or leave it out and name a --claim."
            raise BadInputError(problem=problem, cure=cure)
        if not pod.claim and name != "scratch_url":
            problem = f"Without {variable} each pod would have tables or checkpoints of its own"
            cure = "Name a folder of a store, or a --claim that all pods may mount at once (ReadWriteMany)."
            raise BadInputError(problem=problem, cure=cure)


def _check_files(files: Mapping[str, Path], pod: Pod) -> None:
    """Each file is a key of one secret, so their names differ."""
    if not files:
        return
    named = " and ".join(f"{variable}={path}" for variable, path in files.items())
    if len({path.name for path in files.values()}) < len(files):
        problem = f"{named} would be one file in a pod"
        raise BadInputError(problem=problem, cure="Give the files names of their own.")
    if not pod.files:
        keys = " ".join(f"--from-file={path}" for path in files.values())
        made = f"kubectl create secret generic NAME {keys}"
        cure = f"Make a secret of it (`{made}`), and name that: `--files NAME`."
        raise BadInputError(problem=f"{named} is on this machine, where no pod finds it", cure=cure)


def _starts_executors(settings: Settings) -> bool:
    return settings.spark_master.startswith(_ON_KUBERNETES)


def _template(
    settings: Settings, pod: Pod, command: Sequence[str], labels: Mapping[str, str]
) -> dict[str, Any]:
    sources: list[dict[str, Any]] = [{"configMapRef": {"name": f"{pod.name}-settings"}}]
    if pod.secret:
        sources.append({"secretRef": {"name": pod.secret}})
    # Executors reach their driver by the pod's address: nothing resolves its name.
    address = {"name": "SPARK_LOCAL_HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    mounts: list[dict[str, Any]] = [
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the pod
    ]
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if pod.files:
        mounts.append({"name": "files", "mountPath": FILES, "readOnly": True})
        volumes.append({"name": "files", "secret": {"secretName": pod.files}})
    container = {
        "name": "hindcast",
        "image": pod.image,
        "command": list(command),
        "envFrom": sources,
        "env": [address] if _starts_executors(settings) else [],
        "resources": {"requests": {"cpu": pod.cpus, "memory": pod.memory}, "limits": {"memory": pod.memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
    }
    home: dict[str, Any] = {"name": "home", "emptyDir": {}}
    if pod.claim:
        home = {"name": "home", "persistentVolumeClaim": {"claimName": pod.claim}}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": _starts_executors(settings),
        "containers": [container],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [home, *volumes],
    }
    if _starts_executors(settings):
        spec["serviceAccountName"] = f"{pod.name}-driver"
    return {"metadata": {"labels": dict(labels)}, "spec": spec}
