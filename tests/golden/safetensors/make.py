"""Makes python.safetensors: one tensor of every dtype, written by the Python package safetensors."""
import pathlib

import torch
from safetensors.torch import save_file

values = torch.tensor([0.0, 1.0, -2.5, 65504.0, 2.0**-20, -0.0])
tensors = {
    "f64": values.double().reshape(2, 3),
    "f32": values.reshape(3, 2),
    "f16": values.half(),
    "bf16": values.bfloat16().reshape(1, 6),
    "i64": torch.tensor([-(2**62), 5]),
    "i32": torch.tensor([[-7], [2**31 - 1]], dtype=torch.int32),
    "i8": torch.tensor([-128, 127], dtype=torch.int8),
    "u8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "fp8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "\u00fcml\u00e4ut \"quote\"": torch.ones(1),
}
save_file(tensors, pathlib.Path(__file__).parent / "python.safetensors",
          metadata={"format": "pt", "note": "gr\u00fc\u00dfe"})
