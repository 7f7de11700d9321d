#!/usr/bin/env python3
"""Small folders of sentence-transformers with random weights, and the vectors that the library
makes with them: Dense, LayerNorm and Normalize behind the pooling, prompts that pooling leaves out,
static and word embeddings. Needs sentence-transformers (the version below) and what it needs:

    python tests/golden/make_sentence_goldens.py

It writes tests/golden/sentence_folders.safetensors: "files/FOLDER/PATH" holds the bytes of a file,
"vectors/FOLDER" those of the library for the texts of "texts" (with a prompt "vectors/FOLDER/NAME"),
"truncated/FOLDER" the first five numbers of each (with normalize_embeddings where the folder
normalizes), "similarity/FOLDER" the library's similarity of the first text as a query to all texts
as documents, and "activation/NAME" what the classes of torch.nn give for "activation".
"""

import json
import pathlib
import tempfile

import numpy
import sentence_transformers
import tokenizers
import torch
import transformers
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

VERSION = "6.2.0"
TEXTS = ["the cat sat on the mat", "a dog ate the cat !", "", "on on on , the mat sat : a dog",
         "Cats and dogs", "the", "a cat , a dog , a mat : the cat sat on the dog on the mat !"]
WORDS = ("the a cat dog mat sat ate on and query passage find : , ! s ##s d").split()
PROMPTS = {"query": "query : find ", "document": "passage : "}
ACTIVATIONS = ("Identity Tanh GELU ReLU SiLU Sigmoid ELU CELU SELU LeakyReLU ReLU6 Hardtanh "
               "Hardsigmoid Hardswish Softplus LogSigmoid Mish Softsign Tanhshrink Softshrink "
               "Hardshrink").split()


def tokenizer_of(folder=None):
    vocabulary = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS)}
    t = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    t.normalizer = tokenizers.normalizers.BertNormalizer()
    t.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    t.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = tokenizers.decoders.WordPiece()
    return t


def fast_tokenizer():
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of(), unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=48)


def randomise(module):
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + (1 if "norm" in name.lower() and name.endswith("weight") else 0))
    return module


def encoder():
    config = transformers.BertConfig(vocab_size=5 + len(WORDS), hidden_size=12, intermediate_size=16,
                                     num_hidden_layers=1, num_attention_heads=2,
                                     max_position_embeddings=48)
    with tempfile.TemporaryDirectory() as folder:
        randomise(transformers.BertModel(config, add_pooling_layer=False)).save_pretrained(folder)
        fast_tokenizer().save_pretrained(folder)
        return modules.Transformer(folder, max_seq_length=40)


def table(columns):
    return torch.randn(5 + len(WORDS), columns)


def models():
    nn = torch.nn
    yield "labse", [encoder(), modules.Pooling(12, "cls"),
                    randomise(modules.Dense(12, 12, activation_function=nn.Tanh())),
                    modules.Normalize()], {}
    yield "chain", [encoder(), modules.Pooling(12, ("mean", "max")),
                    randomise(modules.Dense(24, 10, activation_function=nn.GELU())),
                    randomise(modules.LayerNorm(10)),
                    randomise(modules.Dense(10, 10, bias=False, activation_function=nn.Identity(),
                                            use_residual=True)),
                    randomise(modules.Dense(10, 7, activation_function=nn.Mish(), use_residual=True))], {}
    yield "normalized_chain", [encoder(), modules.Pooling(12, "mean"), modules.Normalize(),
                               modules.Dropout(0.1),
                               randomise(modules.Dense(12, 8, activation_function=nn.Identity())),
                               modules.Normalize()], {}
    yield "prompts", [encoder(), modules.Pooling(
        12, ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
        include_prompt=False)], PROMPTS
    yield "pooled_prompts", [encoder(), modules.Pooling(12, "mean"), modules.Normalize()], PROMPTS
    yield "static", [modules.StaticEmbedding(tokenizer_of(), embedding_weights=table(9)),
                     modules.Normalize()], PROMPTS
    yield "words", [modules.WordEmbeddings(fast_tokenizer(), table(6), max_seq_length=9),
                    modules.Pooling(6, ("mean", "max", "lasttoken")),
                    randomise(modules.Dense(18, 8, activation_function=nn.ReLU()))], {}


def main():
    assert sentence_transformers.__version__ == VERSION, sentence_transformers.__version__
    torch.manual_seed(45)
    out = {}

    def put(name, model, folder):
        for file in sorted(folder.rglob("*")):
            path = file.relative_to(folder).as_posix()
            if file.is_file() and not path.endswith((".md", ".gitattributes")):
                out[f"files/{name}/{path}"] = numpy.frombuffer(file.read_bytes(), dtype=numpy.uint8)
        out[f"vectors/{name}"] = model.encode(TEXTS)
        for prompt in model.prompts:
            if model.prompts[prompt]:
                out[f"vectors/{name}/{prompt}"] = model.encode(TEXTS, prompt_name=prompt)
        normalizes = isinstance(model[-1], modules.Normalize)
        out[f"truncated/{name}"] = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=normalizes)
        if name == "words":  # whose encode_query() fails in this version
            query, documents = model.encode(TEXTS[:1]), model.encode(TEXTS)
        else:
            query, documents = model.encode_query(TEXTS[:1]), model.encode_document(TEXTS)
        out[f"similarity/{name}"] = model.similarity(query, documents).numpy()[0]

    with tempfile.TemporaryDirectory() as temporary:
        for name, parts, prompts in models():
            folder = pathlib.Path(temporary) / name
            model = SentenceTransformer(modules=parts, prompts=dict(prompts), device="cpu")
            model.save(str(folder), create_model_card=False)
            put(name, SentenceTransformer(str(folder), device="cpu"), folder)
        # As model2vec quantizes vocabularies: a row for several tokens, a factor for each token.
        folder = pathlib.Path(temporary) / "model2vec"
        folder.mkdir()
        rng = numpy.random.default_rng(45)
        count = 5 + len(WORDS)
        save_file({"embeddings": rng.normal(size=(7, 6)).astype(numpy.float16),
                   "mapping": rng.integers(0, 7, count).astype(numpy.int64),
                   "weights": rng.random(count).astype(numpy.float32)}, folder / "model.safetensors")
        tokenizer_of().save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
        (folder / "modules.json").write_text(json.dumps([
            {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"},
            {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}]))
        put("model2vec", SentenceTransformer(str(folder), device="cpu"), folder)

    x = torch.cat([torch.linspace(-7, 7, 57), torch.tensor([-30.0, -3.0, -0.5, 0.5, 3.0, 30.0])])
    out["activation"] = x.numpy()
    for name in ACTIVATIONS:
        out[f"activation/{name}"] = getattr(torch.nn, name)()(x).numpy()
    out["texts"] = numpy.frombuffer("\n".join(TEXTS).encode(), dtype=numpy.uint8)
    path = pathlib.Path(__file__).parent / "sentence_folders.safetensors"
    save_file({k: numpy.ascontiguousarray(v) for k, v in out.items()}, path,
              metadata={"sentence-transformers": VERSION})
    for k in sorted(out):
        print(k, out[k].shape)
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
