"""`python -m brrr VERB ...` and the script `brrr`: the program itself takes over the process."""

import os
import shutil
import sys


def program():
    """The program: that of BRRR_BINARY, that of this package, else the one on the PATH."""
    given = os.environ.get("BRRR_BINARY")
    if given:
        return given
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "brrr")
    return bundled if os.path.exists(bundled) else shutil.which("brrr")


def main():
    found = program()
    if found is None:
        sys.exit("brrr: the program brrr was not found; install Brrr, or name it in BRRR_BINARY")
    sys.stdout.flush()
    os.execv(found, ["brrr", *sys.argv[1:]])


if __name__ == "__main__":
    main()
