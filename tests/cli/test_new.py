"""`fedsim new`: it writes a package that installs, passes its test and keeps its contract."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.plugins_fixture import install, with_plugins

from fedsim.cli import main


def asked(monkeypatch, capsys, folder: Path, *words: str) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["fedsim", "new", *words])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out + said.err


@pytest.mark.parametrize("kind", ["adversary", "defense", "metric", "task"])
def test_a_new_package_installs_passes_its_test_and_conforms(kind, tmp_path, monkeypatch, capsys):
    code, said = asked(monkeypatch, capsys, tmp_path, kind, f"made_{kind}")
    assert code == 0, said
    package, site, cls = tmp_path / f"made_{kind}", tmp_path / "site", f"Made{kind.capitalize()}"
    assert f"fedsim check made_{kind}:{cls}" in said
    files = {file.name for file in package.iterdir()}
    assert files == {"pyproject.toml", "README.md", f"made_{kind}.py", f"test_made_{kind}.py"}
    install(package, site)
    for command in (
        ["ruff", "format", "--isolated", "--line-length", "100", "--check", str(package)],
        ["pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(package)],
        ["fedsim.cli", "check", f"made_{kind}:{cls}"],
        ["fedsim.cli", "show", f"made-{kind}"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=with_plugins(site, OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Attack", "fedsim new adversary my_attack"),
        ("2nd", "fedsim new adversary adversary_2nd"),
        ("class", "fedsim new adversary my_class"),
        ("a/b", "fedsim new adversary a_b"),
        ("torch", "is installed already, and would be shadowed"),
        ("there", "there is there already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_fix(name, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "there").mkdir()
    code, words = asked(monkeypatch, capsys, tmp_path, "adversary", name)
    assert code == 2
    assert said in words
    assert [file.name for file in tmp_path.iterdir()] == ["there"]
