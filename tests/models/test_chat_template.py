# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the same text as `transformers` renders, and errors for people."""

import pytest
import tiny_tokenizers as tiny
import transformers

from specjax.models import chat_template

_SMOLLM = tiny.CHAT_TEMPLATE
# In the manner of Llama 2: turns must alternate, the system message goes into the first turn.
_ALTERNATING = """
{%- if messages[0]['role'] == 'system' %}
  {%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
  {%- set turns = messages[1:] %}
{%- else %}
  {%- set system = '' %}
  {%- set turns = messages %}
{%- endif %}
{%- for turn in turns %}
  {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Conversation roles must alternate user/assistant') }}
  {%- endif %}
  {%- if turn['role'] == 'user' %}
    {%- set text = (system if loop.first else '') + turn['content'] | trim %}
    {{- bos_token + '[INST] ' + text + ' [/INST]' }}
  {%- else %}
    {%- generation %}{{- ' ' + turn['content'] | trim + ' ' + eos_token }}{%- endgeneration %}
  {%- endif %}
{%- endfor %}
"""
# In the manner of Qwen 2.5 and Llama 3.1: tools, loop control, a date, whitespace control.
_TOOLS = """{%- if tools %}
<|im_start|>system
# Tools
    {%- for tool in tools %}
{{ tool | tojson(indent=2) }}
    {%- endfor %}<|im_end|>
{% endif %}
{%- set ns = namespace(seen=0) %}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {%- if ns.seen > 3 %}{% break %}{% endif %}
{{ '<|im_start|>' ~ message.role }}
{{ message.content | tojson if message.content is not string else message.content }}<|im_end|>
{%- if message.tool_calls %} CALLS {{ message.tool_calls | tojson }}{% endif %}
{% endfor %}
{%- if pad_token is defined %}PAD{% endif %}{{ note | default('') }}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""

_CONVERSATIONS = {
  "one": [{"role": "user", "content": "héllo <b>\"x\" & 'y'</b>\n"}],
  "system": [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "  hi  "},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "日本語 🤖"},
  ],
  "none": [{"role": "user", "content": "x", "tool_calls": None}],
}
_TOOL = {
  "type": "function",
  "function": {"name": "f", "description": "naïve <b>", "parameters": {}},
}


def _transformers(template):
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tiny.byte_level_backend(),
    bos_token="<|im_start|>",
    eos_token="<|im_end|>",
    chat_template=template,
  )


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("conversation", list(_CONVERSATIONS))
@pytest.mark.parametrize("template", [_SMOLLM, _ALTERNATING, _TOOLS])
def test_rendered_text_equals_transformers(template, conversation, prompt):
  messages = _CONVERSATIONS[conversation]
  options = {"add_generation_prompt": prompt, "note": "n"}
  if template is _TOOLS:
    options["tools"] = [_TOOL]
  ours = chat_template.render(
    template, messages, bos_token="<|im_start|>", eos_token="<|im_end|>", **options
  )
  theirs = _transformers(template).apply_chat_template(messages, tokenize=False, **options)
  assert ours == theirs


def test_messages_with_lists_and_skipped_turns_render_as_in_transformers():
  messages = [
    {"role": "skip", "content": "x"},
    {"role": "user", "content": [{"type": "text", "text": "é"}]},
    {"role": "assistant", "content": "c", "tool_calls": [{"name": "f", "arguments": {"a": 1.5}}]},
    *[{"role": "user", "content": str(index)} for index in range(4)],
  ]
  ours = chat_template.render(_TOOLS, messages)
  theirs = _transformers(_TOOLS).apply_chat_template(
    messages, tokenize=False, add_generation_prompt=True
  )
  assert ours == theirs
  assert "CALLS" in ours and '"é"' in ours


def test_default_system_message_of_the_template_stays():
  text = chat_template.render(_SMOLLM, _CONVERSATIONS["one"])
  assert text.startswith("<|im_start|>system\nYou help<|im_end|>\n<|im_start|>user\n")
  assert text.endswith("<|im_start|>assistant\n")


def test_date_is_todays():
  text = chat_template.render("{{ strftime_now('%Y') }}", _CONVERSATIONS["one"])
  assert len(text) == 4 and text.startswith("20")


@pytest.mark.parametrize(
  ("template", "messages", "message"),
  [
    (_SMOLLM, [], "at least one message"),
    (_SMOLLM, ["hello"], r"messages\[0\] must be a dict, got str"),
    (_SMOLLM, [{"content": "x"}], r"messages\[0\] must have a 'role', got the keys \['content'\]"),
    (_SMOLLM, [{"role": "user", "content": object()}], "plain values, got object"),
    (_ALTERNATING, [{"role": "assistant", "content": "x"}], "roles must alternate"),
    ("{% for %}", [{"role": "user", "content": "x"}], "chat template cannot render"),
    ("{{ missing.attribute }}", [{"role": "user", "content": "x"}], "missing"),
    ("{{ ''.__class__.__mro__ }}", [{"role": "user", "content": "x"}], "unsafe"),
    ("{{ messages.append(1) }}", [{"role": "user", "content": "x"}], "not callable|unsafe"),
  ],
)
def test_what_cannot_be_rendered_is_one_clear_error(template, messages, message):
  with pytest.raises(ValueError, match=message):
    chat_template.render(template, messages)


def test_template_cannot_change_the_callers_messages():
  messages = [{"role": "user", "content": "x", "extra": {"a": [1]}}]
  template = "{% set m = messages[0] %}{{ m.extra.a }}"
  assert chat_template.render(template, messages) == "[1]"
  assert messages == [{"role": "user", "content": "x", "extra": {"a": [1]}}]
