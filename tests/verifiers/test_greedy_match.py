# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from toys import HistoryModel, TableModel

import specjax
from specjax.drafters import DraftModel, PromptLookup
from specjax.sampling import SamplingPolicy
from specjax.verifiers import REGISTRY, GreedyMatch

V = 6


def looping_table():
  """A target that would repeat 1 2 3 for ever; penalties break the loop."""
  table = np.full((V, V), -1.0, np.float32)
  for token, following in ((0, 1), (1, 2), (2, 3), (3, 1), (4, 1), (5, 1)):
    table[token, following] = 2.0
    table[token, (following + 2) % V] = 1.5
    table[token, (following + 3) % V] = 1.2
  return jnp.asarray(table)


@pytest.mark.parametrize("draft_length", [1, 3, 8])
@pytest.mark.parametrize(
  "penalty",
  [{"repetition_penalty": 1.4}, {"presence_penalty": 0.6}, {"frequency_penalty": 0.3}],
  ids=lambda penalty: next(iter(penalty)),
)
@pytest.mark.parametrize("drafter", ["right", "wrong", "lookup"])
def test_penalties_see_the_draft_before_each_position_and_nothing_twice(
  draft_length, penalty, drafter
):
  model, params = TableModel(V), {"table": looping_table()}
  wrong = {"table": jnp.roll(looping_table(), 1, axis=1)}
  kind, drafter_params = {
    "right": (DraftModel(model, draft_length), params),
    "wrong": (DraftModel(model, draft_length), wrong),
    "lookup": (PromptLookup(draft_length), None),
  }[drafter]
  policy = SamplingPolicy(**penalty)
  options = {"policy": policy, "max_new_tokens": 30}
  plain = specjax.generate(model, params, [[0, 1]], **options)
  drafted = specjax.generate(
    model, params, [[0, 1]], drafter=kind, drafter_params=drafter_params, **options
  )
  assert drafted.new_tokens() == plain.new_tokens()
  unpenalised = specjax.generate(model, params, [[0, 1]], max_new_tokens=30)
  assert plain.new_tokens() != unpenalised.new_tokens()


def test_a_policy_that_samples_is_refused():
  model = HistoryModel(V)
  with pytest.raises(ValueError, match="GreedyMatch"):
    specjax.generate(
      model, model.init(), [[1]], policy=SamplingPolicy(temperature=1.0), verifier=GreedyMatch()
    )


@pytest.mark.parametrize("name", REGISTRY)
def test_every_verifier_declares_whether_it_is_lossless(name):
  assert isinstance(REGISTRY[name]().lossless, bool)
