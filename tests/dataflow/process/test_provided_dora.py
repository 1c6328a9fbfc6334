"""The module `dora` that users' code finds while a dataflow runs."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from headrace.dataflow.runtime.process import PROVIDED


def run(script: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [PROVIDED, *paths]))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def install_dora(directory: Path) -> Path:
    """An installed dora with a name, a part and a module more than the provided one."""
    package = directory / "site" / "dora"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .core import Ros2Context\nclass DoraStatus: pass\n")
    (package / "core.py").write_text("class Ros2Context: name = 'real'\n")
    (package / "builder.py").write_text("from dora import DoraStatus, Ros2Context\n")
    return package.parent


def test_a_status_has_doras_values_and_needs_no_arrow() -> None:
    done = run("""
        import sys
        from dora import DoraStatus
        print([(one.name, one.value) for one in DoraStatus], "pyarrow" in sys.modules)
    """)
    assert done.stdout == "[('CONTINUE', 0), ('STOP', 1), ('STOP_ALL', 2)] False\n"


def test_a_node_outside_of_a_dataflow_says_how_to_run_it() -> None:
    done = run("from dora import Node\nNode()\n")
    assert "`headrace run FILE.yml`" in done.stderr.splitlines()[-1]


def test_a_node_whose_link_was_closed_says_so() -> None:
    done = run("""
        import os
        os.environ["HEADRACE_NODE_LINK"] = "77"
        from dora import Node
        Node()
    """)
    assert "closed file descriptor 77" in done.stderr.splitlines()[-1]


def test_other_names_come_from_the_installed_dora(tmp_path: Path) -> None:
    done = run(
        """
        import dora
        from dora import DoraStatus, Ros2Context
        from dora.builder import DoraStatus as same, Ros2Context as real
        print(Ros2Context.name, real is Ros2Context, same is DoraStatus, DoraStatus.STOP.value)
        try:
            dora.nothing
        except AttributeError as error:
            print(error)
        """,
        install_dora(tmp_path),
    )
    names, unknown = done.stdout.splitlines()
    assert names == "real True True 1"
    assert unknown == (
        "Headrace provides `Node` and `DoraStatus` of dora, and no `nothing`. "
        "The installed dora has none either"
    )


def test_without_an_installed_dora_other_names_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "dora").mkdir()
    done = run("from dora import DoraStatus\nimport dora\ndora.Ros2Context\n", tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "AttributeError: Headrace provides `Node` and `DoraStatus` of dora, and no `Ros2Context`. "
        "`pip install dora-rs` gives the rest"
    )
    assert "No module named 'dora.builder'" in run("import dora.builder", tmp_path).stderr


def test_an_installed_dora_that_is_broken_says_why(tmp_path: Path) -> None:
    (tmp_path / "dora.py").write_text("import no_such_module\n")
    done = run("import dora\ndora.Ros2Context\n", tmp_path)
    assert "cannot be imported: No module named 'no_such_module'" in done.stderr.splitlines()[-1]
