"""The script that `spark-submit` runs as the driver: a program, its modules and its settings in one file."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_SCRIPT = '''\
"""Runs the pipeline {name}: written by `headrace submit`, for spark-submit."""

import base64
import io
import os
import sys
import tempfile
import zipfile

ARGUMENTS = {arguments}
SETTINGS = {settings}
FILES = """\\
{files}
"""

if __name__ == "__main__":
    try:
        from headrace.__main__ import main
    except ImportError as error:
        sys.exit(
            f"the driver's Python {{sys.executable}} cannot load Headrace: {{error}}; ship it with "
            "`headrace submit --env env.tar.gz` (`headrace ship-env` packs it), or install it there"
        )
    os.environ.update(SETTINGS)
    if pid_file := os.environ.pop({pid_variable!r}, None):
        with open(pid_file, "w") as file:
            file.write(str(os.getpid()))
    with tempfile.TemporaryDirectory(prefix="headrace-program-") as directory:
        zipfile.ZipFile(io.BytesIO(base64.b64decode(FILES))).extractall(directory)
        sys.path.insert(0, directory)
        sys.argv = ["headrace", *(text.replace("{{program}}", directory) for text in ARGUMENTS)]
        main()
'''
PROGRAM = "{program}"
"""Stands in arguments for the directory that the files are unpacked into."""
PID_VARIABLE = "HEADRACE_DRIVER_PID"
"""Names a file that a driver on the same machine writes its process id to, for signals."""


def entry_script(
    name: str, arguments: Sequence[str], *, settings: Mapping[str, str], files: Mapping[str, Path | str]
) -> str:
    """The script that unpacks the files and runs `headrace` with these arguments and settings.

    `files` are contents or files on disk, by the path that they get there.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, file in sorted(files.items()):
            # Without a time: the same program is the same script.
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file if isinstance(file, str) else file.read_bytes())
    encoded = base64.b64encode(content.getvalue()).decode()
    lines = [encoded[at : at + 100] for at in range(0, len(encoded), 100)]
    return _SCRIPT.format(
        name=name,
        arguments=json.dumps(list(arguments), ensure_ascii=True),
        settings=json.dumps(dict(settings), ensure_ascii=True),
        files="\n".join(lines),
        pid_variable=PID_VARIABLE,
    )
