"""Facts of an adversary that is not imported: which source files are its own."""

import importlib

from fedsim.isolation.facts import sources_of


def test_the_source_is_that_of_modules_that_it_imports(tmp_path, monkeypatch):
    (package := tmp_path / "packed_attack").mkdir()
    for name in ("used", "also", "unused"):
        (package / f"{name}.py").touch()
    (package / "__init__.py").write_text(
        "import packed_attack.also\n"
        "from adversaries import LLG\n"
        "from packed_attack import used\n"
        "class Mine(LLG): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("packed_attack").Mine()
    files = sources_of([mine])
    assert {package / f"{name}.py" for name in ("__init__", "used", "also")} <= {*files}
    importlib.import_module("packed_attack.unused")  # as another adversary of a run may
    assert sources_of([mine]) == files
