"""Who may import whom, what an import costs, and what the public face is."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import adversaries
import defenses
import fedsim

ROOT = Path(fedsim.__file__).parent

# Rooms from left to right: a room imports what stands left of it. The rooms of a row know nothing
# of each other.
ROOMS = [
    {"errors", "interrupts", "moved"},
    {"references", "libraries", "temporary", "described", "inert"},
    {"seeds", "plugin", "parts", "privacy", "job", "quantity"},
    {"requirement"},
    {"spec"},
    {"knowledge"},
    {"victim", "update"},
    {"records"},
    {"threat"},
    {"adversary", "defense", "metric", "task"},
    {"gradients"},
    {"priors", "metrics"},
    {"tasks", "testing"},
    {"isolation"},
    {"scenario"},
    {"training"},
    {"runs"},
    {"report"},
    {"attacking"},
    {"diagnosis"},
    {"results", "sinks"},
    {"federation"},
    {"engine"},
    {"reproduce"},
    {"cli"},
]

FLOWER = {"federation", "engine"}
PLUGINS = {
    *("fedsim", "torch", "numpy", "scipy", "transformers", "torchaudio", "pydantic", "opacus"),
    *("safetensors", "sklearn", "cvxopt", "rapidfuzz"),
}


def statements(path: Path) -> Iterator[list[str]]:
    """What each import statement of a file names, function bodies and types included.

    `from package import name` names both `package` and `package.name`.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ([alias.name] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            for alias in node.names:
                yield [str(node.module), f"{node.module}.{alias.name}"]


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, and names that it imports from them."""
    for named in statements(path):
        yield from named


def listed(package: Path) -> list[str]:
    """The modules that a package's docstring lists, each on a line of its own."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    return re.findall(r"^([a-z_]+) {2,}[^ -]", text or "", re.M)


def sources(root: Path = ROOT) -> list[Path]:
    return sorted(root.rglob("*.py"))


def room(path: Path) -> str:
    """The room a file of fedsim belongs to; "" for the front door."""
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


RANK = {name: rank for rank, names in enumerate(ROOMS) for name in names}


def test_every_room_has_its_place():
    assert {room(path) for path in sources()} - {""} == set(RANK)


def test_the_page_draws_these_rooms():
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    picture = re.search(r"flowchart LR\n(.*?)```", text, re.DOTALL)
    assert picture
    rows = [row for line in picture[1].splitlines() for row in line.strip().split(" --> ") if row]
    drawn = list(dict.fromkeys(frozenset(row.split(" & ")) for row in rows))
    assert drawn == [frozenset(room - {"moved"}) for room in ROOMS]


def test_a_rooms_docstring_lists_its_modules():
    packages = [path.parent for path in sources() if path.name == "__init__.py"]
    listing = [package for package in packages if listed(package)]
    rooms = {room for row in ROOMS for room in row if (ROOT / room).is_dir()}
    assert {package.name for package in listing} >= rooms - {"cli"}  # a file for each command
    for package in listing:
        parts = {path.stem for path in package.glob("[!_]*.py")}
        parts |= {path.parent.name for path in package.glob("*/__init__.py")}
        assert sorted(listed(package)) == sorted(parts), package


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_what_stands_left_of_them(path):
    own = room(path)
    names = {name.split(".")[1] for name in imports(path) if name.startswith("fedsim.")}
    for name in (names & set(RANK)) - {own}:
        assert own == "" or RANK[name] < RANK[own], (
            f"{own} imports {name}, which stands right of it or beside it. {name} may import "
            f"{own}: move what both need to the left, or what needs {name} to the right"
        )


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected sets of more than one module: each reaches all the others."""

    def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
        found, ahead = set(), [start]
        while ahead:
            for other in edges[ahead.pop()] - found:
                found.add(other)
                ahead.append(other)
        return found

    back = {name: {other for other in graph if name in graph[other]} for name in graph}
    sets = {frozenset(reached(name, graph) & reached(name, back)) for name in graph}
    return [set(found) for found in sets if len(found) > 1]


def test_no_modules_import_each_other_in_a_circle():
    files = {}
    for folder in (ROOT, *(Path(package.__file__).parent for package in (adversaries, defenses))):
        for path in sources(folder):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = path
    graph = {}
    for name, path in files.items():
        # Of `from package import module` it is the module that is used.
        used = ([one for one in named if one in files][-1:] for named in statements(path))
        graph[name] = {module for last in used for module in last} - {name}
    assert len(graph) > 200
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert cycles(graph) == []


READING = (
    "fedsim.errors",
    "fedsim.metric",
    "fedsim.runs.files",
    "fedsim.inert",
    "fedsim.runs.reading",
)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        *((path, ("fedsim.report", *READING)) for path in sources(ROOT / "report")),
        (ROOT / "runs" / "reading.py", READING),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_reports_and_the_reading_half_of_runs_know_run_folders_alone(path, allowed):
    ours = {name for name in imports(path) if name.startswith("fedsim.")}
    known = tuple(f"{name}." for name in allowed)
    assert all(f"{name}.".startswith(known) for name in ours), ours


@pytest.mark.parametrize(
    ("package", "where"),
    [("flwr", FLOWER), ("ray", {"engine"}), ("flwr_datasets", {"tasks"}), ("datasets", {"tasks"})],
)
def test_heavy_packages_stay_in_their_rooms(package, where):
    users = {room(path) for path in sources() if package in packages(path)}
    assert users <= where
    if package == "ray":
        files = [path for path in sources() if package in packages(path)]
        assert {path.parent for path in files} == {ROOT / "engine" / "ray"}


def test_flowers_private_names_are_touched_in_two_files():
    # grid.py says who is sending; secaggplus.py talks to Flower's legacy server in its own types.
    users = [
        path.name
        for path in sources()
        if any(name.startswith(("flwr.supercore", "flwr.common")) for name in imports(path))
    ]
    assert users == ["grid.py", "secaggplus.py"]


def test_fedsim_never_imports_the_plugins():
    for path in sources():
        assert not packages(path) & {"adversaries", "defenses", "scenarios"}, path


@pytest.mark.parametrize(
    "path",
    [*sources(Path(adversaries.__file__).parent), *sources(Path(defenses.__file__).parent)],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_plugins_import_public_names_and_numerics_only(path):
    own = "adversaries" if "adversaries" in path.parts else "defenses"
    found = packages(path) - set(sys.stdlib_module_names) - {own}
    assert found <= PLUGINS
    public = public_modules() | set(fedsim.__all__)
    for name in imports(path):
        if name.startswith("fedsim."):
            assert name.split(".")[1] in public, name
            assert not name.startswith("fedsim.tasks."), f"{name}: what a task is made of"
            assert not any(part.startswith("_") for part in name.split(".")), name


def public_modules() -> set[str]:
    """The modules that `fedsim` itself offers, and those its public names live in."""
    return set(fedsim._MODULES) | {"errors", "moved"}


def test_the_public_names_are_sorted_and_each_can_be_loaded():
    assert fedsim.__all__ == sorted(fedsim.__all__)
    assert {"Adversary", "LLG"} & set(fedsim.__all__) == {"Adversary"}
    assert dir(fedsim) == fedsim.__all__
    for name in fedsim.__all__:
        assert getattr(fedsim, name) is not None
    with pytest.raises(AttributeError, match="Adversry"):
        _ = fedsim.Adversry


def test_type_checkers_see_the_public_names_where_they_live():
    declared = {
        alias.name: node.module
        for node in ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == {name: f"fedsim.{home}" for name, home in fedsim._HOMES.items()}


def test_public_names_are_declared_where_they_live():
    for name, home in fedsim._HOMES.items():
        module = __import__(f"fedsim.{home}", fromlist=[name])
        from_here = getattr(module, name).__module__
        # A type alias says the module of the type.
        assert from_here == module.__name__ or not from_here.startswith("fedsim"), name


def loaded_after(code: str) -> set[str]:
    """Top-level packages in a fresh interpreter after some code."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_fedsim_and_its_plugins_loads_nothing_heavy():
    loaded = loaded_after(
        "import fedsim, adversaries, defenses\n"
        "import adversaries.labels.llg, adversaries.inputs.dlg, adversaries.labels.idlg\n"
        "import adversaries.labels.min_column, adversaries.labels.bias_signs\n"
        "import adversaries.labels.random_guess\n"
        "import defenses.noise, defenses.sign\n"
        "from fedsim import Adversary, Defense, Knowledge, Observation, testing\n"
        "from fedsim import Scenario, ThreatModel, Task"
    )
    assert "torch" in loaded
    heavy = {"flwr", "ray", "datasets", "flwr_datasets", "transformers", "pandas", "plotly"}
    assert not loaded & (heavy | {"sklearn", "torchmetrics", "typer"})


def test_flowers_mods_are_read_about_without_flower():
    code = (
        "from fedsim.plugin import make\n"
        "[make('defenses', f'flower-{name}', {}, '') for name in ('local-dp', 'fixed-clipping')]"
    )
    assert "flwr" not in loaded_after(code)


def test_importing_fedsim_alone_loads_not_even_torch():
    assert not loaded_after("import fedsim, adversaries, defenses") & {"torch", "numpy", "pydantic"}


def test_training_and_its_defenses_load_no_flower():
    assert "flwr" not in loaded_after("import fedsim.training.local")


def test_reading_a_run_folder_loads_no_torch():
    code = "import fedsim.report, fedsim.report.charts, fedsim.runs.reading"
    assert not loaded_after(code) & {"torch", "flwr", "ray", "adversaries", "defenses"}


def test_help_answers_within_a_second():
    """Of processor time, which a busy machine does not stretch as it does the clock's."""
    command = [Path(sysconfig.get_path("scripts")) / "fedsim", "--help"]
    took = []
    for _ in range(5):
        before = os.times()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        after = os.times()
        took.append(sum(after[2:4]) - sum(before[2:4]))  # of children, user and system
        if took[-1] < 1:
            break
    assert "Simulate federated learning" in done.stdout
    assert min(took) < 1, took
