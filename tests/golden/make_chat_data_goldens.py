#!/usr/bin/env python3
"""Writes which tokens of conversations transformers gives to the assistant, for tests/train/chat_test.cpp.

    pip install transformers==5.24.0 jinja2==3.1.6
    python3 tests/golden/make_chat_data_goldens.py DATA > tests/golden/chat_data.json

DATA is the folder with gpt2/ and stories260K/. Templates mark what the assistant says with `generation` blocks;
`learnt` is transformers' assistant mask.
"""
import json
import sys
import tempfile

from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

# Templates in the forms that published models use, with what the assistant says marked. Every one of them is written for
# this test; special tokens are spelt out, because the tokenizers of the test know only <s> and </s>.
TURNS = "{% for m in messages %}{% if m.role == 'assistant' %}ASSISTANT{% elif m.role == 'system' %}SYSTEM{% else %}USER{% endif %}{% endfor %}"


def turns(system, user, assistant, begin="", prompt=""):
    body = TURNS.replace("ASSISTANT", assistant).replace("SYSTEM", system).replace("USER", user)
    return begin + body + "{% if add_generation_prompt %}" + prompt + "{% endif %}"


TEMPLATES = {
    "names": "{% for m in messages %}{% if m.role == 'assistant' %}<assistant>\n"
    "{% generation %}{{ m.content }}\n{% endgeneration %}{% else %}{{ '<' + m.role + '>\n' + m.content + '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}",
    # Nothing stands between turns, so that one token may hold the end of one and the beginning of the next.
    "close": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    # Llama 2: a space between the prompt and the answer; the block begins behind it.
    "llama2": turns(
        "<s>[INST] <<SYS>>\n{{ m.content }}\n<</SYS>> [/INST]</s>",
        "<s>[INST] {{ m.content }} [/INST]",
        " {% generation %}{{ m.content }} {% endgeneration %}</s>",
    ),
    # The same with the space and the end within the block.
    "llama2 with its end": turns(
        "<s>[INST] <<SYS>>\n{{ m.content }}\n<</SYS>> [/INST]</s>",
        "<s>[INST] {{ m.content }} [/INST]",
        "{% generation %} {{ m.content }} </s>{% endgeneration %}",
    ),
    "mistral": turns(
        "{{ m.content }}\n\n",
        "[INST] {{ m.content }}[/INST]",
        "{% generation %} {{ m.content }}</s>{% endgeneration %}",
        begin="<s>",
    ),
    "llama3": turns(
        "<|start_header_id|>system<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        "{% generation %}{{ m.content | trim }}<|eot_id|>{% endgeneration %}",
        begin="<s>",
        prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "chatml": turns(
        "<|im_start|>system\n{{ m.content }}<|im_end|>\n",
        "<|im_start|>user\n{{ m.content }}<|im_end|>\n",
        "<|im_start|>assistant\n{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n",
        prompt="<|im_start|>assistant\n",
    ),
    "gemma": turns(
        "<start_of_turn>user\n{{ m.content }}<end_of_turn>\n",
        "<start_of_turn>user\n{{ m.content }}<end_of_turn>\n",
        "<start_of_turn>model\n{% generation %}{{ m.content | trim }}<end_of_turn>\n{% endgeneration %}",
        begin="<s>",
        prompt="<start_of_turn>model\n",
    ),
    "phi3": turns(
        "<|system|>\n{{ m.content }}</s>\n",
        "<|user|>\n{{ m.content }}</s>\n",
        "<|assistant|>\n{% generation %}{{ m.content }}</s>\n{% endgeneration %}",
        prompt="<|assistant|>\n",
    ),
}
CONVERSATIONS = [
    [("user", "Who are you?"), ("assistant", "A small model.")],
    [("system", "Be brief."), ("user", "Tell me of a cat"), ("assistant", "s. They sleep."), ("user", "And?"),
     ("assistant", "They play in the park.")],
    [("user", "déjà vu 🙂"), ("assistant", "naïve — 🙂🙂 café")],
    # Answers that begin with what tokenizers of the Llama family do not join with the space before it.
    [("user", "How many?"), ("assistant", "12 cats"), ("user", "A list"), ("assistant", "\n - one\n")],
]


# Added to the tokenizer of stories260K, as the models of these templates have them; Phi-3's swallow the space behind them.
ADDED = [{"content": f"<|{name}|>", "rstrip": True} for name in ("system", "user", "assistant")] + [
    {"content": name, "rstrip": False}
    for name in ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                 "<start_of_turn>", "<end_of_turn>")
]


def with_added_tokens(file):
    """A tokenizer.json with the tokens of ADDED behind its vocabulary."""
    with open(file, encoding="utf-8") as f:
        tokenizer = json.load(f)
    first = len(tokenizer["model"]["vocab"])
    for i, token in enumerate(ADDED):
        tokenizer["added_tokens"].append({"id": first + i, "single_word": False, "lstrip": False, "normalized": False,
                                          "special": True} | token)
    made = tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8")
    json.dump(tokenizer, made)
    made.flush()
    return made


def main():
    data = sys.argv[1]
    cases = []
    for name in ("gpt2", "stories260K"):
        if name == "gpt2":
            tokenizer = GPT2TokenizerFast.from_pretrained(f"{data}/{name}")
        else:
            with with_added_tokens(f"{data}/{name}/tokenizer.json") as file:
                tokenizer = PreTrainedTokenizerFast(tokenizer_file=file.name)
        for template, text in TEMPLATES.items():
            for turns in CONVERSATIONS:
                messages = [{"role": role, "content": content} for role, content in turns]
                made = tokenizer.apply_chat_template(
                    messages, chat_template=text, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
                )
                cases.append({"tokenizer": name, "template": text, "messages": messages, "ids": made["input_ids"],
                              "learnt": made["assistant_masks"]})
    json.dump({"added": ADDED, "cases": cases}, sys.stdout, ensure_ascii=False)
    print()


main()
