#!/usr/bin/env python3
"""Golden numbers of small random language models of torch.nn.LSTM and torch.nn.GRU: logits, loss and
every gradient. Needs torch and safetensors; run it where they are installed:

    python tests/golden/make_recurrent_goldens.py

It writes a file for each case into tests/golden/transformers/, whose tests read them. Weights are
stored as bf16 numbers in float32.
"""

import json
import pathlib

import numpy
import torch
from safetensors.numpy import save_file

CONFIG = dict(model_type="lstm", architectures=["LstmForCausalLM"], vocab_size=61, hidden_size=24,
              embedding_size=20, num_hidden_layers=2, max_position_embeddings=32, dropout=0.0)
CASES = {
    "lstm": dict(),
    "lstm_gru": dict(cell="gru", num_hidden_layers=3),
    # A vocabulary that is larger than the number of tokens, and a head that is the embedding.
    "lstm_tied": dict(vocab_size=101, embedding_size=None, tie_word_embeddings=True),
}
BATCH, LENGTH = 3, 21


class Model(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["embedding_size"] or c["hidden_size"]
        self.embedding = torch.nn.Embedding(c["vocab_size"], width)
        kind = torch.nn.GRU if c.get("cell") == "gru" else torch.nn.LSTM
        self.rnn = kind(width, c["hidden_size"], c["num_hidden_layers"], batch_first=True)
        self.head = torch.nn.Linear(c["hidden_size"], c["vocab_size"])
        if c.get("tie_word_embeddings"):
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def make(name, case):
    config = dict(CONFIG, **case)
    torch.manual_seed(sum(map(ord, name)))
    model = Model(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((torch.randn(p.shape) * 0.3).bfloat16().float())
    rng = numpy.random.default_rng(sum(map(ord, name)))
    tokens = rng.integers(0, config["vocab_size"], (BATCH, LENGTH))
    targets = rng.integers(0, config["vocab_size"], (BATCH, LENGTH))
    targets[rng.random(targets.shape) < 0.1] = -1  # ignored
    logits = model(torch.from_numpy(tokens))
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, config["vocab_size"]).double(), torch.from_numpy(targets).reshape(-1),
        ignore_index=-1)
    loss.backward()
    out = {"tokens": tokens.astype(numpy.int32), "targets": targets.astype(numpy.int32),
           "logits": logits.detach().numpy(), "loss": loss.detach().double().numpy().reshape(1)}
    for key, p in model.named_parameters():
        out["weights/" + key] = p.detach().numpy()
        out["grads/" + key] = p.grad.numpy()
    path = pathlib.Path(__file__).parent / "transformers" / f"{name}.safetensors"
    save_file(out, path, metadata={"config": json.dumps(config), "torch": torch.__version__})
    print(path.name, path.stat().st_size, "bytes; loss", round(loss.item(), 5))


if __name__ == "__main__":
    for key, value in CASES.items():
        make(key, value)
