"""The deployment's files agree with the code, the pins and each other. Docker itself is asked only where it
is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from hindcast.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
#: What Maven brings into the image.
JARS = {"jars/spark"}
INTERPOLATION = re.compile(r"(?<!\$)\$\{(?P<name>[A-Z_]+)(?P<rule>:[-?])?(?P<rest>[^}]*)\}")
#: Services that have no health to ask for, and why.
WITHOUT_HEALTHCHECK = {"airflow-init": "runs once", "hindcast-worker": "its lease is its health"}
OWN_IMAGE = re.compile(r"hindcast:(?P<version>.+)")
#: The groups of services that run only if `.env` names them.
PROFILES = {"kafka", "spark"}
SECRET_NAME = re.compile(r"PASSWORD|SECRET|FERNET|SQL_ALCHEMY_CONN|TOKEN")


def _compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yaml").read_text()))


SERVICES: dict[str, dict[str, Any]] = _compose()["services"]
OWN = [name for name, service in SERVICES.items() if OWN_IMAGE.fullmatch(service["image"])]
AIRFLOW = [name for name in SERVICES if name.startswith("airflow-")]


def _written(service: str) -> list[str]:
    """The folders of a service that are not of its image."""
    mounts = [mount.rsplit(":", 1)[-1] for mount in SERVICES[service].get("volumes", [])]
    return [*mounts, *SERVICES[service]["tmpfs"]]


def _environments() -> list[tuple[str, str, str]]:
    return [
        (service, name, str(value))
        for service, body in SERVICES.items()
        for name, value in body.get("environment", {}).items()
    ]


def _settings_fields() -> set[str]:
    return {f"HINDCAST_{name.upper()}" for name in Settings.model_fields}


def _example() -> dict[str, str]:
    """The variables of .env.example, commented ones too, name to value."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    found = (re.match(r"(?:# )?(?P<name>[A-Z_]+)=(?P<value>\S*)", line) for line in lines)
    return {match["name"]: match["value"] for match in found if match}


def test_every_airflow_service_is_there() -> None:
    """Airflow 3 needs its migration, API server, scheduler, DAG processor and triggerer."""
    assert set(AIRFLOW) == {
        "airflow-init",
        "airflow-api-server",
        "airflow-scheduler",
        "airflow-dag-processor",
        "airflow-triggerer",
    }


@pytest.mark.parametrize("service", OWN)
def test_the_library_is_on_the_path(service: str) -> None:
    """Each service that runs our image finds the library, also in the processes that it starts."""
    assert SERVICES[service]["environment"]["PYTHONPATH"] == "/opt/hindcast/include"


@pytest.mark.parametrize("service", OWN)
def test_what_a_service_writes_is_no_part_of_the_image(service: str) -> None:
    """Its root is read-only. Each folder that a setting or a command names for writing is a volume or in memory."""
    assert SERVICES[service]["read_only"] is True
    written = _written(service)
    assert SERVICES[service]["tmpfs"] == ["/tmp"]  # noqa: S108 - each container has its own
    named = [value for owner, _, value in _environments() if owner == service]
    named += [part for part in SERVICES[service]["command"] if isinstance(part, str)]
    folders = {value for value in named if value.startswith("/var/lib/")}
    if service == "spark-master":
        folders = set()  # it has no application of its own
    assert folders <= set(written)


@pytest.mark.parametrize("service", OWN)
def test_no_service_takes_all_processes_of_the_host(service: str) -> None:
    """Nor all memory, but for Spark's, which have a limit of Spark's own."""
    assert SERVICES[service]["pids_limit"] == 4096
    assert ("mem_limit" in SERVICES[service]) is not service.startswith("spark-")


@pytest.mark.parametrize("service", [*OWN, "kafka"])
def test_no_process_gets_a_capability(service: str) -> None:
    """None of them is root, and none becomes it."""
    assert SERVICES[service]["cap_drop"] == ["ALL"]
    assert SERVICES[service]["security_opt"] == ["no-new-privileges:true"]


def test_variables_are_settings() -> None:
    """Each HINDCAST_ variable that a service or the image sets is one that Settings reads; a misspelt one
    would be ignored in silence.
    """
    image = re.findall(r"\b(HINDCAST_[A-Z_]+)=", (ROOT / "Dockerfile").read_text())
    used = {name for _, name, _ in _environments() if name.startswith("HINDCAST_")} | set(image)
    assert used
    assert used <= _settings_fields()


def test_values_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings accepts what the services are given when every default of the compose file holds."""
    for name, value in SERVICES["hindcast-worker"]["environment"].items():
        if name.startswith("HINDCAST_"):
            monkeypatch.setenv(name, INTERPOLATION.sub(lambda match: match["rest"], str(value)))
    assert Settings().spark_master == "spark://spark-master:7077"
    assert Settings().bootstrap_servers == "kafka:9092"


def test_the_fleet_has_a_container_for_each_slot() -> None:
    """As many worker containers run as the fleet has slots."""
    worker = SERVICES["hindcast-worker"]
    assert worker["deploy"]["replicas"] == worker["environment"]["HINDCAST_WORKERS"]


def test_no_secret_is_written_down() -> None:
    """A value that is secret comes from a variable that the user must set: it has no default and stops
    compose when it is missing.
    """
    secrets = [(service, name, value) for service, name, value in _environments() if SECRET_NAME.search(name)]
    assert secrets
    for service, name, value in secrets:
        rules = [match["rule"] for match in INTERPOLATION.finditer(value)]
        assert rules == [":?"], f"{service}: {name} has a secret of its own or a default"


def test_the_example_names_every_variable() -> None:
    """.env.example has each variable that the compose file reads, and no other; a required one is empty
    there, a default is the same.
    """
    example = _example()
    assert set(example.pop("COMPOSE_PROFILES").split(",")) == PROFILES  # Compose reads it by itself
    text = re.sub(r"^\s*#.*$", "", (ROOT / "docker-compose.yaml").read_text(), flags=re.MULTILINE)
    read = {match["name"]: match for match in INTERPOLATION.finditer(text)}
    assert example.keys() == read.keys()
    for name, match in read.items():
        assert example[name] == ("" if match["rule"] == ":?" else match["rest"]), name


@pytest.mark.parametrize("service", [name for name, body in SERVICES.items() if "ports" in body])
def test_ports_stay_on_loopback(service: str) -> None:
    """Nothing is published beyond this host."""
    assert all(str(port).startswith("127.0.0.1:") for port in SERVICES[service]["ports"])


@pytest.mark.parametrize("service", SERVICES)
def test_images_are_pinned(service: str) -> None:
    """Each image has a tag with a version, and its plain name: which registry serves it is the host's
    business.
    """
    name, _, tag = SERVICES[service]["image"].partition(":")
    assert re.fullmatch(r"[a-z]+(/[a-z]+)?", name)
    assert re.match(r"\d+\.\d+", tag)


def test_base_images_are_pinned() -> None:
    """The image's own bases have versions too."""
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+[a-z0-9.-]*", base) for base in bases)


@pytest.mark.parametrize("jars", ["spark", "s3"])
def test_the_image_has_the_jars_of_spark_and_of_a_store(jars: str) -> None:
    """Nothing can fetch them in a container: it has no Maven, and cannot write its own root."""
    image = (ROOT / "Dockerfile").read_text()
    assert (ROOT / "include" / "hindcast_sandbox" / "poms" / jars / "pom.xml").exists()
    assert f"--file /poms/{jars}/pom.xml dependency:copy-dependencies -DoutputDirectory=/jars/{jars}" in image
    assert "COPY --from=jars /jars /opt/hindcast/jars" in image
    settings = Settings(jars_dir=Path(SERVICES["hindcast-worker"]["environment"]["HINDCAST_JARS_DIR"]))
    assert str(settings.s3_jars_dir) == "/opt/hindcast/jars/s3"


def test_own_image_has_the_project_s_version() -> None:
    """The image is tagged with the version in pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {SERVICES[service]["image"] for service in OWN} == {f"hindcast:{version}"}


def test_the_broker_is_the_one_we_test_with() -> None:
    """Deployment and embedded default run the same version of Kafka."""
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    pom = ET.parse(ROOT / "include/hindcast_sandbox/poms/kafka/pom.xml")  # noqa: S314 - the file is our own
    versions = {
        item.findtext("m:artifactId", "", space): item.findtext("m:version", "", space)
        for item in pom.iterfind(".//m:dependency", space)
    }
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{versions['kafka_2.13']}"


@pytest.mark.parametrize("service", SERVICES)
def test_services_tell_their_health(service: str) -> None:
    """Each service has a healthcheck, or a reason to have none."""
    assert ("healthcheck" in SERVICES[service]) != (service in WITHOUT_HEALTHCHECK)


@pytest.mark.parametrize("service", SERVICES)
def test_dependencies_exist(service: str) -> None:
    """A service waits for services that are there, and for the health only of those that tell it."""
    for name, rule in SERVICES[service].get("depends_on", {}).items():
        assert name in SERVICES
        assert rule["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]


def test_what_runs_here_alone_if_it_is_asked_for() -> None:
    """Nothing else must wait for a service that may run elsewhere."""
    optional = {name for name, body in SERVICES.items() if body.get("profiles")}
    assert optional == {"kafka", "spark-master", "spark-worker"}
    assert {profile for name in optional for profile in SERVICES[name]["profiles"]} == PROFILES
    for service, body in SERVICES.items():
        for name, rule in body.get("depends_on", {}).items():
            if name in optional and service not in optional:
                assert rule.get("required") is False, f"{service} waits for {name}"


@pytest.mark.parametrize("service", OWN)
def test_any_setting_reaches_each_service(service: str) -> None:
    """One file has what the compose file does not name; without it everything runs as it is."""
    assert SERVICES[service]["env_file"] == [{"path": "hindcast.env", "required": False}]


@pytest.mark.parametrize(
    "service",
    ["airflow-scheduler", "airflow-triggerer", "airflow-api-server", "spark-worker", "hindcast-worker"],
)
def test_tables_are_shared(service: str) -> None:
    """Whoever reads or writes tables does so on one volume, at HINDCAST_HOME."""
    home = SERVICES[service]["environment"]["HINDCAST_HOME"]
    assert f"hindcast:{home}" in SERVICES[service]["volumes"]


def test_volumes_are_declared() -> None:
    """Each named volume that a service mounts is declared, and each declared one is mounted. One that is a
    path alone lasts as long as its container.
    """
    volumes = [volume for body in SERVICES.values() for volume in body.get("volumes", [])]
    mounted = {volume.partition(":")[0] for volume in volumes if ":" in volume}
    assert mounted == set(_compose()["volumes"])


def test_the_image_has_what_the_services_name() -> None:
    """Files of ours that a service names are copied into the image and are not left out by .dockerignore."""
    copied = set(
        re.findall(r"^COPY (?!--)(\S+) /opt/hindcast", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    )
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept
    named = {
        match for body in SERVICES.values() for match in re.findall(r"/opt/hindcast/([\w/.]+)", str(body))
    }
    missing = [path for path in named if path.split("/")[0] not in copied and path not in JARS]
    assert missing == []
    assert all((ROOT / path).exists() for path in named - JARS)


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_accepts_the_file(tmp_path: Path) -> None:
    """Compose itself reads the file when the secrets are set, and refuses it, naming the variable, when one
    is not.
    """
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("docker has no compose plugin")
    command = ["docker", "compose", "--file", str(ROOT / "docker-compose.yaml"), "--env-file"]
    full = tmp_path / "full.env"
    secrets = [f"{name}=x" for name, value in _example().items() if not value]
    full.write_text("\n".join([*secrets, f"COMPOSE_PROFILES={','.join(PROFILES)}"]))
    subprocess.run([*command, str(full), "config", "--quiet"], check=True, timeout=60)
    empty = tmp_path / "empty.env"
    empty.write_text("")
    refused = subprocess.run(
        [*command, str(empty), "config", "--quiet"], capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode != 0
    assert "set it in .env" in refused.stderr
