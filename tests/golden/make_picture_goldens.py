#!/usr/bin/env python3
"""Golden numbers of small random ResNets from Hugging Face's transformers: logits of evaluation, and
of training loss, every gradient, and losses, weights and running statistics over steps of SGD. Needs
torch, transformers (the version below) and safetensors; run it where they are installed:

    python tests/golden/make_picture_goldens.py [CASE...]

It writes a file for each case into tests/golden/pictures/. Weights are stored as bf16 numbers in
float32, so that both sides start from the same bits; everything is computed in float64.
"""

import json
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import save_file

TRANSFORMERS = "5.24.0"
COMMON = dict(num_channels=3, embedding_size=8, hidden_sizes=[8, 12], depths=[2, 1], num_labels=3)
CASES = {
    "resnet_basic": dict(COMMON, layer_type="basic"),
    "resnet_bottleneck": dict(COMMON, layer_type="bottleneck", downsample_in_first_stage=True),
    "resnet_v1_smoothed": dict(COMMON, layer_type="bottleneck", downsample_in_bottleneck=True,
                               num_channels=1, hidden_act="silu", label_smoothing=0.1),
    "resnet_cifar": dict(COMMON, layer_type="basic", hidden_sizes=[8, 12, 16], depths=[1, 1, 1],
                         stem="cifar"),
}
SIDE = {"resnet_cifar": 10}
BATCH, STEPS, RATE, MOMENTUM, DECAY = 4, 3, 0.05, 0.9, 0.01
UNSCORED = 2


def make(name, case):
    case = dict(case)
    smoothing, stem = case.pop("label_smoothing", 0.0), case.pop("stem", "imagenet")
    config = transformers.ResNetConfig(**case)
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.ResNetForImageClassification(config)
    if stem == "cifar":
        embedder = model.resnet.embedder
        embedder.embedder.convolution = torch.nn.Conv2d(config.num_channels, config.embedding_size,
                                                        3, 1, 1, bias=False)
        embedder.pooler = torch.nn.Identity()
    with torch.no_grad():
        for key, p in list(model.named_parameters()) + list(model.named_buffers()):
            if not p.is_floating_point():
                p.fill_(7)
                continue
            if key.endswith("running_var"):
                values = 0.5 + torch.rand(p.shape)
            else:
                values = torch.randn(p.shape) * (0.3 if p.dim() > 1 else 0.2)
            if key.endswith("normalization.weight"):
                values += 1
            p.copy_(values.bfloat16().float())
    model = model.double()
    side = SIDE.get(name, 17)
    rng = numpy.random.default_rng(sum(map(ord, name)))
    out = {}

    def state(prefix):
        for key, value in model.state_dict().items():
            value = value.detach()
            out[prefix + key] = (value.float() if value.is_floating_point() else value).numpy().copy()

    state("weights/")
    pixels = rng.normal(size=(STEPS, BATCH, config.num_channels, side, side)).astype(numpy.float32)
    targets = rng.integers(0, config.num_labels, (STEPS, BATCH)).astype(numpy.int32)
    targets[:, UNSCORED] = -1
    out["pixels"], out["targets"] = pixels, targets
    model.eval()
    with torch.no_grad():
        out["logits"] = model(torch.from_numpy(pixels[0]).double()).logits.float().numpy()
        out["embedding"] = model.resnet(
            torch.from_numpy(pixels[0]).double()).pooler_output.flatten(1).float().numpy()
    model.train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.SGD([dict(params=decayed, weight_decay=DECAY),
                                 dict(params=others, weight_decay=0)], lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(torch.from_numpy(pixels[step]).double()).logits
        loss = torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(targets[step]).long(), ignore_index=-1,
            label_smoothing=smoothing)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for key, p in model.named_parameters():
                out["grads/" + key] = p.grad.float().numpy().copy()
        optimizer.step()
    out["losses"] = numpy.array(losses)
    state("final/")
    config.architectures = [type(model).__name__]
    written = config.to_dict()
    if stem != "imagenet":
        written["stem"] = stem
    written["image_size"] = side
    metadata = {"transformers": transformers.__version__, "config": json.dumps(written),
                "label_smoothing": str(smoothing), "rate": str(RATE), "momentum": str(MOMENTUM),
                "decay": str(DECAY)}
    folder = pathlib.Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.safetensors"
    save_file({k: numpy.asarray(v, order="C") for k, v in out.items()}, path, metadata=metadata)
    print(path.name, path.stat().st_size, "bytes", losses)


if __name__ == "__main__":
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    torch.use_deterministic_algorithms(True)
    for key in sys.argv[1:] or CASES:
        make(key, CASES[key])
