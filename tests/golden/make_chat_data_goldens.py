#!/usr/bin/env python3
"""Writes which tokens of conversations transformers gives to the assistant, for tests/train/chat_test.cpp.

    pip install transformers==5.24.0 jinja2==3.1.6
    python3 tests/golden/make_chat_data_goldens.py DATA > tests/golden/chat_data.json

DATA is the folder with gpt2/ and stories260K/. Templates mark what the assistant says with `generation` blocks;
`learnt` is transformers' assistant mask.
"""
import json
import sys

from transformers import PreTrainedTokenizerFast

TEMPLATES = {
    "names": "{% for m in messages %}{% if m.role == 'assistant' %}<assistant>\n"
    "{% generation %}{{ m.content }}\n{% endgeneration %}{% else %}{{ '<' + m.role + '>\n' + m.content + '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}",
    # Nothing stands between turns, so that one token may hold the end of one and the beginning of the next.
    "close": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}",
}
CONVERSATIONS = [
    [("user", "Who are you?"), ("assistant", "A small model.")],
    [("system", "Be brief."), ("user", "Tell me of a cat"), ("assistant", "s. They sleep."), ("user", "And?"),
     ("assistant", "They play in the park.")],
    [("user", "déjà vu 🙂"), ("assistant", "naïve — 🙂🙂 café")],
]


def main():
    data = sys.argv[1]
    cases = []
    for name in ("gpt2", "stories260K"):
        folder = f"{data}/{name}"
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception:
            from transformers import GPT2TokenizerFast

            tokenizer = GPT2TokenizerFast.from_pretrained(folder)
        for template, text in TEMPLATES.items():
            for turns in CONVERSATIONS:
                messages = [{"role": role, "content": content} for role, content in turns]
                made = tokenizer.apply_chat_template(
                    messages, chat_template=text, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
                )
                cases.append({"tokenizer": name, "template": text, "messages": messages, "ids": made["input_ids"],
                              "learnt": made["assistant_masks"]})
    json.dump(cases, sys.stdout, ensure_ascii=False)
    print()


main()
