#!/usr/bin/env python3
"""Small files that PyTorch saved, in both of its formats, and what is in them; and hostile ones.

    pip install numpy==2.4.6 torch==2.15.0 safetensors==0.8.0
    python3 tests/golden/make_torch_goldens.py

Writes torch_files.safetensors beside this script:
  file:NAME     u8 [bytes]: the file
  NAME:KEY      a tensor that is in it
"""

import argparse
import collections
import io
import os
import pathlib
import pickle
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

torch.manual_seed(3)
tensors = {}


def put(name, data):
    tensors["file:" + name] = torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()


def add(name, value, inside=None, legacy=False):
    """Saves a value; `inside`: the tensors that are to be found."""
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=not legacy)
    put(name, out.getvalue())
    for key, tensor in (inside or {}).items():
        tensors[f"{name}:{key}"] = tensor.detach().contiguous().clone()
    return out.getvalue()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 2)


net = Net()
state = net.state_dict()
for legacy in (False, True):
    end = "-legacy.pth" if legacy else ".pth"
    add("state" + end, state, state, legacy)
    add("checkpoint" + end, {"epoch": 3, "lr": 0.1, "state_dict": state, "best": None, "name": "net", "flag": True,
                             "optimizer": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 1}]}},
        state, legacy)
    base = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    views = {"turned": base.t(), "part": base[1:4, 2:9:3], "whole": base, "row": base[2], "scalar": base[3, 4],
             "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "none": base[:, :0]}
    add("views" + end, views, views, legacy)
    kinds = {str(d).split(".")[1]: torch.arange(-2, 4).to(d) for d in
             (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
              torch.int8, torch.uint8, torch.bool)}
    add("kinds" + end, kinds, kinds, legacy)
add("parallel.pth", collections.OrderedDict(("module." + k, v) for k, v in state.items()), state)
add("parameters.pth", {"a": torch.nn.Parameter(torch.ones(2, 3)), "b": [torch.zeros(1), (torch.ones(2),)]},
    {"a": torch.ones(2, 3), "b.0": torch.zeros(1), "b.1.0": torch.ones(2)})
tied = torch.randn(3, 2)
add("tied.pth", {"model": {"in": tied, "out": tied}}, {"in": tied, "out": tied})
add("complex.pth", {"c": torch.zeros(2, dtype=torch.complex64), "r": torch.ones(2)}, {"r": torch.ones(2)})
for protocol in (2, 4, 5):
    out = io.BytesIO()
    torch.save(state, out, pickle_protocol=protocol)
    put(f"protocol{protocol}.pth", out.getvalue())
    for key, tensor in state.items():
        tensors[f"protocol{protocol}.pth:{key}"] = tensor.clone()


def zipped(files, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


original = zipfile.ZipFile(io.BytesIO(add("again.pth", state)))
put("deflated.pth", zipped({n: original.read(n) for n in original.namelist()}, zipfile.ZIP_DEFLATED))
for key, tensor in state.items():
    tensors["deflated.pth:" + key] = tensor.clone()
    tensors["again.pth:" + key] = tensor.clone()

# Hostile or foreign ones
class Calls:
    def __init__(self, function, *values):
        self.what = (function, values)

    def __reduce__(self):
        return self.what


def hostile(name, value, protocol=2):
    put(name, zipped({"x/data.pkl": pickle.dumps(value, protocol), "x/version": "3\n"}))


hostile("system.pth", {"a": Calls(os.system, "true")})
hostile("eval.pth", {"a": Calls(eval, "1 + 1")}, 4)
hostile("namespace.pth", {"args": argparse.Namespace(lr=1), "state_dict": {}})
hostile("numpy.pth", {"a": np.ones(3)})
hostile("text.pth", "hello")
circle = []
circle.append(circle)
hostile("circle.pth", {"a": circle})
put("no-pickle.pth", zipped({"x/readme": "hello"}))
put("big-endian.pth", zipped({n: (b"big" if n.endswith("byteorder") else original.read(n)) for n in original.namelist()}))
put("no-storage.pth", zipped({n: original.read(n) for n in original.namelist() if not n.endswith("data/0")}))
put("short-storage.pth", zipped({n: (original.read(n)[:-4] if n.endswith("data/0") else original.read(n))
                                 for n in original.namelist()}))
expanded = torch.ones(1).expand(1000)
add("expanded.pth", {"a": expanded})
script = io.BytesIO()
torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), script)
put("script.pt", script.getvalue())

save_file(tensors, pathlib.Path(__file__).parent / "torch_files.safetensors")
