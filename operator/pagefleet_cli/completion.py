"""`kubectl_complete-pagefleet`: kubectl (1.26 and later) runs it to complete `kubectl pagefleet ...`.

It gets the words after the plugin's name, the last of them unfinished. It prints one candidate a line and then a
directive, as Cobra's `__complete` does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys

from pagefleet_cli.main import app

NO_FILES = ":4"  # Cobra's ShellCompDirectiveNoFileComp


def run() -> None:
    words = sys.argv[1:]
    asked = {"COMP_WORDS": shlex.join(["pagefleet", *words]), "COMP_CWORD": str(len(words))}
    os.environ.update(asked, _PAGEFLEET_COMPLETE="complete_bash")
    with contextlib.suppress(SystemExit):
        app(prog_name="pagefleet")
    sys.stdout.write(f"\n{NO_FILES}\n")
