#!/usr/bin/env python3
"""Writes what Hugging Face's library makes of chat templates, for tests/text/chat_template_test.cpp.

    pip install transformers==5.24.0 jinja2==3.1.6
    python3 tests/golden/make_chat_goldens.py > tests/golden/chat_templates.json

`templates`: templates of the shapes that published models have, over conversations. `snippets`: the language, a
piece at a time. Each has the text that comes out, or "error" where the library raises one. The date is a fixed one.
"""
import copy
import datetime
import json
import unicodedata

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 6, 9, 5, 3)

# ---- Templates

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

CHATML_ONE_LINE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou answer briefly.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3 = """{% set ns = namespace(first=true) %}
{% for message in messages %}
    {% set piece = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}
    {% if ns.first %}
        {% set piece = bos_token + piece %}
        {% set ns.first = false %}
    {% endif %}
    {{- piece }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{% endif %}
"""

LLAMA3_TOOLS = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if tools_in_user_message is not defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if date_string is not defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2024" %}
    {%- endif %}
{%- endif %}
{%- if tools is not defined %}
    {%- set tools = none %}
{%- endif %}

{#- The first message may be the system's. #}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Tools need a first message of the user.") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Call a function as JSON with its name and parameters.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One tool call at a time.") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate: user, assistant, user, assistant, ...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}"
    "{% else %}{{ raise_exception('Only user and assistant are known, not ' ~ message.role) }}{% endif %}{% endfor %}"
)

MISTRAL_TOOLS = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message, roles must alternate.") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("The id of a tool call has nine characters.") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {{- "]" + eos_token if loop.last else ", " }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id|default("none") + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, system, assistant and tool roles are known.") }}
    {%- endif %}
{%- endfor %}
"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are an assistant with tools.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nSignatures stand in <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer with <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are an assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN_THINKING = """{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate.") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Unknown content") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n'}}{% generation %}{{ message['content'] + '<|end|>\n'}}{% endgeneration %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}\
{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}\
{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}\
{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}\
{%- set ns.is_tool = false -%}{{'<User>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}\
{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}\
{{'<Assistant><calls>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```' + '<end>'}}\
{%- else %}{{'<Assistant>' + message['content'] + '<calls>' + tool['function']['name']}}{%- endif %}\
{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<calls_end>'}}{%- endif %}\
{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'<outputs_end>' + message['content'] + '<eos>'}}\
{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}\
{% set content = content.split('</think>')[-1] %}{% endif %}{{'<Assistant>' + content + '<eos>'}}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<outputs>' + message['content']}}\
{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}\
{% if ns.is_tool %}{{'<outputs_end>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<Assistant>'}}{% endif %}"""

COMMAND = """{%- macro type_of(schema) -%}
    {%- if schema.type == 'array' -%}
        List[{{ type_of(schema['items']) }}]
    {%- elif schema.type == 'object' and schema.properties -%}
        {{- '{' -}}
        {%- for key, inner in schema.properties|dictsort -%}
            {{ key }}: {{ type_of(inner) }}{{ ', ' if not loop.last }}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif schema.type is sequence and schema.type is not string -%}
        {{ schema.type | join(' | ') }}
    {%- else -%}
        {{ {'string': 'str', 'number': 'float', 'integer': 'int'}.get(schema.type, schema.type|default('Any')) }}
    {%- endif -%}
{%- endmacro -%}
{%- macro turn(role, content='', end=true) %}<|{{ role|upper }}|>{{ content }}{{ '<|END|>' if end else '' }}{% endmacro -%}
{{ bos_token }}
{%- set system = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | join('\\n') -%}
{%- if system or tools %}
    {%- set block %}
{{ system | default('No instructions.', true) }}
{% for tool in tools or [] -%}
def {{ tool.function.name }}({% for name, p in tool.function.parameters.properties.items() %}{{ name }}: {{ type_of(p) }}{% if name not in tool.function.parameters.required %} = None{% endif %}{% if not loop.last %}, {% endif %}{% endfor %}):
    {{ tool.function.description | indent(4) }}
{% endfor %}
    {%- endset %}
    {{- turn('system', block | trim) }}
{%- endif %}
{%- for message in messages | rejectattr('role', 'equalto', 'system') %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {{- turn(message.role, content=(message.content or '') | trim) }}
{%- else %}
    {{- raise_exception('There is nothing to answer.') }}
{%- endfor %}
{%- if add_generation_prompt %}{{ turn('assistant', end=false) }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML, "chatml_one_line": CHATML_ONE_LINE, "llama3": LLAMA3, "llama3_tools": LLAMA3_TOOLS,
    "mistral": MISTRAL, "mistral_tools": MISTRAL_TOOLS, "qwen": QWEN, "qwen_thinking": QWEN_THINKING, "gemma": GEMMA,
    "phi": PHI, "zephyr": ZEPHYR, "deepseek": DEEPSEEK, "command": COMMAND,
}

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather of a place.\nIn degrees.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "A town, \"with quotes\" and ümlauts"},
            "days": {"type": ["integer", "null"]},
            "grid": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "number"}, "a": {}}}}},
            "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "clock", "description": "Now.", "parameters": {"type": "object", "properties": {}, "required": []},
        "return": {"type": "string"}}},
]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": 2}}}

