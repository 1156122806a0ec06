"""`fedsim new`: it writes a package that installs, passes its test and keeps its contract."""

import os
from pathlib import Path

import pytest
from support.commands import python
from support.plugins_fixture import install, with_plugins

from fedsim.cli import main

KINDS = ("adversary", "defense", "metric", "task")


def asked(monkeypatch, capsys, folder: Path, *words: str) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["fedsim", "new", *words])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out + said.err


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a new package of each kind, and what the command said of each."""
    folder, said = tmp_path_factory.mktemp("made"), {}
    for kind in KINDS:
        command = ["-m", "fedsim.cli", "new", kind, f"made_{kind}"]
        done = python(*command, folder=folder, env=os.environ)
        assert done.returncode == 0, done.stderr
        said[kind] = done.stdout
    first, *more = (folder / f"made_{kind}" for kind in KINDS)
    install(first, folder / "site", *more)
    return folder, said


def succeeds(folder: Path, *command: str) -> None:
    env = with_plugins(folder / "site", OMP_NUM_THREADS="1")
    done = python("-m", *command, folder=folder, env=env)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_new_packages_install_are_formatted_and_pass_their_tests(made):
    folder, _ = made
    packages = [str(folder / f"made_{kind}") for kind in KINDS]
    succeeds(folder, "ruff", "format", "--isolated", "--line-length", "100", "--check", *packages)
    succeeds(folder, "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *packages)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_says_what_comes_next_and_conforms(kind, made):
    folder, said = made
    cls = f"Made{kind.capitalize()}"
    assert f"fedsim check made_{kind}:{cls}" in said[kind]
    files = {file.name for file in (folder / f"made_{kind}").glob("*.*")}
    assert files == {"pyproject.toml", "README.md", f"made_{kind}.py", f"test_made_{kind}.py"}
    succeeds(folder, "fedsim.cli", "check", f"made_{kind}:{cls}")
    succeeds(folder, "fedsim.cli", "show", f"made-{kind}")


def test_a_name_of_one_of_fedsims_own_metrics_is_refused(tmp_path, monkeypatch, capsys):
    code, words = asked(monkeypatch, capsys, tmp_path, "metric", "psnr")
    assert code == 2
    assert "'psnr' is the name of one of the metrics" in words


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Attack", "fedsim new adversary my_attack"),
        ("2nd", "fedsim new adversary adversary_2nd"),
        ("class", "fedsim new adversary my_class"),
        ("a/b", "fedsim new adversary a_b"),
        ("torch", "is installed already, and would be shadowed"),
        ("there", "there is there already"),
        ("knowledge", "would be called 'Knowledge', which means something else in its file"),
        ("true", "fedsim new adversary my_true"),
        ("bias_signs", "'bias-signs' is the name of one of the adversaries"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_fix(name, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "there").mkdir()
    code, words = asked(monkeypatch, capsys, tmp_path, "adversary", name)
    assert code == 2
    assert said in words
    assert [file.name for file in tmp_path.iterdir()] == ["there"]
