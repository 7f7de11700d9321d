#!/usr/bin/env python3
"""Write tests/golden/onnx/silero_vad_16k_safetensors.npy: what the weights of silero_vad_16k.safetensors
give for the frames of make_onnx_goldens.py, by PyTorch in float64. The ONNX files that are published beside
it have the same layers and other weights.

    BRRR_MODELS=FOLDER python3 tests/golden/make_silero_goldens.py

The golden holds the probability of each frame and the last state. Needs torch and safetensors.
"""

import numpy as np
import torch
from make_onnx_goldens import GOLDEN, MODELS, frames
from safetensors.torch import load_file
from torch.nn import functional

STRIDES = {"conv1": 1, "conv2": 2, "conv3": 2, "conv4": 1}


def main():
    weights = load_file(MODELS / "silero" / "silero_vad_16k.safetensors")
    weights = {name: tensor.double() for name, tensor in weights.items()}
    cell = torch.nn.LSTMCell(128, 128, dtype=torch.float64)
    cell.load_state_dict({k.removeprefix("lstm_cell."): v for k, v in weights.items() if "lstm" in k})
    bins = weights["stft_conv.weight"].shape[0] // 2
    state = (torch.zeros(1, 128, dtype=torch.float64), torch.zeros(1, 128, dtype=torch.float64))
    out = []
    with torch.no_grad():
        for frame in frames(16000):
            x = functional.pad(torch.from_numpy(frame).double(), (0, 64), mode="reflect")
            x = functional.conv1d(x[:, None], weights["stft_conv.weight"], stride=128)
            x = torch.hypot(x[:, :bins], x[:, bins:])
            for name, stride in STRIDES.items():
                x = functional.conv1d(x, weights[name + ".weight"], weights[name + ".bias"], stride, 1)
                x = functional.relu(x)
            state = cell(x[:, :, 0], state)
            logit = functional.conv1d(functional.relu(state[0])[:, :, None],
                                      weights["final_conv.weight"], weights["final_conv.bias"])
            out.append(torch.sigmoid(logit).mean(2).ravel())
    out = torch.cat([*out, state[0].ravel(), state[1].ravel()]).float().numpy()
    np.save(GOLDEN / "silero_vad_16k_safetensors.npy", out)
    print(out.shape, out[:100].min(), out[:100].max())


if __name__ == "__main__":
    main()
