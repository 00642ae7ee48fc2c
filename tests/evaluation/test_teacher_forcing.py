# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from toys import HistoryModel

import specjax
from specjax.evaluation import check_greedy

MODEL = HistoryModel(9)
PARAMS = MODEL.init(3)
PROMPT = [1, 2, 3]


def test_a_greedy_text_passes_and_its_log_probs_are_the_generated_ones():
  generation = specjax.generate(MODEL, PARAMS, [PROMPT], max_new_tokens=40)
  check = check_greedy(MODEL, PARAMS, PROMPT, generation.new_tokens()[0], chunk=7)
  assert check.passed and check.first_divergence is None and check.is_argmax.all()
  np.testing.assert_allclose(check.log_probs, generation.new_log_probs()[0], atol=1e-5)
  assert "all 40 tokens" in check.report()


def test_a_changed_token_is_found_with_its_gap():
  tokens = MODEL.reference_greedy(PARAMS, PROMPT, 12)
  logits = MODEL.reference_logits(PARAMS, [*PROMPT, *tokens[:5]])
  second = int(np.argsort(logits)[-2])
  changed = [*tokens[:5], second]
  gap = float(np.sort(logits)[-1] - logits[second])
  check = check_greedy(MODEL, PARAMS, PROMPT, changed, epsilon=gap * 0.9)
  assert check.first_divergence == 5 and not check.passed
  assert check.best[5] == tokens[5]
  np.testing.assert_allclose(check.gap[5], gap, rtol=1e-4)
  np.testing.assert_allclose(check.margin[5], gap, rtol=1e-4)
  assert "first difference at token 5" in check.report()
  assert check_greedy(MODEL, PARAMS, PROMPT, changed, epsilon=gap * 1.1).passed


@pytest.mark.parametrize(
  ("prompt", "tokens", "options", "message"),
  [
    ([], [1], {}, "at least one id"),
    ([1], [], {}, "at least one id"),
    ([1], [9], {}, "within 0 .. 8"),
    ([1], [2], {"epsilon": -1.0}, "epsilon must be >= 0"),
  ],
)
def test_bad_input_is_refused(prompt, tokens, options, message):
  with pytest.raises(ValueError, match=message):
    check_greedy(MODEL, PARAMS, prompt, tokens, **options)
