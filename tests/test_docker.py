"""The container files are sound; `docker/check` builds the image and uses it."""

import re
import shlex
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from compose_spec import PyCompose
from dockerfile_parse import DockerfileParser
from support.command_lines import accepted

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(name: str) -> list[str]:
    """The values of one instruction of the Dockerfile, in order."""
    parser = DockerfileParser(path=str(DOCKER / "Dockerfile"))
    return [step["value"] for step in parser.structure if step["instruction"] == name]


def arguments() -> dict[str, str]:
    """The Dockerfile's build arguments with their defaults."""
    return dict(value.split("=", 1) for value in instructions("ARG"))


def compose(name: str = "compose.yaml", **environment: str) -> dict:
    """A compose file with its variables filled in, checked against the specification."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1], found[2])

    text = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (DOCKER / name).read_text())
    assert "${" not in text, "a variable without a default"
    return PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text))).to_dict()


# --- the image --------------------------------------------------------------------------------


def test_every_copied_path_exists_and_reaches_the_build():
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = set()
    for value in instructions("COPY"):
        if not value.startswith("--from="):
            *sources, _ = shlex.split(value)
            copied.update(sources)
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


def test_what_the_wheel_is_made_of_is_copied():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    needed = {*built["targets"]["wheel"]["packages"], "README.md", *PROJECT["license-files"]}
    copied = " ".join(instructions("COPY")).split()
    assert needed <= set(copied)


def test_all_installs_are_pinned_and_leave_no_cache():
    installs = [step for step in instructions("RUN") if "pip install" in step]
    assert len(installs) == 2
    for words in installs:
        assert "--constraint constraints.txt" in words
        assert "--no-cache-dir" in words


def test_the_last_stage_only_takes_what_the_first_one_installed():
    first, last = instructions("FROM")
    assert first == "${BASE} AS build"
    assert last == "${BASE}"
    text = (DOCKER / "Dockerfile").read_text().split("FROM ${BASE}\n")[1]
    assert re.findall(r"^COPY (.+)$", text, re.MULTILINE) == ["--from=build /venv /venv"]
    assert "pip " not in text
    assert "apt" not in text


def test_nobody_is_root():
    assert instructions("USER") == ["1000:1000"]
    for service in compose()["services"].values():
        assert service["user"] == "1000:1000"
        assert service["cap_drop"] == ["ALL"]
    mine = compose(HOST_UID="4711", HOST_GID="42")
    assert {service["user"] for service in mine["services"].values()} == {"4711:42"}


def test_versions_are_those_of_the_project():
    assert arguments()["VERSION"] == PROJECT["version"]
    images = {service["image"] for service in compose()["services"].values()}
    assert images == {f"fedsim:{PROJECT['version']}"}
    assert f"fedsim:{PROJECT['version']}" in (DOCKER / "README.md").read_text()


def test_the_default_extras_exist():
    for extra in arguments()["EXTRAS"].split(","):
        assert extra in PROJECT["optional-dependencies"]


def test_a_container_runs_the_quickstart():
    entry, command = (yaml.safe_load(instructions(key)[0]) for key in ("ENTRYPOINT", "CMD"))
    assert entry == ["fedsim"]
    assert command == ["run", "quickstart", "--out", "/runs/quickstart"]
    accepted(entry + command)


# --- compose ----------------------------------------------------------------------------------


def test_build_arguments_of_compose_are_those_of_the_dockerfile():
    known = arguments()
    for service in compose()["services"].values():
        assert (DOCKER / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        given = service["build"]["args"]
        assert given == {key: known[key] for key in given}
        assert {"BASE", "TORCH_INDEX", "EXTRAS"} <= set(given)


def test_profiles_hold_the_demo_and_the_cluster():
    services = compose()["services"]
    profiles = {name: service["profiles"] for name, service in services.items()}
    assert profiles == {"demo": ["demo"], "head": ["cluster"], "worker": ["cluster"]}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert compose(WORKERS="7")["services"]["worker"]["deploy"]["replicas"] == 7


@pytest.mark.parametrize("name", ["demo", "head", "worker"])
def test_commands_of_services_are_accepted(name):
    service = compose()["services"][name]
    accepted([*service.get("entrypoint", ["fedsim"]), *service["command"]])


@pytest.mark.parametrize("name", ["demo", "head", "worker"])
def test_a_service_is_limited_and_reached_from_nowhere(name):
    service = compose(MEMORY="9g")["services"][name]
    assert service["deploy"]["resources"]["limits"]["memory"] == "9gb"
    assert service["shm_size"]
    assert "ports" not in service
    assert "network_mode" not in service


@pytest.mark.parametrize("name", ["demo", "head", "worker"])
def test_data_is_read_only_and_no_folder_is_made(name):
    volumes = {volume["target"]: volume for volume in compose()["services"][name]["volumes"]}
    assert volumes["/data"]["read_only"]
    assert ("/runs" in volumes) == (name != "worker")
    raw = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"][name]["volumes"]
    assert all(volume["bind"] == {"create_host_path": False} for volume in raw)


def test_with_the_overlay_every_service_has_a_gpu_and_pytorch_for_it():
    services, base = compose("compose.gpu.yaml")["services"], compose()["services"]
    assert set(services) == set(base)
    for service in services.values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        assert fnmatch(service["build"]["args"]["TORCH_INDEX"], "https://*/whl/cu*")
        assert service["image"].endswith("-cuda")


# --- Kubernetes ---------------------------------------------------------------------------------


def test_the_kuberay_cluster_is_of_this_image_and_this_ray():
    text = (ROOT / "docs" / "cluster" / "kuberay.yaml").read_text()
    claim, cluster = yaml.safe_load_all(text)
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert cluster["spec"]["rayVersion"] == pins["ray"]
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        assert group["rayStartParams"] == {}
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 1000
        (container,) = pod["containers"]
        assert container["image"] == f"fedsim:{PROJECT['version']}"
        accepted([*container["command"], *container["args"]])
        cpus = container["resources"]["limits"]["cpu"]
        assert f"--num-cpus={cpus}" in container["args"]
    (volume,) = groups[0]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_documented_sed_names_the_image_of_a_registry_in_all_pods():
    page = (ROOT / "docs" / "cluster.md").read_text()
    line, _ = re.findall(r"^(sed .*kuberay\.yaml)( > kuberay\.yaml)$", page, re.MULTILINE)[0]
    text = subprocess.check_output(shlex.split(line), cwd=ROOT, text=True)
    _, cluster = yaml.safe_load_all(text)
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    images = [group["template"]["spec"]["containers"][0]["image"] for group in groups]
    assert images == [f"REGISTRY/fedsim:{PROJECT['version']}"] * 2


# --- what the page says -------------------------------------------------------------------------


def documented() -> list[str]:
    text = (DOCKER / "README.md").read_text().replace("\\\n", " ")
    return [
        line
        for block in re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def test_documented_fedsim_commands_are_accepted():
    found = 0
    for line in documented():
        for before in ("run --rm demo ", "exec head fedsim ", "fedsim:0.1.0 "):
            _, there, words = line.partition(before)
            if there and "docker" in line:
                rest = shlex.split(words)
                accepted(["ray" if rest[0] == "start" else "fedsim", *rest])
                found += 1
    assert found >= 8


def test_documented_variables_are_used():
    text = (DOCKER / "README.md").read_text()
    used = set(re.findall(r"\$\{(\w+):-", (DOCKER / "compose.yaml").read_text()))
    used |= set(re.findall(r"\$\{(\w+):-", (DOCKER / "compose.gpu.yaml").read_text()))
    assert used == {name for name in used if f"`{name}`" in text}


@pytest.mark.parametrize("script", ["build", "check"])
def test_scripts_are_executable_and_parse(script):
    path = DOCKER / script
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", path], check=True)


def test_without_a_builder_make_image_says_what_to_install(tmp_path):
    done = subprocess.run(
        [DOCKER / "build"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "ENGINE": "no-such-engine"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no-such-engine" in done.stderr