CONVERSATIONS = {
    "one": {"messages": [{"role": "user", "content": "Hello!"}]},
    "system": {"messages": [{"role": "system", "content": " Be kind.\n"}, {"role": "user", "content": "  Hi, you  \n"}]},
    "three": {"messages": [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c {{ d }} {% e %}"},
                           {"role": "user", "content": "日本語 😀 'quoted' \"twice\" \\n"}]},
    "complete": {"messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"}],
                 "add_generation_prompt": False},
    "alternation": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    "begins_with_answer": {"messages": [{"role": "assistant", "content": "a"}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what? "}]}]},
    "empty": {"messages": []},
    "unknown_role": {"messages": [{"role": "critic", "content": "bad"}]},
    "tools": {"messages": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "How warm?"}], "tools": TOOLS},
    "tool_turns": {"messages": [
        {"role": "user", "content": "How warm?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "{\"t\": 20.5}", "tool_call_id": "abcdefghi"}, {"role": "assistant", "content": "20.5"},
        {"role": "user", "content": "Thanks."}], "tools": TOOLS},
    "tool_turns_together": {"messages": [
        {"role": "user", "content": "How warm?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, dict(CALL, id="123456789")]},
        {"role": "tool", "content": "1", "tool_call_id": "abcdefghi"}, {"role": "tool", "content": "2", "tool_call_id": "123456789"}]},
    "options": {"messages": [{"role": "user", "content": "x"}], "enable_thinking": False, "tools_in_user_message": False,
                "tools": TOOLS[:1], "date_string": "26 Jul 2024"},
}

# ---- The language, a piece at a time

VARIABLES = {
    "none_": None, "yes": True, "no": False, "n": 7, "m": -3, "x": 2.5, "s": "Hello, World", "u": "äß日😀", "e": "",
    "words": ["pear", "Apple", "fig", "apple"], "nums": [3, 1, 2], "nested": [[1, 2], [3, [4]]],
    "d": {"b": 1, "a": {"c": [10, 20]}, "items": "mine"}, "people": [
        {"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "Bob", "age": 25}, {"name": "Cid", "age": 30, "tags": []}],
}

SNIPPETS = r"""
{{ 1 + 2 * 3 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ 6 / 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ - 2 + 3 }} {{ +n }} {{ 10 - 2 - 3 }} {{ 2 * 3 % 4 }} {{ 1.5e3 }} {{ 1e22 }} {{ 1e-7 }} {{ 123456789012345678 }} {{ 0.1 + 0.2 }} {{ 1_000 }}
{{ 1 ~ 2 + 3 }}
{{ 'a' ~ 1 ~ none ~ true ~ [1, 'b'] }} {{ 'ab' * 3 }} {{ 2 * [1, 2] }} {{ [1] + [2] }} {{ (1, 2) + (3,) }}
{{ true }} {{ True + 1 }} {{ none }} {{ not none }} {{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ [1, 2] == [1, 2.0] }} {{ {'a': 1} == {'a': 1.0} }} {{ (1,) == [1] }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 3 >= 3 }} {{ 2 != 3 }} {{ 1 < 2 == true }}
{{ 'x' in 'xyz' }} {{ 'q' not in 'xyz' }} {{ 2 in nums }} {{ 'a' in d }} {{ '' in e }} {{ 'a' in missing }} {{ not 1 in nums }} {{ none_ in [none] }}
{{ yes and 'p' }} {{ no or 'q' }} {{ no and 'p' }} {{ e or none_ or 0 }} {{ not yes or yes }} {{ n if no else m }} {{ n if no }}| {{ 1 if 0 else 2 if 0 else 3 }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[:-3] }} {{ s[10:2:-2] }} {{ s[100:] }} {{ s[-100:3] }} {{ nums[1:] }} {{ nums[::2] }} {{ u[1:3] }} {{ u[::-1] }} {{ s[5:1] }} {{ nums[-1:] }}
{{ nums[9] }}| {{ nums[9] is defined }} {{ d.a.c[1] }} {{ d['a']['c'][0] }} {{ d.missing }}| {{ d.a.c.0 }} {{ d['items'] }} {{ s.missing is defined }} {{ none_.x is defined }} {{ nums.1 }}
{{ missing.attribute }}
{{ d.missing.more }}
{{ missing + 1 }}
{{ missing ~ 'x' }}{{ missing|trim }}{{ missing|length }}{{ missing|default('D') }}{{ missing == missing }}{{ missing is none }}{{ missing|upper }}{{ missing|list }}
{{ missing() }}
{{ missing|tojson }}
{{ 'a' + 1 }}
{{ 1 < 'a' }}
{{ 1 in 'a' }}
{{ 1 in none }}
{{ none|length }}
{{ 5|length }}
{{ 1 / 0 }}
{{ nums.append(4) }}
{{ d.update({}) }}
{{ s|nosuch }}
{{ s is nosuch }}
{{ s.nosuch() }}
{{ [1, 'a', "it's", 'say "hi"', 'both \' "', none, true, 1.0, {'k': (1,)}, (), 'tab\t nl\n \\ é \x01 ​'] }}
{{ 'a\tb\n\x41\u00e9\U0001F600\101\q\'' }}|{{ "double 'single'" }}|{{ 'join' 'ed' }}
{{ {'a': 1, 'b': [1, 2]}.items()|list }} {{ {'a': 1}.keys()|list }} {{ {1: 2}.values()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ {'a': 1, 'a': 2} }}
{{ s.upper() }} {{ s.lower() }} {{ u.upper() }} {{ 'hELLO wORLD it\'s x2y'.title() }} {{ 'hELLO wORLD'.capitalize() }} {{ '  a '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ 'xyaxy'.lstrip('yx') }} {{ 'a..'.rstrip('.') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a b c '.split(none, 1) }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c'.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'a b'.split('') }}
{{ s.startswith('Hell') }} {{ s.endswith(('x', 'World')) }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'ab'.replace('', '-') }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('q') }} {{ s.count('l') }} {{ u.find('😀') }} {{ s.index('W') }}
{{ s.index('q') }}
{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ ''.isalpha() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ '-'.join(['a', 'b']) }} {{ 'a\nb\r\nc\n'.splitlines() }}
{{ s|upper }} {{ s|lower }} {{ 'foo-bar (baz) it\'s'|title }} {{ 'hELLO wORLD'|capitalize }} {{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }} {{ s|replace('l', '1') }} {{ s|replace('l', '1', 2) }} {{ n|string + '!' }} {{ '<a href="x">\'&'|e }} {{ '<b>'|safe }} {{ '<'|escape }}
{{ words|join(', ') }} {{ words|first }} {{ words|last }} {{ words|length }} {{ words|count }} {{ words|reverse|list }} {{ s|reverse }} {{ words|sort }} {{ words|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ words|unique|list }} {{ nums|sum }} {{ nums|min }} {{ nums|max }} {{ 'abc'|list }} {{ []|first }}| {{ people|join('/', attribute='name') }}
{{ people|map(attribute='name')|list }} {{ words|map('upper')|list }} {{ words|map('replace', 'p', 'P')|join(' ') }} {{ people|map(attribute='tags.0', default='-')|list }} {{ people|map(attribute='tags', default=[])|map('length')|list }} {{ people|sum(attribute='age') }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='name', reverse=true)|map(attribute='name')|join }} {{ people|unique(attribute='age')|map(attribute='name')|join }}
{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }} {{ people|rejectattr('age', 'gt', 26)|map(attribute='name')|list }} {{ people|selectattr('tags')|list|length }} {{ people|selectattr('tags', 'defined')|list|length }} {{ nums|select('odd')|list }} {{ nums|reject('odd')|list }} {{ [0, 1, '', 'a']|select|list }} {{ [0, 1]|reject|list }} {{ nums|select('in', [1, 2])|list }} {{ nums|select('divisibleby', 2)|list }} {{ people|selectattr('name', 'in', ['Ann', 'Cid'])|list|length }}
{{ d|dictsort }} {{ {'B': 2, 'a': 1}|dictsort }} {{ {'B': 2, 'a': 1}|dictsort(true) }} {{ {'x': 2, 'y': 1}|dictsort(by='value') }} {{ {'x': 2, 'y': 1}|dictsort(reverse=true) }} {{ {'a': 1}|items|list }} {{ missing|items|list }} {{ nums|batch(2)|list }} {{ nums|batch(2, 0)|list }}
{{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '3.9'|int }} {{ 3.9|int }} {{ -3.9|int }} {{ 'ff'|int(base=16) }} {{ '2.5'|float }} {{ 'q'|float(1.5) }} {{ true|int }} {{ none|int }} {{ ' 12 '|int }} {{ 3|float }} {{ m|abs }} {{ -2.5|abs }} {{ -1|abs }}
{{ 2.567|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(method='ceil') }} {{ 2.19|round(1, 'floor') }} {{ 7|round }} {{ 2.675|round(2) }} {{ 1234.5|round(-2) }}
{{ missing|default('x') }} {{ e|default('x') }}| {{ e|default('x', true) }} {{ none_|d('y') }} {{ none_|d('y', boolean=true) }} {{ missing|d }}|
{{ d|tojson }} {{ 'é"\\\n\x7f\x01/<>&'|tojson }} {{ 'é😀'|tojson(ensure_ascii=true) }} {{ [1.0, 1e20, 2.5, none, true]|tojson }} {{ d|tojson(indent=2) }} {{ []|tojson(indent=2) }} {{ {}|tojson }} {{ d|tojson(separators=(',', ':')) }} {{ d|tojson(sort_keys=true) }} {{ (1, 2)|tojson }} {{ {1: 2, none: 3, true: 4}|tojson }} {{ nested|tojson(indent='--') }} {{ u|tojson }}
{{ 'a\nb\n\nc'|indent }}| {{ 'a\nb'|indent(2, true) }}| {{ 'a\n\nb'|indent(2, blank=true) }}| {{ 'a\nb'|indent('> ') }}| {{ ''|indent }}| {{ 'a\n'|indent }}|
{{ s|wordcount }} {{ 'it\'s a-b c_d'|wordcount }}
{{ n is number }} {{ yes is number }} {{ yes is boolean }} {{ n is integer }} {{ x is float }} {{ yes is integer }} {{ s is string }} {{ d is mapping }} {{ nums is iterable }} {{ s is iterable }} {{ d is sequence }} {{ n is iterable }} {{ none_ is none }} {{ missing is undefined }} {{ missing is iterable }} {{ missing is sequence }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }} {{ n is eq 7 }} {{ n is equalto 7 }} {{ n is ne 7 }} {{ n is lt 8 }} {{ n is ge(7) }} {{ n is sameas 7 }} {{ none_ is sameas none }} {{ 'a' is in 'abc' }} {{ 'AB' is upper }} {{ 'ab' is lower }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ range is callable }} {{ 'upper' is filter }} {{ 'odd' is test }}
{{ n is not none }} {{ n is not divisibleby 7 }} {{ not n is none }} {{ s is string and n is number }} {{ missing is defined or true }} {{ s|length is gt 3 }} {{ n is defined and n > 5 }}
{% for i in nums %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem }}/{{ loop.nextitem }}/{{ loop.depth }}/{{ loop.cycle('a', 'b') }};{% endfor %}
{% for i in [] %}x{% else %}none{% endfor %}|{% for i in nums if i > 1 %}{{ i }}{{ loop.index }}{{ loop.last }}{% else %}no{% endfor %}|{% for i in nums if i > 9 %}{{ i }}{% else %}no{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'añ' %}[{{ c }}]{% endfor %}{% for (a, b) in [(1, 2), (3, 4)] %}{{ a + b }},{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for i in 5 %}{% endfor %}
{% for i in none_ %}{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}|{{ range(3)|list }} {{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(5)[1] }} {{ range(4)|last }}
{% break %}
{{ range(1000000)|length }}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}
{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}|{% if true %}{% set a = 9 %}{% endif %}{{ a }}|{% set b, c = 1, [2] %}{{ b }}{{ c }}|{% set t = 1, 2 %}{{ t }}
{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b is defined }}{% set ns.b = 'x' %}{{ ns.b }}{{ ns['a'] }} {% set o = namespace({'p': 1}, q=2) %}{{ o.p }}{{ o.q }} {{ dict(a=1, b='c') }}
{% set d.x = 1 %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set x %}a{{ n }}b{% endset %}[{{ x }}]{% set y | trim | upper %}  abc {% endset %}[{{ y }}]{% set z %}{% set n = 1 %}{% endset %}{{ n }}
{% macro m(a, b=2, c='x') %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=5, c=6) }}{{ m() }}{{ m(1)|length }}{{ m.name }}
{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{% set g = 3 %}{% macro h() %}{{ g }}{{ n }}{% endmacro %}{{ h() }}{% for i in [1] %}{% set g = 4 %}{{ h() }}{% endfor %}
{% macro f() %}{% endmacro %}{{ f(1) }}
{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in{{ n }}{% endcall %}{% macro l(items) %}{% for i in items %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) l(nums) %}[{{ i }}]{% endcall %}
{% filter upper %}abc{{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aa {% endfilter %}{% with a = 1, b = n %}{{ a }}{{ b }}{% set n = 2 %}{{ n }}{% endwith %}{{ n }}
{% generation %}{% set n = 1 %}{{ n }}{% endgeneration %}{{ n }}
{% raw %}{{ not }} {% code %}{% endraw %}|{%- raw -%}  {{ x }}  {%- endraw -%}  |
a {# comment #} b{#- tight -#}   c
{% if no %}a{% elif e %}b{% elif n %}c{% else %}d{% endif %}{% if missing %}e{% endif %}{% if nums and d %}f{% endif %}{% if not e %}g{% endif %}
{{ {'a': {'b': 1}} }} {{ {'a': 1}['a'] }} {{ {}.x is defined }} {{ [[1, 2], [3]][0][1] }} {{ (1, 2)[0] }} {{ [1, 2, ] }} {{ () }} {{ (1) }} {{ 1, 2 }}
{{ raise_exception('stop') }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %b %B %a %A %j %d %e %I %p %y %%') }}
{{ nums | map('string') | join('+') ~ '=' ~ nums | sum }} {{ (nums | sum) * 2 }} {{ nums|sum * 2 }} {{ 'a' if nums|length > 2 else 'b' }} {{ n|string|length }}
{{ s.split(', ')[0].upper()[:3] }} {{ (s ~ '!')[-1] }} {{ people[0].name[0] }} {{ people[-1]['name'] }} {{ people[1].get('tags', 'no tags') }} {{ people[1].tags is defined }} {{ (people|first).name }}
{{ 1 is string is defined }}
{{ loop }}
{{ 'a' 'b' }}{{ "x" ~ 'y' "z" }}
{% if 'a' in s or 'W' in s and not 'q' in s %}in{% endif %} {{ not not n }} {{ 1 == 1 and 2 == 2 }} {{ (1 == 1) == true }} {{ 3 - -2 }}
{{ -nums|sum }}
{{ 2 - 1 ~ 3 }}
{{ }}
{% if %}{% endif %}
{% if n %}
{% endif %}
{{ n
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{{ 'unclosed }}
{{ (1 }}
{{ 1) }}
{{ a b }}
{% for in x %}{% endfor %}
{% set 1 = 2 %}
{% macro %}{% endmacro %}
{{ ''.__class__ }}|
{{ 9223372036854775807 }}
{{ [3, 'a']|sort }}
{{ n|tojson ~ 'x' }} {{ yes|tojson }} {{ none_|tojson }} {{ s|tojson|length }} {{ 'x'|tojson|tojson }}
{{ u|length }} {{ u|upper }} {{ u|title }} {{ 'ÉCOLE'|lower }} {{ 'éa'|capitalize }} {{ ' x '|trim|length }} {{ 'ok' }}
"""

# Printing of each type, formatting, scopes of loops and macros.
TYPES = r"""
{{ true | round }} {{ false|round(1) }} {{ 1250|round(-2) }} {{ 1350|round(-2) }} {{ -7|round(method='floor') }} {{ 1.005|round(2) }} {{ 25.0|round(-1) }} {{ 15|round(-1) }}
{% for i in [1, 2] %}{% break %}{% else %}E{% endfor %}|{% for i in [1, 2] %}{% continue %}{% else %}E{% endfor %}|{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}
{% set q = 1 %}{% for i in [] %}{% else %}{% set q = 2 %}{{ q }}{% endfor %}{{ q }}|{% for a in [1, 2] %}{% for b in [] %}{% else %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}!{% endfor %}
{{ range(3) }} {{ range(1, 9, 2) }} {{ range(5)[1:3] }} {{ d.items() }} {{ d.keys() }} {{ d.a.values() }} {{ {}.items() }} {{ range(3) == range(0, 3) }} {{ d.keys() == d.keys() }} {{ 'b' in d.keys() }} {{ d.items()[0] }}| {{ d.keys() is sequence }}{{ d.keys() is iterable }}{{ range(2) is sequence }}
{{ range(3)|tojson }}
{{ d.items()|tojson }}
{{ words|map('upper')|tojson }}
{{ words|map('upper')|length }}
{{ words|map('upper')|last }}
{% set it = words|map('upper') %}{{ it|first }}{{ it|list }}{{ it|list }}|{{ (words|map('upper'))[0] }}|{{ 'yes' if []|select else 'no' }}{{ nums|select('odd') is iterable }}{{ nums|select('odd') is sequence }}|{{ none|map('upper')|list }}
{{ [1]|map('nosuch') is defined }}{{ 5|items is defined }}
{{ [1]|map('nosuch')|list }}
{{ "%s and %r" | format('a', 'b') }} {{ '%s' % 1 }} {{ '%s-%s' % (1, 'x') }} {{ '%d%%' % 3.9 }} {{ '%05.1f|%-6s|%+d|%x|%#o|%e|%g|%c' % (3.14159, 'ab', 3, 255, 8, 12345.678, 1e-5, 65) }} {{ '%(a)s' % {'a': 1} }} {{ '%(a)s' | format(a=2) }} {{ '%.2s' % 'abc' }} {{ '%*d' % (5, 3) }} {{ 'abc' % [1] }} {{ '%s' % missing }} {{ '%a' % 'é' }}
{{ '%s' % () }}
{{ '%d' % 'a' }}
{{ 'a' % 1 }}
{{ '%s %s' % 'a' }}
{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}'.format(1, 2) }} {{ '{a} {d[b]} {p.name}'.format(a=1, d=d, p=people[0]) }} {{ '{:>6}|{:<6}|{:^6}|{:*^7}'.format('ab', 'cd', 'ef', 3) }} {{ '{:,} {:_} {:,.2f} {:08,}'.format(1234567, 1234567, 1234.5, 1234) }} {{ '{:b} {:o} {:x} {:#X} {:c} {:+d} {: d} {:05d} {:=+6d}'.format(5, 8, 255, 255, 65, 1, 1, -3, 7) }} {{ '{:.2f} {:e} {:g} {:%} {:.3} {:.0f}'.format(2.345, 12345.6, 1e-7, 0.25, 3.14159, 2.5) }} {{ '{!r:>5} {!s} {!a}'.format('a', 'b', 'é') }} {{ '{:{}}'.format('a', 4) }} {{ '{{}}'.format() }} {{ '{:.2}'.format('abc') }} {{ '{a}'.format_map({'a': 1}) }} {{ '{:d}{}'.format(true, true) }}
{{ '{}'.format() }}
{{ '{:d}'.format('a') }}
{{ '{:5}'.format(none) }}
{{ '{0}{}'.format(1, 2) }}
{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{{ g[0] }}{% endfor %} {% for k, v in people|groupby('tags.0', default='-') %}{{ k }}{{ v|length }} {% endfor %}{{ words|groupby(0) }} {{ [{'a': 'X'}, {'a': 'x'}, {'a': 'b'}]|groupby('a') }}
{% for i in [1, 1, 2, 2, 1] %}{{ i if loop.changed(i) else '-' }}{{ loop.changed(i, 1) }}{% endfor %}|{% for i in nums %}{{ loop }}{% endfor %}
{% for i in nested recursive %}{{ loop.depth }}{% if i is iterable %}[{{ loop(i) }}]{% else %}{{ i }}{{ loop.last }}{% endif %}{% endfor %}
{% for i in nums %}{{ loop(i) }}{% endfor %}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}{{ m(1) }} {{ m(1, 2, 3) }} {{ m(1, b=2) }} {{ m(*[1, 2], **{'c': 3}) }} {% call m(1, 2) %}in{% endcall %} {{ m }} {{ m.catch_varargs }}{{ m.catch_kwargs }}{{ m.caller }}{{ m.arguments }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{% call m(1) %}x{% endcall %}
{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}{% macro o(x) %}{% call(y) i(x) %}<{{ y }}{{ x }}>{% endcall %}{% endmacro %}{% macro i(x) %}{{ caller(x ~ '!') }}{% endmacro %}{{ o(3) }}
{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(4) }} {{ 'abc'.center(6, '*') }}{{ 'ab'.center(5, '*') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a'.partition('=') }} {{ 'a'.rpartition('=') }} {{ 'a\tb'.expandtabs(4) }} {{ 'aB'.swapcase() }} {{ 'Straße'.casefold() }} {{ 'ab'|center(6) }}|
{{ 'ab'.ljust(4, '..') }}
{{ '\x7f\x80é\u2028😀"\\'|tojson(ensure_ascii=true) }} {{ '\x7f\x80\u2028'|tojson }} {{ '\é' }} {{ {1.5: 1, none: 2, true: 3}|tojson }} {{ [1e400 if no else 1]|tojson }} {{ {'b': 1, 'a': [{}]}|tojson(indent=0) }}
{{ '<b>'|safe + '<' }} {{ '<' + '<b>'|safe }} {{ '<'|e ~ '<' }} {{ ('<'|e).replace('t', '<') }} {{ ['<'|e] }} {{ ('<b>%s</b>'|safe) % '<' }} {{ ('{}'|safe).format('<') }} {{ '<'|e|e }} {{ '<'|e|forceescape }} {{ '<'|e is escaped }} {{ ('a,<'|e).split(',') }} {{ ('a'|safe)[0] }} {{ 'a'|safe|upper is escaped }} {{ ('x'|safe) * 2 }}
{{ 9007199254740993 == 9007199254740992.0 }} {{ 2 ** 62 < 4611686018427387905.0 }} {{ 7.5 // 0.1 }} {{ -7.5 // 2 }} {{ 5 % -3 }} {{ -0.0 // 1 }} {{ 5.5 % -2 }} {{ 10 / 3 }} {{ 0x1f + 0b11 + 0o7 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 9007199254740993 / 3 }}
{{ '1_000'|int }} {{ '0x1f'|int(base=16) }} {{ '٣'|int }} {{ '1e3'|int }} {{ 'inf'|int(4) }} {{ '1_0.5'|float }} {{ ' nan '|float }} {{ '-Infinity'|float }} {{ '1__0'|int(9) }} {{ '0b11'|int(base=0) }}
{{ 5 is divisibleby 2.5 }} {{ 2.5 is odd }} {{ 3.0 is odd }} {{ none is lower }} {{ 'ª' is lower }} {{ 'Ⅷ'.isupper() }} {{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }} {{ 'ß'.upper() }} {{ 'ΑΣ'.lower() }} {{ 'ǆ'.title() }} {{ 'ﬁx'|title }} {{ 'ŉ'.capitalize() }} {{ 'İ'.lower()|length }}
{{ 's'.find('s', 1) }} {{ s.find('o', 5) }} {{ s.startswith('ello', 1, 5) }} {{ s.count('l', 4) }} {{ s.rindex('l') }} {{ s.endswith('lo', 0, -7) }} {{ 'a\nb\n'.splitlines(true) }} {{ 'a b'.isidentifier() }}{{ 'ab1'.isidentifier() }} {{ 'Ab Cd'.istitle() }} {{ [1, 2, 1].index(1, 1) }}
{{ [d]|max(attribute='age') is mapping }} {{ [none]|min }} {{ [1, none]|first }}
{{ [none, none]|min }}
{{ s.startswith(['H']) }}
{{ s.strip(chars='H') }}
{{ 5|indent }}
{{ nums|slice(2)|list }} {{ nums|slice(2, 'x')|list }} {{ people|sort(attribute='age,name')|map(attribute='name')|join }} {{ s|truncate(8) }} {{ s|truncate(8, true) }} {{ 'a b/c&ü'|urlencode }} {{ {'a': 'x y', 'b': 1}|urlencode }} {{ 'x'|attr('upper') is callable }} {{ d|attr('b') is defined }} {{ 1000|filesizeformat }} {{ 1|filesizeformat }} {{ 5000000|filesizeformat(true) }}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set ns = namespace(a=1) %}{{ ns }}{% set ns.a, z = 5, 6 %}{{ ns.a }}{{ z }}{% set f = s.upper %}{{ f() }}{% set r = range %}{{ r(2)|list }} {{ {(1, 2): 3}[(1, 2)] }} {{ dict([('a', 1)]) }} {{ missing in [missing] }}
{% for i in nums if ns.ok %}{% endfor %}
{% set ns = namespace(go=true) %}{% for i in nums if ns.go %}{{ i }}{% set ns.go = false %}{% endfor %}|{% for i in nums %}{% filter upper %}a{% break %}{% endfilter %}b{% endfor %}|{% for i in nums %}{% set q %}{% continue %}{% endset %}b{% else %}E{% endfor %}
"""

# A sample of random templates: filters, tests, methods and operators on values of each type.
RANDOM = r"""
{{ ([[1,'a'],[2,'b']])|escape }}
{{ 'a' is ne 'a' }}
{{ ((-0.5).0)|sort(case_sensitive=true) }}
{{ '{:^08d}'.format(-7) }}
{{ (((range(3))|trim('a')).join(['x', '<'])).rfind('o') }}
{{ (words|map('upper')).0 }}
{{ ([1, 'b']|select) is test }}
{{ ((1e16).x)|title }}
{{ m is even }}
{{ ({1: 'x', 'y': none}) != (1, 2) }}
{{ 'a'|min(case_sensitive=true) }}
{{ n is not undefined }}
{{ ('<b>'|safe).x }}
{{ '<b>'|safe }}
{{ '3.7'|first }}
{{ (people|map(attribute='name')) != ((10)|string) }}
{{ (people|map(attribute='name')) is undefined }}
{{ (''|float(1) if 1.0 else missing) }}
{{ 'a'|int }}
{{ (words|reverse)|join('-', attribute='name') }}
{% set q = 'a' %}{{ q }}
{{ (2.5)|int(base=16) }}
{{ '{:z.1f}'.format(1e-7) }}
{{ e|string }}
{{ '3.7'.rfind('o') }}
{{ s.isnumeric() }}
{{ (s|int) is ge(2) }}
{{ no is not ge(2) }}
{{ '{:<010}'.format(123456789) }}
{{ '{}'|length }}
{% set ns = namespace(a=1) %}{{ (ns.a if e else yes)|forceescape }}
{{ (range(5, 0, -2)) is in [1, 'a', 2.5] }}
{{ m|round(method='ceil') }}
{{ '<'|e }}
{{ none_ is not number }}
{{ (3) > (-1) }}
{{ false == none }}
{{ () is eq 1 }}
{{ '3.7'.rsplit(' ', 1) }}
{{ d.items() }}
{{ '%c' % n }}
{% set q = (e.isnumeric()) is not string %}{{ q }}
{{ m|float }}
{{ ('<b>'|safe) is filter }}
{{ '%06.1f' % 1 }}
{{ (range(5, 0, -2)) == nums }}
{{ ('{:+d}'.format(-7))|join }}
{{ (({'a': 1})|min(case_sensitive=true)).items }}
{{ ((-0.5) is not upper) ~ [x, '10'] }}
{% set ns = namespace(a=1) %}{{ (ns|forceescape)[5] }}
{{ (d.items()) is not sequence }}
{{ '%-6s|' % (m,) }}
{{ [3, 1.5, true]|default('D', true) }}
{{ (nested ~ (7)) == '' }}
{{ yes|e }}
{{ 'äß'|indent(2, true) }}
{{ (-1)|wordcount }}
{{ (words|reverse)|int(5) }}
{{ ('3.7'|tojson(ensure_ascii=true))|lower }}
{{ people|groupby('age') }}
{{ ((d.items())|default('D')) is not sameas none }}
{% set ns = namespace(a=1) %}{{ (ns.a < true)|replace('l', '', 1) }}
{{ ('ab c'.replace('l', 'L', 1))|trim }}
{% set ns = namespace(a=1) %}{{ ('%s'.zfill(14)) % (ns.a|capitalize) }}
{{ ('aXbX'|last)['name'] }}
{{ '{:^08d}'.format(true) }}
{{ (e|selectattr('name','in',['Ann'])).0 }}
{{ (nested.copy())|lower }}
{{ m + x }}
{{ '%s' % 'äß' }}
{{ ('aXbX' is not true) is escaped }}
{{ ((people[0])|tojson(ensure_ascii=true))|trim }}
{{ 'x<y&z' > '%s' }}
{{ (({1: 'x', 'y': none})|unique(attribute='age'))|list }}
{{ ('aXbX'.count('l', 3, -1))|float(1) }}
{{ (1.0)|replace('a', 'b') }}
{{ '%r' % '%s' }}
{{ missing|sum(attribute='age') }}
{% set q = '%e' % 1 %}{{ q }}
{{ d.a.keys() }}
{{ '{:<010}'.format(1234567.891) }}
{{ '%a' % (words,) }}
{{ people.copy() }}
{{ (-1) is boolean }}
{{ ({'a': 1})|sort }}
{{ u is boolean }}
{{ (range(3)) is not callable }}
{{ (10)|round(method='ceil') }}
{{ (('<b>'|safe) is upper)|round }}
{{ '' is not string }}
{{ ({1: 'x', 'y': none})|list }}
{{ (1, 2) != (nums|batch(2)) }}
{{ [3, 1.5, true] is not true }}
{{ (words|reverse) is not eq 1 }}
{{ (nums|select('odd')) is mapping }}
{{ x is in [1, 'a', 2.5] }}
{{ [true, d.keys()] }}
{{ ((people[1].tags)|wordcount)[true] }}
{% set q = (u|indent)[1] %}{{ q }}
{{ (d.keys()) is defined }}
{{ [none, missing]|escape }}
{{ 'a'.isspace() }}
{% set ns = namespace(a=1) %}{{ (nums is number) in (ns.a and (d.keys())) }}
{{ ('<b>'|safe) is not false }}
{{ (('<'|e) is not sameas none)|trim }}
{{ 'tab\tq\n'.join(['x', '<']) }}
{% set q = '%-6s|' % (1e16,) %}{{ q }}
{{ (7) - (2) }}
{{ '{:d}'.format(7) }}
{{ '{:é>4}'.format(1e-7) }}
{{ 'a-b_c' is lower }}
{{ ({1: 'x', 'y': none})|center(11) }}
{{ '{:08.3f}'.format(-0.0) }}
{{ (nums|batch(2) if false else 7) }}
{{ (((1, 2)|unique)|batch(2, 'z'))[1.5] }}
{% set ns = namespace(a=1) %}{{ (ns|lower) == ('{:=6}'.format(0.0001)) }}
{% set q %}{% set q = yes.age|groupby('name', default='Q') %}{{ q }}{% endset %}[{{ q }}]
{{ '%r'|format([[1,'a'],[2,'b']]) }}
{{ u.find('l', 3) }}
{{ u is defined }}
{{ ('%%' % nested) is not mapping }}
{{ '3.7'.endswith('l', 0, 3) }}
{{ '{:>4}'.format(u) }}
{{ ('<'|e).count('') }}
{{ '10'.isalpha() }}
{% set ns = namespace(a=1) %}{% for (a, b) in words|batch(2) if ns.a < 3 %}{{ k }}{{ v }}{{ [none, missing] }};{% endfor %}{{ q }}
{{ ('%#.0f'|format(x))|lower }}
{{ ((nums|batch(2)).b)|sum(attribute='age') }}
{{ (true is float) is not number }}
{{ '%.0f' % (m,) }}
{{ 'ab c'.format_map(d) }}
{{ ('{:+}'.format(0))[-1] }}
{{ ['x<y&z' + 'a', 'a'.zfill(14)] }}
{{ (range(3))|title }}
{{ '{}'.removeprefix('He') }}
{{ ('{:.10}'.format(99.95)) in ('{}'|map('length')) }}
{{ '%s'|length }}
{% filter replace('1','2') %}{{ ('<'|e)|lower }}{% endfilter %}
{{ (e|escape) is not iterable }}
{{ '{:}'.format(0.0001) }}
{% for i in [] %}{{ loop.revindex }}{{ s.keys() }};{% endfor %}{{ q }}
{% set ns = namespace(a=1) %}{% for i in [] if ns.a < 3 %}{{ loop.revindex }}{{ (([[1,'a'],[2,'b']])|abs).name }};{% endfor %}{{ q }}
{{ '% d' % 1e16 }}
{{ [3, 1.5, true] is not escaped }}
{% set ns = namespace(a=1) %}{{ '%.2s' % (ns.a,) }}
{{ x is divisibleby 3 }}
{{ (x % (7)).age }}
{{ u is not test }}
{{ [none, missing]|capitalize }}
{{ (nums|select('odd')) is not float }}
{{ 'tab\tq\n'.isprintable() }}
{{ ('{:.3}'.format(1e-7) if -1 else [1, 'b']) }}
{{ '%#.0f' % 2 }}
{{ (1, 2) is not callable }}
{{ false is ne 'a' }}
{{ people|truncate(4, true, '..', 0) }}
{{ (-1)|upper }}
{{ 'tab\tq\n'|count }}
{% set q %}{{ people[1].tags }}{% endset %}[{{ q }}]
{{ ('<'|e).isascii() }}
{{ '{:.1e}'.format(x) }}
{{ '{:o}'.format(0) }}
{{ '10'|upper }}
{{ (s is not equalto 7)|safe }}
{{ (range(5, 0, -2))|last }}
{% filter replace('1','2') %}{{ (people[1].tags) is number }}{% endfilter %}
{{ '{:z.1f}'.format(100.0) }}
{{ ('{:.3}'.format(1234567.891)).isidentifier() }}
{{ '{:.0%}'.format(-7) }}
"""

# White space, which cannot stand in the lines above.
BLOCKS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}  \n  b\n  {% endif %}\nc",
    "a\n  {%+ if true %}\nb\n  {%- endif %}\nc\n\n",
    "a  {%- if true -%}  \n b \n{%- endif +%}\nc",
    "x {{- 1 -}} \n y {{ 2 }}\n z\n{{- 3 }}\n",
    "  {% set a = 1 %}\n  {{ a }}\n\t{# c #}\n\t{%- for i in [1, 2] %}\n  - {{ i }}\n  {%- endfor %}\nend",
    "{% for i in [1, 2] %}\n{{ i }}\n{% endfor %}\n",
    "{% for i in [1, 2] -%}\n  {{ i }}\n  {%- if not loop.last %}, {% endif %}\n{%- endfor %}\n\n\n",
    "a\r\nb\r{% if true %}\r\nc{% endif %}\r\n",
    "text {% if true %} x {% endif %}   \n   {% if true %}y{% endif %}{% if true %}\n{% endif %}\n  z",
    "  {# one #}\n  {#- two -#}\n  three {# four #}\n",
    "  {% raw %}\n  {{ x }}\n  {% endraw %}\n  y",
    "{%set a=1%}{%if a==1%}{{a}}{%endif%}{{'}}'}}{{ '%}' }}{{ {'a':{'b':2}} }}{{{'a':1}}}",
    "{{ 'a' }}\n", "\n\n{{ 'a' }}\n\n", "", "\n", "{", "a { b } c {", "{%- if true -%}\n\n{%- endif -%}\n x",
    "a\u00a0{%- if true %}b{% endif %}\u2003{{- 'c' }}",
    "{{ 'a\nb' }}{{ \"x\\\ny\" }}",
    "{% set x = {\n  'a': [\n    1,\n    2,\n  ],\n} %}\n{{ x\n  .a\n  |\n  length }}",
]


def outcome(text, variables):
    try:
        template = chat_template_utils._compile_jinja_template(text)
        return {"text": template.render(strftime_now=NOW.strftime, **copy.deepcopy(variables))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:120]}


