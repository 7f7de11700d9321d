"""Prints which of NVIDIA's libraries `brrr` would open here, and their versions: a line of JSON each. The
folders are those of src/backend/cuda/live/library.cpp, in its order."""

import ctypes
import json
import os


def version_of(library, kind):
    number = ctypes.c_int()
    if kind == "driver":
        library.cuDriverGetVersion(ctypes.byref(number))
    elif kind == "nvrtc":
        minor = ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(number), ctypes.byref(minor))
        return f"{number.value}.{minor.value}"
    else:
        function = library.cublasLtGetVersion if kind == "cublaslt" else library.cudnnGetVersion
        function.restype = ctypes.c_size_t
        return str(function())
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def path_of(name):
    """Where the process has it."""
    for line in open("/proc/self/maps"):
        if os.path.basename(line.rstrip()).startswith(name.split(".so")[0] + ".so"):
            return line.split()[-1]
    return ""


def main():
    folders = []
    if home := os.environ.get("CUDA_HOME"):
        folders += [home + "/lib64/", home + "/lib/"]
    folders += ["", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"]
    for kind, names in (("driver", ["libcuda.so.1"]), ("nvrtc", ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]),
                        ("cublaslt", ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]),
                        ("cudnn", ["libcudnn.so.9", "libcudnn.so"])):
        found = {"library": kind, "path": "", "version": "not found"}
        for folder in folders:
            for name in names:
                if found["path"]:
                    break
                try:
                    library = ctypes.CDLL(folder + name)
                except OSError:
                    continue
                found["path"] = path_of(name) or folder + name
                try:
                    found["version"] = version_of(library, kind)
                except AttributeError:
                    found["version"] = "does not say"
        print(json.dumps(found), flush=True)


main()
