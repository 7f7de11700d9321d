"""Which lines of a file are most like a sentence: embed.py MODEL FILE SENTENCE."""

import sys

import brrr

model, file, sentence = sys.argv[1:]
with open(file, encoding="utf-8") as lines:
    texts = [line.strip() for line in lines if line.strip()]
with brrr.Embedder(model) as embedder:
    vectors = embedder.embed(texts).tolist()  # or .numpy(), without a copy
    wanted = embedder.embed(sentence).tolist()[0]
scores = [sum(a * b for a, b in zip(vector, wanted)) for vector in vectors]
for score, text in sorted(zip(scores, texts), reverse=True)[:5]:
    print(f"{score:.3f}  {text}")
