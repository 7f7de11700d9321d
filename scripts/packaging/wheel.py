"""wheel.py PACKAGE PREFIX LIBRARIES VERSION GLIBC GLIBCXX FOLDER: writes the wheel into FOLDER: the Python
package, the program and the library of PREFIX, and the libraries that they need. The same inputs
give the same bytes: entries are sorted and bear the time SOURCE_DATE_EPOCH."""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

package, prefix, libraries, version, glibc, glibcxx, folder = sys.argv[1:]


def system(glibc, glibcxx):
    """The oldest glibc of a system that has both: GCC 12's library comes with 2.35 and later."""
    needed = tuple(map(int, glibc.split(".")))
    newest_before_gcc_12 = (3, 4, 29)
    if tuple(map(int, glibcxx.split("."))) > newest_before_gcc_12:
        needed = max(needed, (2, 35))
    return "manylinux_" + "_".join(map(str, needed)) + "_x86_64"


tag = f"py3-none-{system(glibc, glibcxx)}"
info = f"brrr-{version}.dist-info"
entries = {}  # name -> (bytes, mode)


def add(name, path, mode=0o644):
    entries[name] = (Path(path).read_bytes(), mode)


for source in sorted(Path(package).glob("*.py")):
    add(f"brrr/{source.name}", source)
add("brrr/bin/brrr", f"{prefix}/bin/brrr", 0o755)
add("brrr/lib/libbrrr.so.0", f"{prefix}/lib/libbrrr.so.0")
for library in sorted(Path(libraries).iterdir()):
    add(f"brrr/lib/{library.name}", library)
add(f"{info}/licenses/LICENSE", f"{prefix}/share/doc/brrr/LICENSE")
add(f"{info}/licenses/NOTICES", f"{prefix}/share/doc/brrr/NOTICES")
texts = {
    "METADATA": f"""Metadata-Version: 2.1
Name: brrr
Version: {version}
Summary: Trains, compresses and runs neural nets on plain CPUs
License: MIT
Requires-Python: >=3.8
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
""",
    "WHEEL": f"""Wheel-Version: 1.0
Generator: brrr
Root-Is-Purelib: false
Tag: {tag}
""",
    "entry_points.txt": "[console_scripts]\nbrrr = brrr.__main__:main\n",
}
for name, text in texts.items():
    entries[f"{info}/{name}"] = (text.encode(), 0o644)
record = ""
for name, (data, _) in sorted(entries.items()):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(data)}\n"
entries[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)

moment = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
path = Path(folder) / f"brrr-{version}-{tag}.whl"
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
    for name, (data, mode) in sorted(entries.items()):
        entry = zipfile.ZipInfo(name, moment)
        entry.create_system = 3  # Unix: the mode counts
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, data, compresslevel=9)
print(path.name)