def character_cases():
    """What Python says of every character's case and class, as one number for each question."""
    questions = {
        "upper": str.upper, "lower": str.lower, "title": str.title, "swapcase": str.swapcase,
        **{name: (lambda c, name=name: "01"[getattr(c, name)()]) for name in (
            "isalpha", "isdecimal", "isdigit", "isnumeric", "isalnum", "isspace", "isupper", "islower", "istitle", "isprintable")},
    }
    # Characters that Unicode 14 assigns and that are stable since.
    letters = [chr(c) for c in range(0x20, 0x2fe0) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    out = {}
    for name, ask in questions.items():
        value = 0xcbf29ce484222325
        for byte in "".join(ask(c) for c in letters).encode():
            value = (value ^ byte) * 0x100000001b3 % 2 ** 64
        out[name] = f"{value:016x}"
    ranges, start = [], None
    for c in range(0x20, 0x2fe1):
        known = c < 0x2fe0 and unicodedata.category(chr(c)) not in ("Cn", "Cs")
        if known and start is None:
            start = c
        elif not known and start is not None:
            ranges.append([start, c - 1])
            start = None
    return {"ranges": ranges, "hashes": out}


def main():
    templates = []
    for name, text in TEMPLATES.items():
        cases = []
        for conversation, given in CONVERSATIONS.items():
            variables = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None,
                         "add_generation_prompt": True, **given}
            cases.append({"conversation": conversation, **outcome(text, variables)})
        templates.append({"name": name, "template": text, "cases": cases})
    snippets = [{"template": text, **outcome(text, VARIABLES)}
                for text in [line for block in (SNIPPETS, TYPES, RANDOM) for line in block.strip("\n").split("\n")] + BLOCKS]
    out = {"tokens": {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None, "add_generation_prompt": True},
           "conversations": CONVERSATIONS, "templates": templates, "variables": VARIABLES, "snippets": snippets, "characters": character_cases()}
    print(json.dumps(out, ensure_ascii=False, indent=1))


main()
