"""What Hugging Face's transformers makes of a folder that Brrr wrote, for transformers_test.cpp.

    python3 with_transformers.py FOLDER WHAT < REQUEST.json

WHAT        the request                      the answer
classify    a list of texts                  a list of {label: logit}; of one value, {"": value}
tokens      a list of lists of words         a list of lists (a word) of {label: logit}
fill-mask   a list of texts, a mask in each  a list of {token: logarithm of its probability}, the 20 best
embed       a list of texts                  a list of vectors, the mean over the tokens
encode      a list of texts                  a list of {"ids": [...], "text": what they decode to}
generate    {"prompt": text, "tokens": N}    {"text": ...}, greedily

All in float32. What transformers says of missing or unexpected weights goes to "report".
"""
import json
import sys

import torch
import transformers
from transformers import AutoTokenizer


def load(kind, folder):
    model, report = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return model.eval(), {key: sorted(map(str, names)) for key, names in report.items() if names}


def named(model, logits):
    labels = model.config.id2label
    return {labels[i] if len(logits) > 1 else "": float(x) for i, x in enumerate(logits)}


def classify(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = load(transformers.AutoModelForSequenceClassification, folder)
    return [named(model, model(**tokenizer(text, return_tensors="pt")).logits[0]) for text in texts], report


def tokens(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = load(transformers.AutoModelForTokenClassification, folder)
    answers = []
    for words in texts:
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        logits = model(**encoded).logits[0]
        first = {}  # the first token of a word tells its class
        for place, word in enumerate(encoded.word_ids()):
            first.setdefault(word, place)
        answers.append([named(model, logits[first[word]]) for word in range(len(words))])
    return answers, report


def fill_mask(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = load(transformers.AutoModelForMaskedLM, folder)
    answers = []
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt")
        place = encoded["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        scores = torch.log_softmax(model(**encoded).logits[0, place], -1)
        best = scores.topk(20)
        answers.append({tokenizer.decode([i]): float(x) for x, i in zip(best.values, best.indices.tolist())})
    return answers, report


def embed(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = load(transformers.AutoModel, folder)
    return [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).tolist()
            for text in texts], report


def encode(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return [{"ids": i, "text": tokenizer.decode(i)} for i in ids], {}


def generate(folder, request):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = load(transformers.AutoModelForCausalLM, folder)
    encoded = tokenizer(request["prompt"], return_tensors="pt", add_special_tokens=False)
    made = model.generate(encoded["input_ids"], max_new_tokens=request["tokens"], do_sample=False)
    return {"text": tokenizer.decode(made[0])}, report


def main(folder, what):
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        answer, report = globals()[what.replace("-", "_")](folder, json.load(sys.stdin))
    json.dump({"answer": answer, "report": report}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
